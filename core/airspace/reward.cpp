#include "airspace/reward.hpp"

#include <algorithm>
#include <cmath>

namespace slipstream::airspace {
namespace {

constexpr double kKmPerNm = 1.852;
constexpr double kDeepBreachFactor = 1.5;
constexpr double kTimeShareOnceReached = 0.1;

}  // namespace

std::vector<std::string> reward_part_names(bool legacy) {
  std::vector<std::string> names{"act_cost", "progress", "time", "violate_entry", "violate_step", "reach", "terminal"};
  if (!legacy) names.emplace_back("distance");
  if (legacy) names.insert(names.end(), {"drift", "team"});
  return names;
}

RewardParts reward_parts(const AirspaceConfig& config, const Outcome& o) {
  RewardParts parts{};
  const auto part = [&parts](Part p) -> double& { return parts[static_cast<std::size_t>(p)]; };
  part(Part::kActCost) = config.action_cost_per_unit * o.action_size;
  part(Part::kProgress) = config.progress_reward_per_km * kKmPerNm * o.progress_nm;
  part(Part::kTime) = config.time_penalty_per_sec * (o.seconds + kTimeShareOnceReached * o.seconds_after);
  part(Part::kViolateEntry) = config.violation_entry_penalty * o.entries;
  if (o.lost) {
    const double depth = (config.separation_nm - o.worst_nm) / config.separation_nm;
    const double deep = std::max(0.0, (config.deep_breach_nm - o.worst_nm) / config.deep_breach_nm);
    part(Part::kViolateStep) = config.violation_step_scale * depth * (1.0 + kDeepBreachFactor * deep);
  }
  if (o.reached) part(Part::kReach) = config.reach_reward;
  if (o.out_of_time) part(Part::kTerminal) = config.terminal_not_reached_penalty;
  if (config.legacy_reward()) {
    part(Part::kDrift) = config.drift_improve_gain * std::max(0.0, o.drift_improved_deg - config.drift_deadzone_deg);
  } else {
    part(Part::kDistance) = config.distance_penalty() * o.flown_nm;
  }
  return parts;
}

double team_potential(double separation_nm, double least_separation_nm) {
  return std::min(1.0, 0.5 * least_separation_nm / separation_nm);
}

double potential(const AirspaceConfig& config, double least_separation_nm, double drift_deg) {
  return config.team_coordination_weight * team_potential(config.separation_nm, least_separation_nm) -
         config.drift_improve_gain * std::max(0.0, std::abs(drift_deg) - config.drift_deadzone_deg);
}

double LegacyTeam::update(const AirspaceConfig& config, double least_separation_nm) {
  const double now = team_potential(config.separation_nm, least_separation_nm);
  const double difference = config.team_gamma * now - last_potential;
  last_potential = now;
  average = (1.0 - config.team_ema) * average + config.team_ema * difference;
  return config.team_coordination_weight * std::clamp(average, -config.team_cap, config.team_cap);
}

}  // namespace slipstream::airspace
