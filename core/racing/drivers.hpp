// Drivers who follow rules: opponents and baselines.
#pragma once

#include <span>
#include <vector>

#include "racing/centerline.hpp"
#include "racing/dynamics.hpp"

namespace slipstream::racing {

// Follow-the-gap: steer to the middle of the deepest free stretch of the scan, away from what is nearest.
struct FollowGap {
  double view = 3.2;        // radians ahead that are looked at
  double cap_m = 10.0;      // farther is not better
  double half_width = 0.3;  // metres kept free to either side of the nearest return
  double depth = 0.6;       // a gap is made of beams at least this share of the deepest
  double gain = 0.5;        // steering per radian to the target
  double fast_mps = 5.0;    // straight on
  double slow_mps = 3.0;    // when steering hard
  double hard = 0.15;       // radians of steering that count as hard

  // What it does with this scan; `scratch` has as many numbers as the scan.
  [[nodiscard]] Command drive(std::span<const float> ranges, double fov, const Vehicle& car,
                              std::span<float> scratch) const;
};

// A line and how fast to drive on it.
struct SpeedLine {
  Centerline line;
  std::vector<double> speed;  // [points], m/s
};

// Pure pursuit (Coulter 1992): steer onto the circle that meets the line a little ahead.
struct PurePursuit {
  double ahead_s = 0.2;      // seconds ahead
  double ahead_min_m = 0.8;  // but at least this far
  double share = 0.9;        // of the line's speeds

  [[nodiscard]] Command drive(const State& state, const SpeedLine& along, const Vehicle& car) const;
};

}  // namespace slipstream::racing
