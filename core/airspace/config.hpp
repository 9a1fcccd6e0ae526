// What an airspace scene is made of, and what follows from it.
#pragma once

#include "airspace/fields.hpp"

namespace slipstream::airspace {

inline constexpr int kMaxAircraft = 256;
inline constexpr int kMaxSubsteps = 64;

// Offsets in degrees stretch a little away from a sector's centre; a twentieth keeps its distances true everywhere.
inline constexpr double kSectorMargin = 1.05;

inline constexpr double kLegacyDeadband = 3.0;    // degrees and kt
inline constexpr double kDistancePenalty = -0.2;  // per NM

struct AirspaceConfig : AirspaceFields {
  // What the preset decides unless it is given.
  [[nodiscard]] bool legacy() const { return preset == Preset::kLegacy; }
  [[nodiscard]] bool legacy_observation() const {
    return observation ? *observation == ObservationKind::kLegacy : legacy();
  }
  [[nodiscard]] bool legacy_reward() const { return reward.value_or(preset) == Preset::kLegacy; }
  [[nodiscard]] double distance_penalty() const {
    return distance_penalty_per_nm.value_or(legacy_reward() ? 0.0 : kDistancePenalty);
  }
  // Whether running out of time is part of the task, and so is shown.
  [[nodiscard]] bool shows_time_left() const {
    return time_left.value_or(!legacy_observation() && terminal_not_reached_penalty != 0.0);
  }
  [[nodiscard]] double heading_deadband() const {
    return heading_deadband_deg.value_or(legacy() ? kLegacyDeadband : 0.0);
  }
  [[nodiscard]] double speed_deadband() const { return speed_deadband_kt.value_or(legacy() ? kLegacyDeadband : 0.0); }

  // Most aircraft of an episode.
  [[nodiscard]] int num_aircraft() const {
    return random_sector ? random_sector->num_aircraft : static_cast<int>(aircraft.size());
  }
  [[nodiscard]] int substeps() const { return static_cast<int>(decision_s / substep_s + 0.5); }
  // Fewest.
  [[nodiscard]] int min_aircraft() const {
    return random_sector ? random_sector->min_aircraft.value_or(random_sector->num_aircraft) : num_aircraft();
  }
  // Radius that gives a random sector with so many aircraft its density, NM.
  [[nodiscard]] double sector_radius_nm(std::size_t count) const;
  // Throws std::invalid_argument with one sentence when the scene makes no sense.
  void validate() const;
};

}  // namespace slipstream::airspace
