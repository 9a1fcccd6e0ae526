#include "airspace/observation.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "airspace/reward.hpp"

namespace slipstream::airspace {
namespace {

// Scales that bring ordinary traffic to about [-1, 1]; features are cut at +-kBound.
constexpr float kBound = 3.0F;
constexpr double kOffsetNm = 20.0;
constexpr double kSpeedMps = 300.0;  // two aircraft meeting nose to nose
constexpr double kHorizonS = 300.0;
constexpr double kMissNm = 10.0;
constexpr double kGroundSpeedMps = 200.0;
constexpr double kSidewindMps = 50.0;

constexpr std::size_t kOwnFeatures = 6;  // beside time_left
constexpr std::array kNeighborNames{"present",        "forward",     "right",    "velocity_forward",
                                    "velocity_right", "distance",    "closing",  "cpa_time",
                                    "cpa_distance",   "cpa_forward", "cpa_right"};
constexpr std::size_t kNeighborFeatures = kNeighborNames.size();
constexpr std::size_t kLegacyOwnFeatures = 6;

constexpr float kLegacyBound = 150.0F;

constexpr std::size_t kStatePerAircraft = 8;
constexpr std::size_t kStateOfScene = 2;
constexpr double kStateOffsetNm = 50.0;

float cut(double value, float low = -kBound, float high = kBound) {
  return std::clamp(static_cast<float>(value), low, high);
}

// -1 at the slowest an aircraft may fly, 1 at the fastest.
double speed_in_envelope(const Scene& scene, std::size_t i) {
  const Performance& p = scene.performance(i);
  return 2.0 * (scene.fleet.tas_mps[i] - p.min_tas_mps()) / (p.max_tas_mps() - p.min_tas_mps()) - 1.0;
}

}  // namespace

ObsBlock observation_block(const AirspaceConfig& config) {
  ObsBlock block;
  block.name = "obs";
  std::vector<std::string>& names = block.features;
  if (!config.legacy_observation()) {
    names = {"waypoint_distance", "waypoint_cos", "waypoint_sin", "speed", "ground_forward", "ground_right"};
    if (config.shows_time_left()) names.emplace_back("time_left");
    for (int k = 1; k <= config.neighbor_topk; ++k) {
      for (const char* name : kNeighborNames) names.push_back("neighbor" + std::to_string(k) + "_" + name);
    }
    block.low = -kBound;
    block.high = kBound;
  } else {
    names = {"wp_dist_norm", "cos_to_wp", "sin_to_wp", "airspeed", "progress_rate", "safety_rate"};
    for (const char* name : {"x_r", "y_r", "vx_r", "vy_r"}) {
      for (int k = 1; k <= config.neighbor_topk; ++k) names.push_back(name + std::to_string(k));
    }
    block.low = -kLegacyBound;
    block.high = kLegacyBound;
  }
  block.shape = {static_cast<int>(names.size())};
  return block;
}

std::vector<EntityRows> neighbor_rows(const AirspaceConfig& config) {
  if (config.legacy_observation() || config.neighbor_topk == 0) return {};
  const int own = static_cast<int>(kOwnFeatures) + (config.shows_time_left() ? 1 : 0);
  return {{"obs", own, {kNeighborNames.begin(), kNeighborNames.end()}}};
}

Observer::Observer(const AirspaceConfig& config)
    : legacy_(config.legacy_observation()),
      shows_time_left_(config.shows_time_left()),
      topk_(static_cast<std::size_t>(config.neighbor_topk)),
      near_(topk_ + 1),
      chord2_(topk_ + 1) {}

std::size_t Observer::find_nearest(const Scene& scene, std::size_t i) {
  std::size_t seen = 0;
  for (std::size_t j = 0; j < scene.size(); ++j) {
    if (j == i || !scene.present[j]) continue;
    const Vec3 d = scene.position[j] - scene.position[i];
    const double d2 = dot(d, d);
    std::size_t at = seen;
    for (; at > 0 && d2 < chord2_[at - 1]; --at) {
      chord2_[at] = chord2_[at - 1];
      near_[at] = near_[at - 1];
    }
    chord2_[at] = d2;
    near_[at] = j;
    seen = std::min(seen + 1, topk_);
  }
  return seen;
}

void Observer::write(const Scene& scene, std::size_t i, double time_left, const LegacyRates& rates, float* out) {
  const std::size_t seen = find_nearest(scene, i);
  if (legacy_) {
    write_legacy(scene, i, seen, rates, out);
    return;
  }
  write_own(scene, i, out);
  out += kOwnFeatures;
  if (shows_time_left_) *out++ = cut(time_left);
  write_neighbors(scene, i, seen, out);
}

void Observer::write_own(const Scene& scene, std::size_t i, float* out) {
  const Guidance& guidance = scene.guidance[i];
  const Vec2 ground = scene.ground_velocity_mps(i);
  out[0] = cut(guidance.distance_nm / (guidance.distance_nm + kOffsetNm));  // fine near by, never flat far away
  out[1] = cut(guidance.direction.y);
  out[2] = cut(guidance.direction.x);
  out[3] = cut(speed_in_envelope(scene, i));
  out[4] = cut(ground.y * (1.0 / kGroundSpeedMps));
  out[5] = cut(ground.x * (1.0 / kSidewindMps));
}

void Observer::write_neighbors(const Scene& scene, std::size_t i, std::size_t seen, float* row) const {
  // Reciprocals are constants; divisions would not be.
  constexpr double kPerOffset = 1.0 / kOffsetNm;
  constexpr double kPerSpeed = kNauticalMile / kSpeedMps;
  constexpr double kPerHorizon = 1.0 / kHorizonS;
  constexpr double kPerMiss = 1.0 / kMissNm;
  std::fill_n(row, topk_ * kNeighborFeatures, 0.0F);
  for (std::size_t k = 0; k < seen; ++k, row += kNeighborFeatures) {
    const auto [r, v] = scene.relative(i, near_[k]);
    const Cpa cpa = closest_approach(r, v, 0.0, kHorizonS);
    const double distance = norm(r);
    const double closing = distance > 1e-9 ? -dot(r, v) / distance : 0.0;
    row[0] = 1.0F;
    row[1] = cut(r.y * kPerOffset);
    row[2] = cut(r.x * kPerOffset);
    row[3] = cut(v.y * kPerSpeed);
    row[4] = cut(v.x * kPerSpeed);
    row[5] = cut(distance * kPerOffset);
    row[6] = cut(closing * kPerSpeed);
    row[7] = cut(cpa.time_s * kPerHorizon);
    row[8] = cut(cpa.distance * kPerMiss);
    row[9] = cut(cpa.offset.y * kPerMiss);
    row[10] = cut(cpa.offset.x * kPerMiss);
  }
}

void Observer::write_legacy(const Scene& scene, std::size_t i, std::size_t seen, const LegacyRates& rates,
                            float* out) const {
  const Fleet& fleet = scene.fleet;
  const Waypoint& goal = scene.waypoint[i];
  const double bearing = flat_bearing_deg(fleet.lat_deg[i], fleet.lon_deg[i], goal.lat_deg, goal.lon_deg);
  const SinCos to_waypoint = sin_cos_deg(bearing - fleet.heading_deg[i]);
  const double distance = haversine_nm(fleet.lat_deg[i], fleet.lon_deg[i], goal.lat_deg, goal.lon_deg);
  out[0] = cut(std::tanh(distance / 20.0));
  out[1] = cut(to_waypoint.cos);
  out[2] = cut(to_waypoint.sin);
  out[3] = cut((fleet.tas_mps[i] - 150.0) / 6.0, -10.0F, 10.0F);
  out[4] = cut(std::tanh(rates.progress_nm / 2.0));
  out[5] = cut(std::tanh(rates.separation_nm / 5.0));
  float* x = out + kLegacyOwnFeatures;
  std::fill_n(x, 4 * topk_, 0.0F);
  // The published scales: metres / 20,000 for offsets; NM/s / 32 and / 66 for velocities, whose axes are swapped.
  for (std::size_t k = 0; k < seen; ++k) {
    const std::size_t j = near_[k];
    const double east_m =
        kEarthRadiusM * radians(fleet.lon_deg[j] - fleet.lon_deg[i]) * std::cos(radians(fleet.lat_deg[i]));
    const double north_m = kEarthRadiusM * radians(fleet.lat_deg[j] - fleet.lat_deg[i]);
    const double v = fleet.tas_mps[i] / kNauticalMile;
    const double vj = fleet.tas_mps[j] / kNauticalMile;
    x[k] = cut(east_m / 20000.0, -12.0F, 12.0F);
    x[topk_ + k] = cut(north_m / 20000.0, -12.0F, 12.0F);
    x[2 * topk_ + k] = cut((vj * fleet.heading[j].cos - v * fleet.heading[i].cos) / 32.0, -kLegacyBound, kLegacyBound);
    x[3 * topk_ + k] = cut((vj * fleet.heading[j].sin - v * fleet.heading[i].sin) / 66.0, -kLegacyBound, kLegacyBound);
  }
}

int StateWriter::size(std::size_t aircraft) { return static_cast<int>(kStatePerAircraft * aircraft + kStateOfScene); }

StateWriter::StateWriter(const AirspaceConfig& config) : separation_nm_(config.separation_nm) {
  double lat_deg = 0.0;
  double lon_deg = 0.0;
  if (config.random_sector) {
    lat_deg = config.random_sector->center_lat_deg;
    lon_deg = config.random_sector->center_lon_deg;
  } else {
    Vec3 mean;
    for (const AircraftConfig& a : config.aircraft) {
      const Vec3 p = unit_vector(a.lat_deg, a.lon_deg);
      mean = {mean.x + p.x, mean.y + p.y, mean.z + p.z};
    }
    lat_deg = degrees(std::atan2(mean.z, std::hypot(mean.x, mean.y)));
    lon_deg = degrees(std::atan2(mean.y, mean.x));
  }
  const SinCos lat = sin_cos_deg(lat_deg);
  const SinCos lon = sin_cos_deg(lon_deg);
  origin_ = unit_vector(lat_deg, lon_deg);
  east_ = {-lon.sin, lon.cos, 0.0};
  north_ = {-lat.sin * lon.cos, -lat.sin * lon.sin, lat.cos};
}

void StateWriter::write(const Scene& scene, double time_share, double least_separation_nm, float* out) const {
  const double scale = kSeparationRadiusNm / kStateOffsetNm;
  for (std::size_t i = 0; i < scene.size(); ++i, out += kStatePerAircraft) {
    if (!scene.present[i]) {
      std::fill_n(out, kStatePerAircraft, 0.0F);
      continue;
    }
    const Vec3 p = scene.position[i] - origin_;
    const Vec3 w = scene.waypoint[i].position - origin_;
    out[0] = 1.0F;
    out[1] = cut(dot(p, east_) * scale);
    out[2] = cut(dot(p, north_) * scale);
    out[3] = cut(scene.fleet.heading[i].sin);
    out[4] = cut(scene.fleet.heading[i].cos);
    out[5] = cut(speed_in_envelope(scene, i));
    out[6] = cut(dot(w, east_) * scale);
    out[7] = cut(dot(w, north_) * scale);
  }
  out[0] = cut(time_share);
  out[1] = cut(team_potential(separation_nm_, least_separation_nm));
}

}  // namespace slipstream::airspace
