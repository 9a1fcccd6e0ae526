// Cars by name: the constants of the single-track model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace slipstream::racing {

// SI units and radians. The centre of gravity is the reference point of everything.
struct Vehicle {
  double friction = 1.0489;
  double front_stiffness = 4.718;  // of the tyres, per radian
  double rear_stiffness = 5.4562;
  double front_m = 0.15875;  // centre of gravity to the front axle
  double rear_m = 0.17145;
  double height_m = 0.074;  // of the centre of gravity
  double mass_kg = 3.74;
  double inertia_kgm2 = 0.04712;
  double steer_max = 0.4189;
  double steer_rate_max = 3.2;
  double switch_mps = 7.319;  // above it the motor's power, not its force, is the limit
  double accel_max = 9.51;
  double speed_min = -5.0;
  double speed_max = 20.0;
  double width_m = 0.31;
  double length_m = 0.58;

  [[nodiscard]] double wheelbase() const { return front_m + rear_m; }
};

// f1tenth, limo, f1fifth or fullscale; throws std::invalid_argument naming them for anything else.
[[nodiscard]] const Vehicle& vehicle_named(std::string_view name);
[[nodiscard]] std::vector<std::string> vehicle_names();

}  // namespace slipstream::racing
