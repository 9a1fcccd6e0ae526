#include "airspace/aircraft.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <stdexcept>

#include "airspace/geo.hpp"

namespace slipstream::airspace {
namespace {

constexpr double kSeaLevelTemperature = 288.15;  // K
constexpr double kLapse = 0.0065;                // K/m
constexpr double kSeaLevelPressure = 101325.0;   // Pa
constexpr double kSeaLevelDensity = 1.225;       // kg/m^3
constexpr double kGasConstant = 287.05287;       // J/(kg K)
// g0 / (lapse * gas constant) - 1 to the digits BlueSky carries; the textbook value shifts TAS by 0.006 m/s.
constexpr double kDensityExponent = 4.256848030018761;

constexpr std::array<double, 10> kTableCasKt{140, 160, 180, 200, 220, 240, 260, 280, 300, 316};

constexpr std::array<AccelerationPoint, 10> table(const std::array<double, 10>& mps2, double last_cas_kt = 316.0) {
  std::array<AccelerationPoint, 10> points{};
  for (std::size_t i = 0; i < points.size(); ++i) points[i] = {kTableCasKt[i], mps2[i]};
  points.back().cas_kt = last_cas_kt;
  return points;
}

// Acceleration at 10,000 ft in the cruise phase; types without a table of their own use that of a close relative.
constexpr auto kA320 = table({1.073, 1.100, 1.086, 1.046, 0.988, 0.917, 0.836, 0.747, 0.652, 0.572});
constexpr auto kB737 = table({1.240, 1.243, 1.204, 1.138, 1.054, 0.956, 0.847, 0.729, 0.603, 0.500});
constexpr auto kB744 = table({0.622, 0.714, 0.745, 0.739, 0.706, 0.656, 0.591, 0.516, 0.500, 0.500});
constexpr auto kCrj9 = table({1.231, 1.233, 1.198, 1.138, 1.061, 0.972, 0.873, 0.767, 0.654, 0.576}, 312.0);

constexpr double kt(double knots) { return knots * kKnot; }

constexpr std::array<AircraftType, 8> kTypes{{
    {"A320", 67.0, 163.0, kA320},
    {"A332", 67.0, kt(314.9), kB744},
    {"B737", kt(126.4), kt(318.8), kB737},
    {"B738", kt(140.0), kt(313.0), kB737},
    {"B744", kt(140.0), kt(349.9), kB744},
    {"CRJ2", kt(124.4), kt(309.1), kCrj9},
    {"CRJ9", kt(124.4), kt(309.1), kCrj9},
    {"E190", kt(124.4), kt(309.1), kCrj9},
}};

double power_7_2(double x) { return x * x * x * std::sqrt(x); }  // several times cheaper than std::pow

double interpolate(const std::array<AccelerationPoint, 10>& points, double cas_kt) {
  if (cas_kt <= points.front().cas_kt) return points.front().mps2;
  for (std::size_t i = 1; i < points.size(); ++i) {
    if (cas_kt > points[i].cas_kt) continue;
    const double share = (cas_kt - points[i - 1].cas_kt) / (points[i].cas_kt - points[i - 1].cas_kt);
    return points[i - 1].mps2 + share * (points[i].mps2 - points[i - 1].mps2);
  }
  return points.back().mps2;
}

}  // namespace

Atmosphere::Atmosphere(double altitude_ft) {
  const double temperature = kSeaLevelTemperature - kLapse * altitude_ft * kFoot;
  density_kgm3 = kSeaLevelDensity * std::pow(temperature / kSeaLevelTemperature, kDensityExponent);
  pressure_pa = density_kgm3 * kGasConstant * temperature;
}

double Atmosphere::tas_of_cas(double cas_mps) const {
  const double impact =
      kSeaLevelPressure * (power_7_2(1.0 + kSeaLevelDensity * cas_mps * cas_mps / (7.0 * kSeaLevelPressure)) - 1.0);
  return std::sqrt(7.0 * pressure_pa / density_kgm3 * (std::pow(1.0 + impact / pressure_pa, 2.0 / 7.0) - 1.0));
}

double Atmosphere::cas_of_tas(double tas_mps) const {
  const double impact = pressure_pa * (power_7_2(1.0 + density_kgm3 * tas_mps * tas_mps / (7.0 * pressure_pa)) - 1.0);
  return std::sqrt(7.0 * kSeaLevelPressure / kSeaLevelDensity *
                   (std::pow(1.0 + impact / kSeaLevelPressure, 2.0 / 7.0) - 1.0));
}

std::span<const AircraftType> aircraft_types() { return kTypes; }

const AircraftType& find_aircraft_type(std::string_view name) {
  std::string known;
  for (const AircraftType& type : kTypes) {
    if (type.name == name) return type;
    known += (known.empty() ? "" : ", ") + std::string(type.name);
  }
  throw std::invalid_argument("unknown aircraft type '" + std::string(name) + "'; known types are " + known);
}

Performance::Performance(const AircraftType& type, double altitude_ft) : type_(&type), atmosphere_(altitude_ft) {
  min_tas_mps_ = atmosphere_.tas_of_cas(type.min_cas_mps);
  max_tas_mps_ = atmosphere_.tas_of_cas(type.max_cas_mps);
  // A quarter of a metre per second: the chords miss the CAS curve by less than 1e-5 m/s^2.
  per_mps_ = 4.0;
  first_tas_mps_ = std::floor(min_tas_mps_);
  const int cells = static_cast<int>(std::ceil((max_tas_mps_ - first_tas_mps_) * per_mps_)) + 1;
  for (int i = 0; i <= cells; ++i)
    table_.push_back(interpolate(type.acceleration, atmosphere_.cas_of_tas(first_tas_mps_ + i / per_mps_) / kKnot));
}

std::shared_ptr<const Performance> shared_performance(std::string_view type, double altitude_ft) {
  static std::mutex mutex;
  static std::map<std::pair<std::string_view, double>, std::weak_ptr<const Performance>> known;
  const AircraftType& found = find_aircraft_type(type);
  const std::lock_guard lock(mutex);
  std::weak_ptr<const Performance>& entry = known[{found.name, altitude_ft}];
  std::shared_ptr<const Performance> shared = entry.lock();
  if (!shared) entry = shared = std::make_shared<const Performance>(found, altitude_ft);
  return shared;
}

double Performance::limit_cas(double cas_mps) const {
  return std::clamp(cas_mps, type_->min_cas_mps, type_->max_cas_mps);
}

}  // namespace slipstream::airspace
