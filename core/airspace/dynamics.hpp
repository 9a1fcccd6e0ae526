// Level flight in three steps a second: speed toward its target, heading toward its target, then position.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "airspace/aircraft.hpp"
#include "airspace/geo.hpp"

namespace slipstream::airspace {

inline constexpr double kBankDeg = 25.0;
inline const double kTurnAcceleration = kGravity * std::tan(radians(kBankDeg));  // m/s^2 across the track

struct SinCos {
  double sin = 0.0;
  double cos = 1.0;
};
inline SinCos sin_cos_deg(double angle_deg) { return {std::sin(radians(angle_deg)), std::cos(radians(angle_deg))}; }

// Taylor sums, exact to double precision for the angles an aircraft turns through in a few seconds (up to 0.35 rad).
inline SinCos sin_cos_small(double x) {
  const double q = x * x;
  return {x * (1.0 - q * (1.0 / 6.0) *
                         (1.0 - q * (1.0 / 20.0) *
                                    (1.0 - q * (1.0 / 42.0) * (1.0 - q * (1.0 / 72.0) * (1.0 - q * (1.0 / 110.0)))))),
          1.0 - q * 0.5 *
                    (1.0 -
                     q * (1.0 / 12.0) *
                         (1.0 - q * (1.0 / 30.0) *
                                    (1.0 - q * (1.0 / 56.0) * (1.0 - q * (1.0 / 90.0) * (1.0 - q * (1.0 / 132.0))))))};
}
inline SinCos sin_cos(double x) { return std::abs(x) < 0.35 ? sin_cos_small(x) : SinCos{std::sin(x), std::cos(x)}; }
// The same for a position step (up to a thousandth of a radian).
inline SinCos sin_cos_tiny(double x) {
  const double q = x * x;
  return {x * (1.0 - q * (1.0 / 6.0)), 1.0 - q * 0.5 * (1.0 - q * (1.0 / 12.0))};
}
inline SinCos sum(const SinCos& a, const SinCos& b) {
  return {a.sin * b.cos + a.cos * b.sin, a.cos * b.cos - a.sin * b.sin};
}

struct Wind {
  double east_mps = 0.0;
  double north_mps = 0.0;
};

// `from_deg` is where the wind blows from, as pilots say it.
inline Wind wind_from(double speed_kt, double from_deg) {
  return {-velocity_east(from_deg, speed_kt * kKnot), -velocity_north(from_deg, speed_kt * kKnot)};
}

// Every aircraft of a scene, one array per quantity. Sines and cosines travel with the angles they belong to, turned
// by each step instead of evaluated anew: that is what makes a substep cheap.
struct Fleet {
  explicit Fleet(std::size_t count)
      : lat_deg(count),
        lon_deg(count),
        heading_deg(count),
        tas_mps(count),
        target_heading_deg(count),
        target_tas_mps(count),
        target_cas_mps(count),
        lat(count),
        lon(count),
        heading(count) {}

  [[nodiscard]] std::size_t size() const { return lat_deg.size(); }

  // Straight and level at this CAS: the targets are the state itself.
  void place(std::size_t i, double latitude_deg, double longitude_deg, double course_deg, double cas_mps,
             const Atmosphere& air) {
    lat_deg[i] = latitude_deg;
    lon_deg[i] = longitude_deg;
    heading_deg[i] = target_heading_deg[i] = wrap_360(course_deg);
    target_cas_mps[i] = cas_mps;
    tas_mps[i] = target_tas_mps[i] = air.tas_of_cas(cas_mps);
    lat[i] = sin_cos_deg(latitude_deg);
    lon[i] = sin_cos_deg(longitude_deg);
    heading[i] = sin_cos_deg(heading_deg[i]);
  }

  void aim_speed(std::size_t i, double cas_mps, const Atmosphere& air) {
    target_cas_mps[i] = cas_mps;
    target_tas_mps[i] = air.tas_of_cas(cas_mps);
  }
  // Keeps flying as it does now.
  void hold_speed(std::size_t i, const Atmosphere& air) {
    target_cas_mps[i] = cas_mps(i, air);
    target_tas_mps[i] = tas_mps[i];
  }
  [[nodiscard]] double cas_mps(std::size_t i, const Atmosphere& air) const {
    return tas_mps[i] == target_tas_mps[i] ? target_cas_mps[i] : air.cas_of_tas(tas_mps[i]);
  }

