// What an aircraft is paid for one decision, by named part; and the potential that shapes it.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "airspace/config.hpp"

namespace slipstream::airspace {

// The order of reward_parts. `drift` and `team` belong to the legacy reward; unified has them as a potential, and
// `distance` in their place.
enum class Part {
  kActCost,
  kProgress,
  kTime,
  kViolateEntry,
  kViolateStep,
  kReach,
  kTerminal,
  kDistance,
  kDrift = kDistance,
  kTeam
};
inline constexpr std::size_t kNumParts = 9;
inline constexpr std::size_t kNumUnifiedParts = 8;
using RewardParts = std::array<double, kNumParts>;

std::vector<std::string> reward_part_names(bool legacy);

// What happened to one aircraft during one decision.
struct Outcome {
  double action_size = 0.0;    // |heading| + |speed| of the normalised action
  double seconds = 0.0;        // flown toward the waypoint
  double seconds_after = 0.0;  // flown on after reaching it (legacy)
  double flown_nm = 0.0;       // toward the waypoint
  double progress_nm = 0.0;    // how much nearer the waypoint
  double drift_improved_deg = 0.0;
  int entries = 0;        // times it lost separation anew
  double worst_nm = 0.0;  // least separation, where lost
  bool lost = false;
  bool reached = false;      // in this decision
  bool out_of_time = false;  // the episode ends and it has not reached its waypoint
};

RewardParts reward_parts(const AirspaceConfig& config, const Outcome& outcome);

// 0 where a pair touches, one half at the separation minimum, 1 from twice that on.
double team_potential(double separation_nm, double least_separation_nm);
double potential(const AirspaceConfig& config, double least_separation_nm, double drift_deg);

// The published team term: a clipped moving average of potential differences.
struct LegacyTeam {
  double average = 0.0;
  double last_potential = 0.0;

  // Takes the new least separation and returns what a weight of 1 is paid.
  double update(const AirspaceConfig& config, double least_separation_nm);
};

}  // namespace slipstream::airspace
