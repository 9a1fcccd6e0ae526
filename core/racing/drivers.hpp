// Drivers who follow rules: opponents and baselines.
#pragma once

#include <span>
#include <vector>

#include "racing/centerline.hpp"
#include "racing/dynamics.hpp"

namespace slipstream::racing {

// Follow-the-gap: steer to the middle of the widest free stretch of the scan, away from what is nearest.
struct FollowGap {
  double view = 3.2;        // radians ahead that are looked at
  double cap_m = 10.0;      // farther is not better
  int window = 1;           // beams averaged into one
  double half_width = 0.3;  // metres kept free to either side of the nearest return
  double bubble = 0.0;      // radians kept free to either side of it, at least
  double depth = 0.6;       // a gap is made of beams at least this share of the deepest
  double gap_m = 0.0;       // and at least this far
  double gain = 0.5;        // steering per radian to the target
  double smooth = 0.0;      // share of the last steering that is kept
  double fast_mps = 5.0;    // straight on
  double slow_mps = 3.0;    // when steering hard
  double hard = 0.15;       // radians of steering that count as hard
  bool careful = false;     // slower the nearer what is ahead: all of fast_mps only beyond 6 m

  // What it does with this scan after having steered like this; `scratch` has as many numbers as the scan.
  [[nodiscard]] Command drive(std::span<const float> ranges, double fov, double last_steer, const Vehicle& car,
                              std::span<float> scratch) const;
};

// A line and how fast to drive on it.
struct SpeedLine {
  Centerline line;
  std::vector<double> speed;  // [points], m/s
};

struct SpeedLimits {
  double speed_max = 8.0;
  double lateral_max = 8.5;  // m/s^2 the tyres hold sideways
  double accel_max = 8.5;    // and forwards and backwards
};

// As fast as corners allow, and as braking for them and leaving them does (a friction ellipse). Allocates only where
// there are more points than there were before.
void set_speeds(SpeedLine& along, const SpeedLimits& limits);

// Pure pursuit (Coulter 1992): steer onto the circle that meets the line a little ahead.
struct PurePursuit {
  double ahead_s = 0.2;      // seconds ahead
  double ahead_min_m = 0.8;  // but at least this far
  double share = 0.9;        // of the line's speeds

  // `here` is where the car is along the line.
  [[nodiscard]] Command drive(const State& state, const SpeedLine& along, const Progress& here,
                              const Vehicle& car) const;
};

// Presses another car against a wall without touching it: takes a place ahead and beside, then comes closer.
struct Squeezer {
  double ahead_m = 0.6;   // of the other's middle
  double wide_m = 0.6;    // beside it at first
  double narrow_m = 0.4;  // and in the end
  double close_s = 4.0;   // how long coming closer takes
  double look_m = 0.5;    // how far beyond its place it aims
  double gain = 1.5;      // speed per metre that it is behind its place

  // `seconds` since the start; `lateral` is the other's place on the road, left positive.
  [[nodiscard]] Command drive(const State& own, const State& other, double lateral, double seconds,
                              const Vehicle& car) const;
};

// Stays in front: drives along the line at a share of its speeds, as far aside as the car behind is.
struct Blocker {
  double watch_m = 4.0;  // how far behind it looks
  double room_m = 0.6;   // how far aside it goes
  double share = 0.6;    // of the line's speeds
  double ahead_s = 0.35;
  double ahead_min_m = 1.0;

  // `behind_m` is how far behind the other is, and `aside_m` its place on the road.
  [[nodiscard]] Command drive(const State& state, const SpeedLine& along, const Progress& here, double behind_m,
                              double aside_m, const Vehicle& car) const;
};

// Steering that meets a point.
[[nodiscard]] double steer_to(const State& state, const Point& goal, const Vehicle& car);

}  // namespace slipstream::racing
