#include "airspace/scene.hpp"

#include <limits>

namespace slipstream::airspace {
namespace {

Vec3 sum(double a, const Vec3& u, double b, const Vec3& v) {
  return {a * u.x + b * v.x, a * u.y + b * v.y, a * u.z + b * v.z};
}

}  // namespace

void Scene::refresh() {
  for (std::size_t i = 0; i < size(); ++i) {
    if (!present[i]) continue;
    const SinCos& lat = fleet.lat[i];
    const SinCos& lon = fleet.lon[i];
    const SinCos& h = fleet.heading[i];
    const Vec3 east{-lon.sin, lon.cos, 0.0};
    const Vec3 north{-lat.sin * lon.cos, -lat.sin * lon.sin, lat.cos};
    position[i] = fleet.position(i);
    axes[i].right = sum(h.cos, east, -h.sin, north);
    axes[i].forward = sum(h.sin, east, h.cos, north);
    const double tas = fleet.tas_mps[i];
    velocity_mps[i] = sum(tas * h.sin + wind.east_mps, east, tas * h.cos + wind.north_mps, north);

    const Vec3 d = waypoint[i].position - position[i];
    const Vec2 offset = axes[i].seen(d);
    const double length = norm(offset);
    Vec2 direction{0.0, 1.0};  // overhead: straight ahead
    if (length > 1e-12) direction = {offset.x / length, offset.y / length};
    guidance[i] = {nm_of_chord2(dot(d, d)), direction, degrees(std::atan2(direction.x, direction.y))};
  }
}

Relative Scene::relative(std::size_t own, std::size_t other) const {
  const Vec2 r = axes[own].seen(position[other] - position[own]);
  const Vec2 v = axes[own].seen(velocity_mps[other] - velocity_mps[own]);
  constexpr double kNmPerM = 1.0 / kNauticalMile;
  return {{r.x * kSeparationRadiusNm, r.y * kSeparationRadiusNm}, {v.x * kNmPerM, v.y * kNmPerM}};
}

double Scene::own_separation_nm(std::size_t i) const {
  double least = std::numeric_limits<double>::infinity();
  if (!present[i]) return least;
  for (std::size_t j = 0; j < size(); ++j) {
    if (j == i || !present[j]) continue;
    const Vec3 d = position[i] - position[j];
    least = std::min(least, dot(d, d));
  }
  return std::isfinite(least) ? nm_of_chord2(least) : least;
}

double Scene::least_separation_nm() const {
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < size(); ++i) {
    if (!present[i]) continue;
    for (std::size_t j = i + 1; j < size(); ++j) {
      if (!present[j]) continue;
      const Vec3 d = position[i] - position[j];
      least = std::min(least, dot(d, d));
    }
  }
  return std::isfinite(least) ? nm_of_chord2(least) : least;
}

}  // namespace slipstream::airspace