  [[nodiscard]] Vec3 position(std::size_t i) const {
    return {lat[i].cos * lon[i].cos, lat[i].cos * lon[i].sin, lat[i].sin};
  }

  template <class Archive>
  void archive(Archive& ar) {
    ar(lat_deg, lon_deg, heading_deg, tas_mps, target_heading_deg, target_tas_mps, target_cas_mps, lat, lon, heading);
  }

  std::vector<double> lat_deg, lon_deg, heading_deg, tas_mps;
  std::vector<double> target_heading_deg, target_tas_mps, target_cas_mps;
  std::vector<SinCos> lat, lon, heading;
};

// Flies aircraft i for `substeps` steps of dt_s and hands each new position to visit(substep, unit vector), which
// returns false to stop there. `airframe` says how quickly it changes speed, as Performance does.
template <class Airframe, class Visit>
void fly(Fleet& fleet, std::size_t i, const Airframe& airframe, const Wind& wind, double dt_s, int substeps,
         Visit&& visit) {
  double lat_deg = fleet.lat_deg[i];
  double lon_deg = fleet.lon_deg[i];
  double heading_deg = fleet.heading_deg[i];
  double tas = fleet.tas_mps[i];
  SinCos lat = fleet.lat[i];
  SinCos lon = fleet.lon[i];
  SinCos heading = fleet.heading[i];
  const double target_tas = fleet.target_tas_mps[i];
  const double target_heading_deg = fleet.target_heading_deg[i];

  const double rad_per_mps = dt_s / kEarthRadiusM;
  bool speeding = tas != target_tas;
  bool turning = heading_deg != target_heading_deg;
  double to_turn_deg = turning ? wrap_180(target_heading_deg - heading_deg) : 0.0;
  SinCos turn;               // of one substep at the present speed
  double turn_deg = -1.0;    // negative: not known for this speed
  bool new_velocity = true;  // the quantities below must be worked out again
  double north_rad = 0.0;    // travelled in one substep
  double east_rad = 0.0;
  SinCos north;

  for (int s = 0; s < substeps; ++s) {
    if (speeding) {
      const double step = airframe.acceleration(tas) * dt_s;
      const double missing = target_tas - tas;
      speeding = std::abs(missing) > step;
      tas = speeding ? tas + std::copysign(step, missing) : target_tas;
      turn_deg = -1.0;
      new_velocity = true;
    }
    if (turning) {
      if (turn_deg < 0.0) {
        const double turn_rad = kTurnAcceleration / tas * dt_s;
        turn_deg = degrees(turn_rad);
        turn = sin_cos(turn_rad);
      }
      turning = std::abs(to_turn_deg) > turn_deg;
      if (turning) {
        const double side = std::copysign(1.0, to_turn_deg);
        heading = sum(heading, {side * turn.sin, turn.cos});
        heading_deg += side * turn_deg;
        to_turn_deg -= side * turn_deg;
        if (heading_deg < 0.0) heading_deg += 360.0;
        if (heading_deg >= 360.0) heading_deg -= 360.0;  // in this order: -1e-20 + 360 rounds to 360
      } else {
        heading_deg = target_heading_deg;
        heading = sum(heading, sin_cos(radians(to_turn_deg)));
      }
      new_velocity = true;
    }
    if (new_velocity) {
      north_rad = (tas * heading.cos + wind.north_mps) * rad_per_mps;
      east_rad = (tas * heading.sin + wind.east_mps) * rad_per_mps;
      north = sin_cos_tiny(north_rad);
      new_velocity = false;
    }
    lat = sum(lat, north);
    lat_deg += degrees(north_rad);
    const double lon_rad = east_rad / std::max(lat.cos, 1e-3);  // finite even over a pole
    lon = sum(lon, sin_cos_tiny(lon_rad));
    lon_deg += degrees(lon_rad);
    if (!visit(s, Vec3{lat.cos * lon.cos, lat.cos * lon.sin, lat.sin})) break;
  }

  fleet.lat_deg[i] = lat_deg;
  fleet.lon_deg[i] = lon_deg;
  fleet.heading_deg[i] = heading_deg;
  fleet.tas_mps[i] = tas;
  fleet.lat[i] = lat;
  fleet.lon[i] = lon;
  fleet.heading[i] = heading;
}

}  // namespace slipstream::airspace
