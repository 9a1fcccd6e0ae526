// Drivers who follow rules: opponents and baselines.
#pragma once

#include <span>
#include <vector>

#include "racing/centerline.hpp"
#include "racing/dynamics.hpp"

namespace slipstream::racing {

// Follow-the-gap: steer to the middle of the widest free stretch of the scan, away from what is nearest.
struct FollowGap : FollowGapFields {
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
struct PurePursuit : PurePursuitFields {
  // `here` is where the car is along the line.
  [[nodiscard]] Command drive(const State& state, const SpeedLine& along, const Progress& here,
                              const Vehicle& car) const;
};

// Presses another car against a wall without touching it: takes a place ahead and beside, then comes closer.
struct Squeezer : SqueezerFields {
  // `seconds` since the start; `lateral` is the other's place on the road, left positive.
  [[nodiscard]] Command drive(const State& own, const State& other, double lateral, double seconds,
                              const Vehicle& car) const;
};

// Stays in front: drives along the line at a share of its speeds, as far aside as the car behind is.
struct Blocker : BlockerFields {
  // `behind_m` is how far behind the other is, and `aside_m` its place on the road.
  [[nodiscard]] Command drive(const State& state, const SpeedLine& along, const Progress& here, double behind_m,
                              double aside_m, const Vehicle& car) const;
};

// Steering that meets a point.
[[nodiscard]] double steer_to(const State& state, const Point& goal, const Vehicle& car);

}  // namespace slipstream::racing
