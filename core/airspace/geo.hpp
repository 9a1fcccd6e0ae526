// Units, distances and closest approach: the geometry every other airspace file is written in.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace slipstream::airspace {

inline constexpr double kKnot = 0.514444;  // m/s
inline constexpr double kFoot = 0.3048;    // m
inline constexpr double kNauticalMile = 1852.0;
inline constexpr double kGravity = 9.80665;              // m/s^2
inline constexpr double kEarthRadiusM = 6371000.0;       // what aircraft move over
inline constexpr double kSeparationRadiusNm = 3440.065;  // what separation is measured with
inline constexpr double kDegree = std::numbers::pi / 180.0;

inline double radians(double degrees) { return degrees * kDegree; }
inline double degrees(double radians) { return radians * (180.0 / std::numbers::pi); }

// Into [0, 360).
inline double wrap_360(double angle_deg) {
  if (angle_deg >= 0.0 && angle_deg < 360.0) return angle_deg;
  const double wrapped = std::fmod(angle_deg, 360.0);
  const double positive = wrapped < 0.0 ? wrapped + 360.0 : wrapped;
  return positive < 360.0 ? positive : 0.0;  // -1e-20 + 360 rounds to 360
}

// Into [-180, 180): the shorter way round.
inline double wrap_180(double angle_deg) { return wrap_360(angle_deg + 180.0) - 180.0; }

// In a plane: x is east or right, y is north or forward.
struct Vec2 {
  double x = 0.0;
  double y = 0.0;
};
inline double dot(const Vec2& a, const Vec2& b) { return a.x * b.x + a.y * b.y; }
inline double norm(const Vec2& a) { return std::sqrt(dot(a, a)); }

struct Vec3 {
  double x = 0.0;
  double y = 0.0;
  double z = 0.0;
};
inline Vec3 operator-(const Vec3& a, const Vec3& b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
inline double dot(const Vec3& a, const Vec3& b) { return a.x * b.x + a.y * b.y + a.z * b.z; }

// The point of the unit sphere at a latitude and longitude. Half the squared chord between two of these is the
// haversine, so pair distances need no trigonometry.
inline Vec3 unit_vector(double lat_deg, double lon_deg) {
  const double cos_lat = std::cos(radians(lat_deg));
  return {cos_lat * std::cos(radians(lon_deg)), cos_lat * std::sin(radians(lon_deg)), std::sin(radians(lat_deg))};
}
inline double chord2_of_nm(double distance_nm) {
  const double half = std::sin(0.5 * distance_nm / kSeparationRadiusNm);
  return 4.0 * half * half;
}
// The arc sine's series is exact to double precision below a chord of 0.1 (344 NM), where nearly all calls are.
inline double nm_of_chord2(double chord2) {
  const double half = 0.5 * std::sqrt(chord2);
  if (half > 0.05) return 2.0 * kSeparationRadiusNm * std::asin(std::min(1.0, half));
  const double q = half * half;
  const double series =
      1.0 + q * (1.0 / 6.0 + q * (3.0 / 40.0 + q * (5.0 / 112.0 + q * (35.0 / 1152.0 + q * (63.0 / 2816.0)))));
  return 2.0 * kSeparationRadiusNm * half * series;
}

inline double haversine_nm(double lat1_deg, double lon1_deg, double lat2_deg, double lon2_deg) {
  const double half_lat = std::sin(0.5 * radians(lat2_deg - lat1_deg));
  const double half_lon = std::sin(0.5 * radians(lon2_deg - lon1_deg));
  const double h =
      half_lat * half_lat + std::cos(radians(lat1_deg)) * std::cos(radians(lat2_deg)) * half_lon * half_lon;
  return 2.0 * kSeparationRadiusNm * std::asin(std::min(1.0, std::sqrt(h)));
}

// Offset of point 2 from point 1 over a flat earth at their mean latitude, NM.
inline Vec2 flat_offset_nm(double lat1_deg, double lon1_deg, double lat2_deg, double lon2_deg) {
  const double radius_nm = kEarthRadiusM / kNauticalMile;
  double lon_deg = lon2_deg - lon1_deg;
  if (std::abs(lon_deg) > 180.0) lon_deg = wrap_180(lon_deg);  // across the date line
  return {radius_nm * radians(lon_deg) * std::cos(radians(0.5 * (lat1_deg + lat2_deg))),
          radius_nm * radians(lat2_deg - lat1_deg)};
}

inline double flat_bearing_deg(double lat1_deg, double lon1_deg, double lat2_deg, double lon2_deg) {
  const Vec2 offset = flat_offset_nm(lat1_deg, lon1_deg, lat2_deg, lon2_deg);
  return degrees(std::atan2(offset.x, offset.y));
}

// Scenario offsets, NM from a reference point: 60 NM to a degree of latitude, as the published geometries use.
inline constexpr double kNmPerDegree = 60.0;

inline double velocity_east(double heading_deg, double speed) { return speed * std::sin(radians(heading_deg)); }
inline double velocity_north(double heading_deg, double speed) { return speed * std::cos(radians(heading_deg)); }

// Where a pair flying straight on comes closest. Relative means the other minus own; any one unit of length.
struct Cpa {
  double time_s = 0.0;
  double distance = 0.0;
  Vec2 offset;  // of the other from own at that time
};

inline Cpa closest_approach(const Vec2& r, const Vec2& v, double earliest_s = -std::numeric_limits<double>::infinity(),
                            double latest_s = std::numeric_limits<double>::infinity()) {
  const double speed2 = dot(v, v);
  // Below this relative speed the pair keeps its distance for any horizon of interest.
  const double free_s = speed2 < 1e-12 ? 0.0 : -dot(r, v) / speed2;
  const double t = std::clamp(free_s, earliest_s, latest_s);
  const Vec2 offset{r.x + v.x * t, r.y + v.y * t};
  return {t, norm(offset), offset};
}

// DO-365 well clear, en route: 4000 ft, 450 ft, modified tau 35 s. Near mid-air collision: 500 ft, 100 ft.
inline constexpr double kWellClearNm = 4000.0 * kFoot / kNauticalMile;
inline constexpr double kWellClearVerticalFt = 450.0;
inline constexpr double kWellClearTauS = 35.0;
inline constexpr double kNmacNm = 500.0 * kFoot / kNauticalMile;

// Time to the well-clear cylinder, seconds, or NaN for a pair that is not closing. NM and NM/s.
inline double modified_tau_s(const Vec2& r, const Vec2& v) {
  const double closing = dot(r, v);
  if (closing >= 0.0) return std::numeric_limits<double>::quiet_NaN();
  return (kWellClearNm * kWellClearNm - dot(r, r)) / closing;
}

// Distance at the closest point still ahead, NM.
inline double horizontal_miss_nm(const Vec2& r, const Vec2& v) {
  const Cpa cpa = closest_approach(r, v);
  return cpa.time_s > 0.0 ? cpa.distance : norm(r);
}

inline bool violates_well_clear(const Vec2& r, const Vec2& v) {
  if (norm(r) <= kWellClearNm) return true;
  const double tau = modified_tau_s(r, v);
  return tau >= 0.0 && tau <= kWellClearTauS && horizontal_miss_nm(r, v) <= kWellClearNm;  // false for NaN
}

}  // namespace slipstream::airspace
