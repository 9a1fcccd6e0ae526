#include "airspace/horizontal_cr.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>

#include "airspace/mvp.hpp"

namespace slipstream::airspace {
namespace {

enum Script { kNoop, kDirect, kMvp };

constexpr double kStartLatDeg = 52.0;
constexpr double kStartLonDeg = 4.0;
constexpr const char* kType = "A320";
constexpr double kGroundFt = 0.0;

// The published draws, in whole units: from the first number, this many.
constexpr std::uint32_t kAngleFrom = 45, kAngles = 270;            // degrees between the courses
constexpr std::uint32_t kCpas = 5;                                 // NM, from 0
constexpr std::uint32_t kUntilLostFrom = 100, kUntilLost = 900;    // s
constexpr std::uint32_t kWaypointKmFrom = 100, kWaypointKms = 50;  // km, due north

// The published scales.
constexpr double kDistanceScaleKm = 150.0;
constexpr double kSpeedScaleMps = 150.0;
constexpr float kBound = 32.0F;  // of any feature; distances of a published episode stay below 25

constexpr double kKmPerNm = kNauticalMile / 1000.0;
constexpr double kEarthRadiusKm = kEarthRadiusM / 1000.0;

struct Braking {
  double mps2;
  [[nodiscard]] double acceleration(double /*tas_mps*/) const { return mps2; }
};

void require(bool fine, const char* sentence) {
  if (!fine) throw std::invalid_argument(sentence);
}

// Where something is, seen from a heading: how far, and the cosine and sine of heading minus bearing.
struct Direction {
  double distance_nm;
  double cos;
  double sin;
};
Direction direction(const SinCos& heading, const Vec2& offset_nm) {
  const double distance = norm(offset_nm);
  if (distance == 0.0) return {0.0, heading.cos, heading.sin};  // overhead: the bearing counts as north
  const double north = offset_nm.y / distance;
  const double east = offset_nm.x / distance;
  return {distance, heading.cos * north + heading.sin * east, heading.sin * north - heading.cos * east};
}

}  // namespace

void HorizontalCrConfig::validate() const {
  check_fields(*this);
  const double steps = decision_s / substep_s;
  require(initial_speed_mps >= cruise_speed_mps, "initial_speed_mps must be at least cruise_speed_mps");
  if (steps < 1.0 || steps > kMaxSubsteps || steps != std::floor(steps))
    throw std::invalid_argument("decision_s is " + std::to_string(decision_s) +
                                "; it must be 1 to 64 times substep_s, which is " + std::to_string(substep_s));
}

WorldSpec HorizontalCrWorld::spec(const HorizontalCrConfig& config) {
  config.validate();
  WorldSpec spec;
  spec.name = "horizontal_cr";
  spec.agents = {"KL001"};
  spec.roles = {"aircraft"};
  ObsBlock block;
  block.name = "obs";
  for (const char* name :
       {"intruder_distance", "cos_difference_pos", "sin_difference_pos", "x_difference_speed", "y_difference_speed"}) {
    for (int i = 0; i < config.num_intruders; ++i)
      block.features.push_back(std::string(name) + "_" + std::to_string(i));
  }
  for (const char* name : {"waypoint_distance", "cos_drift", "sin_drift"}) block.features.emplace_back(name);
  block.shape = {static_cast<int>(block.features.size())};
  block.low = -kBound;
  block.high = kBound;
  spec.obs = {block};
  spec.action.size = 1;
  spec.action.names = {"heading_delta"};
  spec.action.table = {{-1.0F}, {-0.5F}, {0.0F}, {0.5F}, {1.0F}};
  spec.reward_parts = {"reach", "drift", "intrusion"};
  spec.stats = {"intrusions", "los_seconds",       "min_separation_nm", "mean_drift_deg",
                "reached",    "extra_distance_nm", "flight_seconds",    "clean"};
  spec.frame_fields = {"lat_deg", "lon_deg", "heading_deg", "tas_mps", "waypoint_lat_deg", "waypoint_lon_deg"};
  for (int i = 0; i < config.num_intruders; ++i) {
    for (const char* name : {"lat_deg", "lon_deg", "heading_deg", "tas_mps"})
      spec.frame_fields.push_back("intruder_" + std::to_string(i) + "_" + name);
  }
  spec.scripts = {"noop", "direct", "mvp"};
  spec.max_episode_steps = config.max_episode_steps;
  spec.tick_seconds = config.decision_s;
  return spec;
}

HorizontalCrWorld::HorizontalCrWorld(const HorizontalCrConfig& config)
    : config_((config.validate(), config)),
      lost_chord2_(chord2_of_nm(config.separation_nm)),
      scene_(static_cast<std::size_t>(config.num_intruders) + 1) {
  rules_.heading_step_deg = config.heading_step_deg;
  rules_.speed_step_kt = 0.0;
  rules_.separation_nm = config.separation_nm;
  scene_.performances = {shared_performance(kType, kGroundFt)};
  std::fill(scene_.present.begin(), scene_.present.end(), std::uint8_t{1});
}

// --- starting

void HorizontalCrWorld::reset(const Rng& rng, const Slices& s) {
  Rng stream = rng;
  place(0, kStartLatDeg, kStartLonDeg, 0.0);
  for (std::size_t i = 1; i < scene_.size(); ++i) {
    const std::uint32_t angle = kAngleFrom + stream.below(kAngles);
    const std::uint32_t cpa = stream.below(kCpas);
    const std::uint32_t until_lost = kUntilLostFrom + stream.below(kUntilLost);
    place_intruder(i, angle, cpa, until_lost);
  }
  const double waypoint_km = kWaypointKmFrom + stream.below(kWaypointKms);
  scene_.waypoint[0] = waypoint_at(kStartLatDeg + degrees(waypoint_km / kEarthRadiusKm), kStartLonDeg);
  std::fill(scene_.resolving.begin(), scene_.resolving.end(), std::uint8_t{0});

  steps_ = 0;
  figures_ = {};
  for (std::size_t i = 1; i < scene_.size(); ++i) {
    const Vec3 d = scene_.fleet.position(i) - scene_.fleet.position(0);
    figures_.least_chord2 = std::min(figures_.least_chord2, dot(d, d));
  }
  const Sight sight = observe(s.obs_f32(0));
  figures_.direct_nm = figures_.left_nm = sight.waypoint_km / kKmPerNm;
  s.acting[0] = 1;
  write_stats(s.stats);
}

void HorizontalCrWorld::place(std::size_t i, double lat_deg, double lon_deg, double heading_deg) {
  const Atmosphere& air = scene_.performance(i).atmosphere();
  scene_.fleet.place(i, lat_deg, lon_deg, heading_deg, config_.initial_speed_mps, air);
  scene_.fleet.aim_speed(i, config_.cruise_speed_mps, air);
  scene_.cruise_cas_mps[i] = config_.cruise_speed_mps;
}

// An intruder at the agent's own speed whose course makes this angle with the agent's, who passes it at this distance
// if nobody turns and loses separation after this time at the initial speed, over a flat earth.
void HorizontalCrWorld::place_intruder(std::size_t i, double angle_deg, double cpa_nm, double until_lost_s) {
  const Fleet& fleet = scene_.fleet;
  const double speed = fleet.tas_mps[0] / kNauticalMile;
  const double course_deg = fleet.heading_deg[0] + angle_deg;
  // The agent's velocity as the intruder sees it.
  const Vec2 v{speed * fleet.heading[0].sin - velocity_east(course_deg, speed),
               speed * fleet.heading[0].cos - velocity_north(course_deg, speed)};
  const double relative_speed = norm(v);
  const double half_chord2 = config_.separation_nm * config_.separation_nm - cpa_nm * cpa_nm;
  const double along = until_lost_s * relative_speed + std::sqrt(std::max(0.0, half_chord2));
  // Straight ahead along the relative velocity, and the miss distance to the left of it.
  const Vec2 ahead{v.x / relative_speed, v.y / relative_speed};
  const double east_nm = along * ahead.x - cpa_nm * ahead.y;
  const double north_nm = along * ahead.y + cpa_nm * ahead.x;
  place(i, fleet.lat_deg[0] + north_nm / kNmPerDegree, fleet.lon_deg[0] + east_nm / (kNmPerDegree * fleet.lat[0].cos),
        course_deg);
}

// --- one decision

void HorizontalCrWorld::step(const Slices& s) {
  ++steps_;
  const float axis = s.action[0];
  const double turn_deg =
      std::isnan(axis) ? 0.0 : std::clamp(static_cast<double>(axis), -1.0, 1.0) * config_.heading_step_deg;
  Fleet& fleet = scene_.fleet;
  fleet.target_heading_deg[0] = turn_deg == 0.0 ? fleet.heading_deg[0] : wrap_360(fleet.heading_deg[0] + turn_deg);
  fly_decision();

  const Sight sight = observe(s.obs_f32(0));
  const bool reached = sight.waypoint_km < config_.waypoint_radius_km;
  const double parts[] = {reached ? config_.reach_reward : 0.0, config_.drift_penalty_per_rad * sight.drift_rad,
                          config_.intrusion_penalty * sight.intrusions};
  s.rewards[0] = static_cast<float>(parts[0] + parts[1] + parts[2]);
  if (s.reward_parts != nullptr)
    std::transform(std::begin(parts), std::end(parts), s.reward_parts, [](double p) { return static_cast<float>(p); });
  s.terminated[0] = reached;
  s.truncated[0] = !reached && steps_ >= config_.max_episode_steps;

  figures_.intrusions += sight.intrusions;
  figures_.drift_rad += sight.drift_rad;
  figures_.left_nm = sight.waypoint_km / kKmPerNm;
  figures_.reached = reached;
  write_stats(s.stats);
}

// Separation is followed at every substep, although rewards look only at the last one.
void HorizontalCrWorld::fly_decision() {
  Fleet& fleet = scene_.fleet;
  const int substeps = config_.substeps();
  const Braking braking{config_.braking_mps2};
  std::array<Vec3, kMaxSubsteps> own;
  std::array<double, kMaxSubsteps> nearest;
  double flown = 0.0;
  Vec3 last = fleet.position(0);
  fly(fleet, 0, braking, {}, config_.substep_s, substeps, [&](int k, const Vec3& p) {
    const auto at = static_cast<std::size_t>(k);
    const Vec3 d = p - last;
    flown += std::sqrt(dot(d, d));
    own[at] = last = p;
    nearest[at] = std::numeric_limits<double>::infinity();
    return true;
  });
  figures_.flown_nm += flown * kSeparationRadiusNm;
  for (std::size_t i = 1; i < scene_.size(); ++i) {
    fly(fleet, i, braking, {}, config_.substep_s, substeps, [&](int k, const Vec3& p) {
      const auto at = static_cast<std::size_t>(k);
      const Vec3 d = p - own[at];
      nearest[at] = std::min(nearest[at], dot(d, d));
      return true;
    });
  }
  for (std::size_t k = 0; k < static_cast<std::size_t>(substeps); ++k) {
    figures_.least_chord2 = std::min(figures_.least_chord2, nearest[k]);
    figures_.lost_substeps += nearest[k] < lost_chord2_ ? 1.0 : 0.0;
  }
}

// --- showing

HorizontalCrWorld::Sight HorizontalCrWorld::observe(float* out) const {
  const Fleet& fleet = scene_.fleet;
  const auto intruders = static_cast<std::size_t>(config_.num_intruders);
  const SinCos& heading = fleet.heading[0];
  const double speed = fleet.tas_mps[0];
  const auto seen = [&](double lat_deg, double lon_deg) {
    return direction(heading, flat_offset_nm(fleet.lat_deg[0], fleet.lon_deg[0], lat_deg, lon_deg));
  };
  const auto scaled_distance = [](double km) { return std::min(static_cast<float>(km / kDistanceScaleKm), kBound); };

  Sight sight;
  for (std::size_t i = 0; i < intruders; ++i) {
    const Direction to = seen(fleet.lat_deg[i + 1], fleet.lon_deg[i + 1]);
    sight.intrusions += to.distance_nm < config_.separation_nm;
    out[i] = scaled_distance(to.distance_nm * kKmPerNm);
    out[intruders + i] = static_cast<float>(to.cos);
    out[2 * intruders + i] = static_cast<float>(to.sin);
    // As published: x is minus the intruder's speed along own course, y own speed minus the intruder's across it.
    const SinCos& other = fleet.heading[i + 1];
    const double other_speed = fleet.tas_mps[i + 1];
    const double cos = heading.cos * other.cos + heading.sin * other.sin;
    const double sin = heading.sin * other.cos - heading.cos * other.sin;
    out[3 * intruders + i] = static_cast<float>(-cos * other_speed / kSpeedScaleMps);
    out[4 * intruders + i] = static_cast<float>((speed - sin * other_speed) / kSpeedScaleMps);
  }
  const Direction goal = seen(scene_.waypoint[0].lat_deg, scene_.waypoint[0].lon_deg);
  sight.waypoint_km = goal.distance_nm * kKmPerNm;
  sight.drift_rad = std::abs(std::atan2(goal.sin, goal.cos));
  out[5 * intruders] = scaled_distance(sight.waypoint_km);
  out[5 * intruders + 1] = static_cast<float>(goal.cos);
  out[5 * intruders + 2] = static_cast<float>(goal.sin);
  return sight;
}

void HorizontalCrWorld::write_stats(double* stats) const {
  *stats++ = figures_.intrusions;
  *stats++ = figures_.lost_substeps * config_.substep_s;
  *stats++ = nm_of_chord2(figures_.least_chord2);
  *stats++ = steps_ == 0 ? 0.0 : degrees(figures_.drift_rad / steps_);
  *stats++ = figures_.reached;
  *stats++ = figures_.flown_nm + figures_.left_nm - figures_.direct_nm;
  *stats++ = steps_ * config_.decision_s;
  *stats = figures_.lost_substeps == 0.0 && figures_.reached != 0.0 ? 1.0 : 0.0;
}

void HorizontalCrWorld::scripted(int script, int /*agent*/, const Slices& s) {
  s.action[0] = 0.0F;
  if (script == kNoop) return;
  scene_.refresh();
  s.action[0] = script == kMvp ? mvp_action(rules_, scene_, 0).heading : direct_action(rules_, scene_, 0).heading;
}

void HorizontalCrWorld::frame(double* out) const {
  const Fleet& fleet = scene_.fleet;
  for (std::size_t i = 0; i < scene_.size(); ++i) {
    *out++ = fleet.lat_deg[i];
    *out++ = fleet.lon_deg[i];
    *out++ = fleet.heading_deg[i];
    *out++ = fleet.tas_mps[i];
    if (i > 0) continue;
    *out++ = scene_.waypoint[0].lat_deg;
    *out++ = scene_.waypoint[0].lon_deg;
  }
}

}  // namespace slipstream::airspace
