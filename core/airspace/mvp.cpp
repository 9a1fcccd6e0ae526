#include "airspace/mvp.hpp"

#include <algorithm>
#include <cmath>

namespace slipstream::airspace {
namespace {

constexpr double kLookAheadS = 300.0;
constexpr double kMargin = 1.05;  // of the separation minimum
constexpr double kBouncingDeg = 30.0;
constexpr double kHeadOnNm = 10.0 / kNauticalMile;  // closer than 10 m at CPA: no side to choose from, take one
constexpr double kLeastTimeS = 1.0;

// The action that comes closest to this ground velocity (own frame) within one decision.
Action toward(const AirspaceConfig& config, const Scene& scene, std::size_t i, const Vec2& ground_mps) {
  const Vec2 wind = scene.wind_mps(i);
  const Vec2 air{ground_mps.x - wind.x, ground_mps.y - wind.y};
  const double turn_deg = degrees(std::atan2(air.x, air.y));
  const Performance& performance = scene.performance(i);
  const Atmosphere& atmosphere = performance.atmosphere();
  const double cas = performance.limit_cas(atmosphere.cas_of_tas(norm(air)));
  const double faster_kt = (cas - scene.fleet.cas_mps(i, atmosphere)) / kKnot;
  const auto share = [](double wanted, double step) {
    return step > 0.0 ? static_cast<float>(std::clamp(wanted / step, -1.0, 1.0)) : 0.0F;
  };
  return {share(turn_deg, config.heading_step_deg), share(faster_kt, config.speed_step_kt)};
}

// Straight to the waypoint at the entry airspeed, crabbing into the wind.
Vec2 direct_velocity_mps(const Scene& scene, std::size_t i) {
  const Vec2& direction = scene.guidance[i].direction;
  const Vec2 wind = scene.wind_mps(i);
  const double tas = scene.performance(i).atmosphere().tas_of_cas(scene.cruise_cas_mps[i]);
  const double across = wind.x * direction.y - wind.y * direction.x;
  const double speed = std::sqrt(std::max(0.0, tas * tas - across * across)) + dot(wind, direction);
  return {speed * direction.x, speed * direction.y};
}

bool in_conflict(const Relative& relative, double radius_nm) {
  const double range = norm(relative.offset_nm);
  if (range < radius_nm) return true;
  const Cpa cpa = closest_approach(relative.offset_nm, relative.velocity_nmps);
  if (cpa.time_s <= 0.0 || cpa.distance >= radius_nm) return false;
  const double speed = norm(relative.velocity_nmps);
  const double time_in = cpa.time_s - std::sqrt(radius_nm * radius_nm - cpa.distance * cpa.distance) / speed;
  return time_in < kLookAheadS;
}

// The change of own velocity, NM/s, that leaves the other aircraft on the rim of the protected zone.
Vec2 resolution(const Relative& relative, double radius_nm) {
  const double range = norm(relative.offset_nm);
  Cpa cpa = closest_approach(relative.offset_nm, relative.velocity_nmps);
  if (cpa.distance <= kHeadOnNm) {
    const double unit = kHeadOnNm / std::max(range, kHeadOnNm);
    cpa.offset = {relative.offset_nm.y * unit, -relative.offset_nm.x * unit};
    cpa.distance = kHeadOnNm;
  }
  double effective = radius_nm;
  if (range > radius_nm && range > cpa.distance)
    effective = radius_nm / std::cos(std::asin(radius_nm / range) - std::asin(cpa.distance / range));
  const double push = (effective - cpa.distance) / (std::max(std::abs(cpa.time_s), kLeastTimeS) * cpa.distance);
  return {-push * cpa.offset.x, -push * cpa.offset.y};
}

// A conflict is over once past the closest point, apart, and not flying side by side just outside the zone.
bool is_over(const Scene& scene, std::size_t own, std::size_t other, const Relative& relative, double separation_nm) {
  const double range = norm(relative.offset_nm);
  const bool past = dot(relative.offset_nm, relative.velocity_nmps) > 0.0;
  const bool bouncing =
      std::abs(wrap_180(scene.fleet.heading_deg[own] - scene.fleet.heading_deg[other])) < kBouncingDeg &&
      range < kMargin * separation_nm;
  return past && range >= separation_nm && !bouncing;
}

}  // namespace

Action direct_action(const AirspaceConfig& config, const Scene& scene, std::size_t own) {
  return toward(config, scene, own, direct_velocity_mps(scene, own));
}

Action mvp_action(const AirspaceConfig& config, Scene& scene, std::size_t own) {
  bool active = false;
  Vec2 change;
  for (std::size_t other = 0; other < scene.size(); ++other) {
    std::uint8_t& resolving = scene.resolving[own * scene.size() + other];
    if (other == own || !scene.present[other]) {
      resolving = 0;
      continue;
    }
    const Relative relative = scene.relative(own, other);
    if (in_conflict(relative, config.separation_nm)) {
      resolving = 1;
      const Vec2 push = resolution(relative, kMargin * config.separation_nm);
      change = {change.x + push.x, change.y + push.y};
    } else if (resolving && is_over(scene, own, other, relative, config.separation_nm)) {
      resolving = 0;
    }
    active |= resolving != 0;
  }
  if (!active) return direct_action(config, scene, own);
  const Vec2 now = scene.ground_velocity_mps(own);
  return toward(config, scene, own, {now.x + change.x * kNauticalMile, now.y + change.y * kNauticalMile});
}

}  // namespace slipstream::airspace
