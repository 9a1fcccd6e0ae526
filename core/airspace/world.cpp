#include "airspace/world.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "airspace/mvp.hpp"

namespace slipstream::airspace {
namespace {

constexpr std::size_t kAxes = 2;  // heading_delta, speed_delta
enum Script { kNoop, kMvp, kDirect };

constexpr int kJitterTries = 32;
constexpr double kStartMargin = 1.1;  // of separation_nm
// An order at least this large counts as a manoeuvre; smaller ones are trim.
constexpr double kManeuverDeg = 3.0;
constexpr double kManeuverKt = 3.0;

// What the published environment did besides flying.
constexpr int kLegacyWarmUpS = 2;
constexpr double kLegacyMinCasKt = 100.0;
constexpr double kLegacyMaxCasKt = 400.0;
constexpr double kLegacyNeighborNm = 10.0 / 1.852;

double round_to(double value, double unit) { return std::nearbyint(value / unit) * unit; }
double tenth(double value) { return std::nearbyint(value * 10.0) / 10.0; }

double read_axis(float value) { return std::isnan(value) ? 0.0 : std::clamp(static_cast<double>(value), -1.0, 1.0); }

std::vector<std::vector<float>> action_table() {
  std::vector<std::vector<float>> rows;
  for (const float turn : {-1.0F, 0.0F, 1.0F}) {
    for (const float faster : {-1.0F, 0.0F, 1.0F}) rows.push_back({turn, faster});
  }
  return rows;
}

}  // namespace

WorldSpec AirspaceWorld::spec(const AirspaceConfig& config) {
  config.validate();
  WorldSpec spec;
  spec.name = "airspace";
  for (const AircraftConfig& a : config.aircraft) {
    spec.agents.push_back(a.id);
    spec.roles.push_back(a.role);
  }
  for (int i = 1; config.random_sector && i <= config.num_aircraft(); ++i) {
    spec.agents.push_back(std::string("A").append(std::to_string(i)));
    spec.roles.push_back("aircraft");
  }
  spec.obs = {observation_block(config)};
  spec.entities = neighbor_rows(config);
  spec.state_size = StateWriter::size(spec.agents.size());
  spec.action.size = kAxes;
  spec.action.names = {"heading_delta", "speed_delta"};
  spec.action.table = action_table();
  spec.has_potential = !config.legacy_reward();
  spec.reward_parts = reward_part_names(config.legacy_reward());
  spec.stats = {
      "conflicts", "los_seconds",      "min_separation_nm", "collisions",     "nmac",  "well_clear_violations",
      "reached",   "reached_fraction", "extra_distance_nm", "flight_seconds", "clean", "maneuvers"};
  spec.frame_fields = {"lat_deg",          "lon_deg",          "heading_deg", "tas_mps",          "cas_kt",
                       "waypoint_lat_deg", "waypoint_lon_deg", "present",     "min_separation_nm"};
  spec.scripts = {"noop", "mvp", "direct"};
  spec.max_episode_steps = config.max_episode_steps;
  spec.tick_seconds = config.decision_s;
  return spec;
}

AirspaceWorld::AirspaceWorld(const AirspaceConfig& config)
    : config_((config.validate(), config)),
      scene_(static_cast<std::size_t>(config.num_aircraft())),
      tracks_(scene_.size(), config.substeps()),
      separation_(scene_.size(), config.substeps(), config.separation_nm, config.collision_nm, config.substep_s),
      observer_(config),
      state_writer_(config),
      capture_chord2_(chord2_of_nm(config.waypoint_radius_nm)),
      obs_width_(observation_block(config).elements()),
      outcomes_(scene_.size()),
      lost_(scene_.size()),
      distance_nm_(scene_.size()),
      drift_deg_(scene_.size()),
      own_separation_nm_(scene_.size()),
      flown_nm_(scene_.size()),
      direct_nm_(scene_.size()),
      left_nm_(scene_.size()),
      flight_s_(scene_.size()) {
  scene_.wind = wind_from(config.wind_speed_kt, config.wind_from_deg);
  for (const AircraftConfig& a : config_.aircraft)
    scene_.performances.push_back(shared_performance(a.type, config_.altitude_ft));
  if (!config_.random_sector) {
    place_as_listed();
    scene_.refresh();
    required_start_nm_ = std::min(scene_.least_separation_nm(), kStartMargin * config_.separation_nm);
    return;
  }
  for (const std::string& type : config_.random_sector->types) {
    scene_.performances.push_back(shared_performance(type, config_.altitude_ft));
    const Atmosphere& air = scene_.performances.back()->atmosphere();
    speeds_.push_back({air.tas_of_cas(config_.random_sector->min_cas_kt * kKnot) / kNauticalMile,
                       air.tas_of_cas(config_.random_sector->max_cas_kt * kKnot) / kNauticalMile});
  }
  entries_.resize(scene_.size());
}

// --- starting ---

void AirspaceWorld::reset(const Rng& rng, const Slices& s) {
  Rng stream = rng;
  const std::size_t n = scene_.size();
  std::fill(scene_.present.begin(), scene_.present.end(), std::uint8_t{1});
  for (auto* flags : {&scene_.reached, &scene_.resolving, &lost_})
    std::fill(flags->begin(), flags->end(), std::uint8_t{0});
  if (config_.random_sector) {
    place_sector(stream);
  } else if (legacy()) {
    place_as_listed();
    warm_up();
  } else {
    place_jittered(stream);
  }
  scene_.refresh();
  separation_.reset(scene_.position, scene_.present);
  std::copy(scene_.present.begin(), scene_.present.end(), s.present);
  steps_ = 0;
  maneuvers_ = 0.0;
  team_ = {0.0, team_potential(config_.separation_nm, scene_.least_separation_nm())};
  for (std::size_t i = 0; i < n; ++i) {
    direct_nm_[i] = left_nm_[i] = scene_.guidance[i].distance_nm;
    flown_nm_[i] = flight_s_[i] = 0.0;
    outcomes_[i] = {};
  }
  remember();
  std::fill(drift_deg_.begin(), drift_deg_.end(), 0.0);
  observe(s);
  write_stats(s.stats);
}

void AirspaceWorld::place_as_listed() {
  for (std::size_t i = 0; i < scene_.size(); ++i) {
    const AircraftConfig& a = config_.aircraft[i];
    scene_.type_of[i] = static_cast<std::uint8_t>(i);
    scene_.present[i] = 1;
    scene_.waypoint[i] = waypoint_at(a.waypoint_lat_deg, a.waypoint_lon_deg);
    // The published environment created aircraft with rounded commands.
    const double heading = legacy() ? std::nearbyint(a.heading_deg) : a.heading_deg;
    const double cas_kt = legacy() ? std::nearbyint(a.cas_kt) : a.cas_kt;
    const double lat = legacy() ? round_to(a.lat_deg, 1e-6) : a.lat_deg;
    const double lon = legacy() ? round_to(a.lon_deg, 1e-6) : a.lon_deg;
    scene_.cruise_cas_mps[i] = cas_kt * kKnot;
    scene_.fleet.place(i, lat, lon, heading, scene_.cruise_cas_mps[i], scene_.performance(i).atmosphere());
  }
}

void AirspaceWorld::place_jittered(Rng& rng) {
  place_as_listed();
  if (config_.position_jitter_nm == 0.0 && config_.heading_jitter_deg == 0.0 && config_.speed_jitter_kt == 0.0) return;
  const auto spread = [&rng](double range) { return rng.uniform(-range, range); };
  for (int attempt = 0; attempt <= kJitterTries; ++attempt) {
    // The last try keeps the listed positions, which are apart by definition.
    const double range_nm = attempt < kJitterTries ? config_.position_jitter_nm : 0.0;
    for (std::size_t i = 0; i < scene_.size(); ++i) {
      const AircraftConfig& a = config_.aircraft[i];
      const double east_nm = spread(range_nm);
      const double north_nm = spread(range_nm);
      const double heading = a.heading_deg + spread(config_.heading_jitter_deg);
      const Performance& performance = scene_.performance(i);
      scene_.cruise_cas_mps[i] = performance.limit_cas((a.cas_kt + spread(config_.speed_jitter_kt)) * kKnot);
      scene_.fleet.place(i, a.lat_deg + north_nm / kNmPerDegree,
                         a.lon_deg + east_nm / (kNmPerDegree * std::cos(radians(a.lat_deg))), heading,
                         scene_.cruise_cas_mps[i], performance.atmosphere());
    }
    scene_.refresh();
    if (scene_.least_separation_nm() >= required_start_nm_) return;
  }
}

void AirspaceWorld::place_sector(Rng& rng) {
  const auto fewest = static_cast<std::uint32_t>(config_.min_aircraft());
  const auto most = static_cast<std::uint32_t>(scene_.size());
  const std::size_t count = fewest < most ? fewest + rng.below(most - fewest + 1) : most;
  draw_sector(config_, speeds_, rng, std::span(entries_).first(count));
  for (std::size_t i = count; i < most; ++i) {
    scene_.present[i] = 0;
    scene_.guidance[i] = {};  // of an episode before
  }
  const double lat0 = config_.random_sector->center_lat_deg;
  const double lon0 = config_.random_sector->center_lon_deg;
  const double nm_per_lon = kNmPerDegree * std::cos(radians(lat0));
  for (std::size_t i = 0; i < count; ++i) {
    const Entry& e = entries_[i];
    scene_.type_of[i] = static_cast<std::uint8_t>(e.type);
    scene_.waypoint[i] = waypoint_at(lat0 + e.exit_north_nm / kNmPerDegree, lon0 + e.exit_east_nm / nm_per_lon);
    scene_.cruise_cas_mps[i] = e.cas_kt * kKnot;
    scene_.fleet.place(i, lat0 + e.north_nm / kNmPerDegree, lon0 + e.east_nm / nm_per_lon, e.heading_deg,
                       scene_.cruise_cas_mps[i], scene_.performance(i).atmosphere());
  }
}

// Two seconds under route guidance pass before the published environment shows its first observation.
void AirspaceWorld::warm_up() {
  for (int second = 0; second < kLegacyWarmUpS; ++second) {
    scene_.refresh();
    for (std::size_t i = 0; i < scene_.size(); ++i) {
      scene_.fleet.target_heading_deg[i] = wrap_360(scene_.fleet.heading_deg[i] + scene_.guidance[i].drift_deg);
      fly(scene_.fleet, i, scene_.performance(i), scene_.wind, 1.0, 1, [](int, const Vec3&) { return true; });
    }
  }
}

// --- one decision ---

void AirspaceWorld::step(const Slices& s) {
  ++steps_;
  const std::size_t n = scene_.size();
  for (std::size_t i = 0; i < n; ++i) {
    outcomes_[i] = {};
    tracks_.stay[i] = 0;
    if (!scene_.present[i]) continue;
    read_action(i, s.action + kAxes * i);
    fly_decision(i);
  }
  separation_.update(tracks_);
  scene_.refresh();
  for (std::size_t i = 0; i < n; ++i) {
    if (scene_.present[i]) judge(i);
  }
  pay(s);

  const bool last = steps_ >= config_.max_episode_steps;
  const bool over = last || std::all_of(scene_.reached.begin(), scene_.reached.end(), [](auto r) { return r != 0; });
  for (std::size_t i = 0; i < n; ++i) {
    if (!scene_.present[i]) continue;
    if (legacy()) {
      s.terminated[i] = over;  // as published: running out of time is not told apart
    } else {
      const bool out_of_time = last && !scene_.reached[i];
      s.terminated[i] = scene_.reached[i] || (out_of_time && config_.shows_time_left());
      s.truncated[i] = out_of_time && !config_.shows_time_left();
      scene_.present[i] = !scene_.reached[i];
    }
  }
  observe(s);
  remember();
  write_stats(s.stats);
}

void AirspaceWorld::read_action(std::size_t i, const float* action) {
  if (scene_.reached[i]) return;  // legacy: keeps its last orders
  const double turn = read_axis(action[0]);
  const double faster = read_axis(action[1]);
  outcomes_[i].action_size = std::abs(turn) + std::abs(faster);
  const auto beyond = [](double value, double dead) { return std::abs(value) < dead ? 0.0 : value; };
  const double turn_deg = beyond(turn * config_.heading_step_deg, config_.heading_deadband());
  const double faster_kt = beyond(faster * config_.speed_step_kt, config_.speed_deadband());
  if (std::abs(turn_deg) >= kManeuverDeg || std::abs(faster_kt) >= kManeuverKt) maneuvers_ += 1.0;
  command(i, turn_deg, faster_kt);
}

void AirspaceWorld::command(std::size_t i, double turn_deg, double faster_kt) {
  Fleet& fleet = scene_.fleet;
  const Performance& performance = scene_.performance(i);
  const Atmosphere& air = performance.atmosphere();
  if (legacy()) {
    fleet.target_heading_deg[i] = wrap_360(tenth(fleet.heading_deg[i] + turn_deg));
    const double cas_kt = fleet.cas_mps(i, air) / kKnot + faster_kt;
    const double asked_kt = tenth(std::clamp(cas_kt, kLegacyMinCasKt, kLegacyMaxCasKt));
    fleet.aim_speed(i, performance.limit_cas(asked_kt * kKnot), air);
    return;
  }
  fleet.target_heading_deg[i] = turn_deg == 0.0 ? fleet.heading_deg[i] : wrap_360(fleet.heading_deg[i] + turn_deg);
  if (faster_kt == 0.0) {
    fleet.hold_speed(i, air);
  } else {
    fleet.aim_speed(i, performance.limit_cas(fleet.cas_mps(i, air) + faster_kt * kKnot), air);
  }
}

void AirspaceWorld::fly_decision(std::size_t i) {
  tracks_.put(i, 0, scene_.position[i]);
  const Vec3 goal = scene_.waypoint[i].position;
  const bool leaves = !legacy();
  bool arrived = false;
  std::size_t stay = 0;
  fly(scene_.fleet, i, scene_.performance(i), scene_.wind, config_.substep_s, config_.substeps(),
      [&](int substep, const Vec3& p) {
        stay = static_cast<std::size_t>(substep) + 1;
        tracks_.put(i, stay, p);
        const Vec3 d = goal - p;
        arrived = dot(d, d) <= capture_chord2_;
        return !(arrived && leaves);
      });
  tracks_.stay[i] = stay;

  Outcome& outcome = outcomes_[i];
  const double seconds = static_cast<double>(stay) * config_.substep_s;
  if (scene_.reached[i]) {
    outcome.seconds_after = seconds;
    return;
  }
  outcome.flown_nm = tracks_.length_nm(i);
  flown_nm_[i] += outcome.flown_nm;
  flight_s_[i] += seconds;
  outcome.reached = arrived;  // legacy: at the end of the decision
  // The published time penalty is already reduced in the decision that reaches the waypoint.
  (legacy() && arrived ? outcome.seconds_after : outcome.seconds) = seconds;
  scene_.reached[i] = arrived;
}

void AirspaceWorld::judge(std::size_t i) {
  Outcome& outcome = outcomes_[i];
  outcome.out_of_time = steps_ >= config_.max_episode_steps && !scene_.reached[i];
  judge_separation(i, outcome);
  if (outcome.reached || !scene_.reached[i]) left_nm_[i] = scene_.guidance[i].distance_nm;
  if (!config_.legacy_reward()) {
    outcome.progress_nm = distance_nm_[i] - scene_.guidance[i].distance_nm;
    return;
  }
  // The published reward has nothing to compare with in its first decision.
  outcome.progress_nm = steps_ == 1 ? 0.0 : distance_nm_[i] - scene_.guidance[i].distance_nm;
  const Waypoint& goal = scene_.waypoint[i];
  const double bearing = flat_bearing_deg(scene_.fleet.lat_deg[i], scene_.fleet.lon_deg[i], goal.lat_deg, goal.lon_deg);
  const double drift = std::abs(wrap_180(scene_.fleet.heading_deg[i] - bearing));
  outcome.drift_improved_deg = drift_deg_[i] - drift;
  drift_deg_[i] = drift;
}

// Unified looks at every substep, the published reward only at the last one.
void AirspaceWorld::judge_separation(std::size_t i, Outcome& outcome) {
  const double* chord2 = separation_.own_chord2(i);
  const double limit = separation_.lost_chord2();
  const std::size_t stay = tracks_.stay[i];
  double worst = std::numeric_limits<double>::infinity();
  bool lost = lost_[i] != 0;
  for (std::size_t k = config_.legacy_reward() ? stay : 1; k <= stay; ++k) {
    const bool now = chord2[k] < limit;
    outcome.entries += now && !lost;
    lost = now;
    worst = std::min(worst, chord2[k]);
  }
  lost_[i] = lost;
  outcome.lost = worst < limit;
  if (outcome.lost) outcome.worst_nm = nm_of_chord2(worst);
}

void AirspaceWorld::pay(const Slices& s) {
  const bool with_team = config_.legacy_reward();
  const std::size_t num_parts = with_team ? kNumParts : kNumUnifiedParts;
  double team = 0.0;
  double weights = 0.0;
  double count = 0.0;
  if (with_team) {
    team = team_.update(config_, scene_.least_separation_nm());
    for (std::size_t i = 0; i < scene_.size(); ++i) {
      if (!scene_.present[i]) continue;
      weights += team_weight(i);
      count += 1.0;
    }
  }
  for (std::size_t i = 0; i < scene_.size(); ++i) {
    if (!scene_.present[i]) continue;
    RewardParts parts = reward_parts(config_, outcomes_[i]);
    if (with_team) parts[static_cast<std::size_t>(Part::kTeam)] = team * team_weight(i) * count / weights;
    double total = 0.0;
    for (std::size_t p = 0; p < num_parts; ++p) total += parts[p];
    s.rewards[i] = static_cast<float>(total);
    if (s.reward_parts == nullptr) continue;
    for (std::size_t p = 0; p < num_parts; ++p) s.reward_parts[i * num_parts + p] = static_cast<float>(parts[p]);
  }
}

double AirspaceWorld::team_weight(std::size_t i) const {
  if (config_.team_share == TeamShare::kEqual) return 1.0;
  const double near = config_.team_share == TeamShare::kResponsibility ? config_.separation_nm : kLegacyNeighborNm;
  double weight = 1.0;
  for (std::size_t j = 0; j < scene_.size(); ++j)
    weight += j != i && scene_.present[j] && scene_.distance_nm(i, j) < near ? 1.0 : 0.0;
  return weight;
}

// --- showing ---

void AirspaceWorld::observe(const Slices& s) {
  auto* obs = s.obs_f32(0);
  const double least = scene_.least_separation_nm();
  const double time_spent = static_cast<double>(steps_) / config_.max_episode_steps;
  for (std::size_t i = 0; i < scene_.size(); ++i) {
    s.acting[i] = scene_.present[i];
    if (!scene_.in_episode(i)) continue;
    if (steps_ > 0 && s.alive != nullptr && s.alive[i] == 0) continue;
    LegacyRates rates;
    if (config_.legacy_observation() && steps_ > 1) {
      rates.progress_nm = distance_nm_[i] - scene_.guidance[i].distance_nm;
      rates.separation_nm = scene_.own_separation_nm(i) - own_separation_nm_[i];
      if (!std::isfinite(rates.separation_nm)) rates.separation_nm = 0.0;  // alone, before or after
    }
    observer_.write(scene_, i, 1.0 - time_spent, rates, obs + obs_width_ * i);
    if (s.potential != nullptr)
      s.potential[i] = static_cast<float>(potential(config_, least, scene_.guidance[i].drift_deg));
  }
  state_writer_.write(scene_, time_spent, least, s.state);
}

// What the next decision is compared with.
void AirspaceWorld::remember() {
  for (std::size_t i = 0; i < scene_.size(); ++i) {
    distance_nm_[i] = scene_.guidance[i].distance_nm;
    if (config_.legacy_observation()) own_separation_nm_[i] = scene_.own_separation_nm(i);
  }
}

void AirspaceWorld::write_stats(double* stats) const {
  const SeparationFigures& figures = separation_.figures();
  double count = 0.0;
  double reached = 0.0;
  double extra_nm = 0.0;
  double flight_s = 0.0;
  for (std::size_t i = 0; i < scene_.size(); ++i) {
    count += scene_.in_episode(i) ? 1.0 : 0.0;
    reached += scene_.reached[i];
    flight_s += flight_s_[i];
    extra_nm += flown_nm_[i] + left_nm_[i] - direct_nm_[i];
  }
  const bool clean = figures.lost_substeps == 0.0 && reached == count;
  *stats++ = figures.conflicts;
  *stats++ = figures.lost_substeps * config_.substep_s;
  *stats++ = std::isfinite(figures.least_chord2) ? nm_of_chord2(figures.least_chord2)
                                                 : std::numeric_limits<double>::quiet_NaN();
  *stats++ = figures.collisions;
  *stats++ = figures.nmac;
  *stats++ = figures.well_clear_violations;
  *stats++ = reached;
  *stats++ = reached / count;
  *stats++ = extra_nm / count;
  *stats++ = flight_s / count;
  *stats++ = clean ? 1.0 : 0.0;
  *stats = maneuvers_;
}

void AirspaceWorld::scripted(int script, int agent, const Slices& s) {
  const auto i = static_cast<std::size_t>(agent);
  Action action;
  if (script == kMvp) action = mvp_action(config_, scene_, i);
  if (script == kDirect) action = direct_action(config_, scene_, i);
  s.action[kAxes * i] = action.heading;
  s.action[kAxes * i + 1] = action.speed;
}

void AirspaceWorld::frame(double* out) const {
  for (std::size_t i = 0; i < scene_.size(); ++i) {
    const Fleet& fleet = scene_.fleet;
    const double separation = scene_.own_separation_nm(i);
    const bool known = scene_.in_episode(i);
    const auto shown = [known](double value) { return known ? value : std::numeric_limits<double>::quiet_NaN(); };
    *out++ = shown(fleet.lat_deg[i]);
    *out++ = shown(fleet.lon_deg[i]);
    *out++ = shown(fleet.heading_deg[i]);
    *out++ = shown(fleet.tas_mps[i]);
    *out++ = shown(fleet.cas_mps(i, scene_.performance(i).atmosphere()) / kKnot);
    *out++ = shown(scene_.waypoint[i].lat_deg);
    *out++ = shown(scene_.waypoint[i].lon_deg);
    *out++ = scene_.present[i];
    *out++ = std::isfinite(separation) ? separation : std::numeric_limits<double>::quiet_NaN();
  }
}

}  // namespace slipstream::airspace
