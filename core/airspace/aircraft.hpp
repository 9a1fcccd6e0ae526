// Aircraft types: how fast they may fly and how quickly they change speed, at one altitude.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace slipstream::airspace {

// The standard atmosphere up to 11 km, with the density law BlueSky uses.
struct Atmosphere {
  explicit Atmosphere(double altitude_ft);
  double pressure_pa = 0.0;
  double density_kgm3 = 0.0;

  [[nodiscard]] double tas_of_cas(double cas_mps) const;
  [[nodiscard]] double cas_of_tas(double tas_mps) const;
};

struct AccelerationPoint {
  double cas_kt;
  double mps2;
};

struct AircraftType {
  std::string_view name;
  double min_cas_mps;
  double max_cas_mps;
  std::array<AccelerationPoint, 10> acceleration;  // linear between points, constant outside; the same for slowing
};

// Throws std::invalid_argument naming the known types.
const AircraftType& find_aircraft_type(std::string_view name);
std::span<const AircraftType> aircraft_types();

// One type at one altitude, tabulated against true airspeed so that a substep needs no powers.
class Performance {
 public:
  Performance(const AircraftType& type, double altitude_ft);

  // Largest change of true airspeed, m/s^2.
  [[nodiscard]] double acceleration(double tas_mps) const {
    const double position = (tas_mps - first_tas_mps_) * per_mps_;
    const double last = static_cast<double>(table_.size() - 2);
    const double inside = position < 0.0 ? 0.0 : position > last ? last : position;
    const auto i = static_cast<std::size_t>(inside);
    return table_[i] + (inside - static_cast<double>(i)) * (table_[i + 1] - table_[i]);
  }
  // The CAS an aircraft will really fly when asked for this one.
  [[nodiscard]] double limit_cas(double cas_mps) const;

  [[nodiscard]] const AircraftType& type() const { return *type_; }
  [[nodiscard]] const Atmosphere& atmosphere() const { return atmosphere_; }
  [[nodiscard]] double min_tas_mps() const { return min_tas_mps_; }
  [[nodiscard]] double max_tas_mps() const { return max_tas_mps_; }

 private:
  const AircraftType* type_;
  Atmosphere atmosphere_;
  double min_tas_mps_;
  double max_tas_mps_;
  double first_tas_mps_;
  double per_mps_;
  std::vector<double> table_;
};

// The tables are the same for every world of a batch, so worlds share them and they stay in cache.
std::shared_ptr<const Performance> shared_performance(std::string_view type, double altitude_ft);

}  // namespace slipstream::airspace
