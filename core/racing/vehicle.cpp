#include "racing/vehicle.hpp"

#include <array>
#include <stdexcept>
#include <utility>

namespace slipstream::racing {
namespace {

using Named = std::pair<std::string_view, Vehicle>;

// limo: an AgileX LIMO's body and limits on the F1TENTH chassis, as published.
constexpr std::array<Named, 4> kVehicles{{
    {"f1tenth", {}},
    {"limo",
     {.steer_max = 0.46,
      .switch_mps = 0.8,
      .accel_max = 2.0,
      .speed_min = -1.0,
      .speed_max = 1.0,
      .width_m = 0.225,
      .length_m = 0.32}},
    {"f1fifth",
     {.friction = 1.1,
      .front_stiffness = 5.3507,
      .rear_stiffness = 5.3507,
      .front_m = 0.2725,
      .rear_m = 0.2585,
      .height_m = 0.1825,
      .mass_kg = 15.32,
      .inertia_kgm2 = 0.64332,
      .width_m = 0.55,
      .length_m = 0.8}},
    {"fullscale",
     {.front_stiffness = 20.89,
      .rear_stiffness = 20.89,
      .front_m = 0.88392,
      .rear_m = 1.50876,
      .height_m = 0.557,
      .mass_kg = 1225.888,
      .inertia_kgm2 = 1538.853,
      .steer_max = 0.91,
      .steer_rate_max = 0.4,
      .switch_mps = 4.755,
      .accel_max = 11.5,
      .speed_min = -13.9,
      .speed_max = 45.8,
      .width_m = 1.674,
      .length_m = 4.298}},
}};

}  // namespace

const Vehicle& vehicle_named(std::string_view name) {
  std::string known;
  for (const auto& [key, vehicle] : kVehicles) {
    if (key == name) return vehicle;
    known += (known.empty() ? "" : ", ") + std::string(key);
  }
  throw std::invalid_argument("there is no vehicle '" + std::string(name) + "'; there are " + known);
}

std::vector<std::string> vehicle_names() {
  std::vector<std::string> names;
  for (const auto& entry : kVehicles) names.emplace_back(entry.first);
  return names;
}

}  // namespace slipstream::racing
