// What a race is made of: the generated fields, and what a scenario's are worked out into.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "racing/circuit.hpp"
#include "racing/drivers.hpp"
#include "racing/reward.hpp"

namespace slipstream::racing {

inline constexpr int kMaxCars = 16;

// What everything drives on: one for all worlds, or each world's own.
struct Course {
  Track track;
  SpeedLine ideal;               // what pure pursuit and the blocker follow
  std::vector<double> distance;  // euclidean_distance() of the map, for compat scans; empty: scans are exact
};

struct CarConfig : CarFields {
  TermWeights reward{};

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    CarFields::fields(visit);
    visit("reward", &CarConfig::reward);
  }
};

// Where a car starts, along the centreline; yaw is against the line's heading.
struct Spot {
  double s_m = 0.0;
  double lateral_m = 0.0;
  double yaw_rad = 0.0;
};

struct SpawnSet {
  std::string name;
  std::vector<Spot> cars;
};

struct SpawnConfig : SpawnFields {
  std::vector<SpawnSet> sets;  // of kind kSets
};

// What changes as a curriculum goes on; a world without one has a single phase.
struct Phase : PhaseFields {
  std::vector<int> spawns;      // which of the spawn sets; empty: all
  double speed_from_mps = 0.0;  // speed at the start, drawn between these
  double speed_to_mps = 0.0;
  FollowGap follow_gap;  // how the follow_gap script drives

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    PhaseFields::fields(visit);
    visit("spawns", &Phase::spawns);
    visit("speed_from_mps", &Phase::speed_from_mps);
    visit("speed_to_mps", &Phase::speed_to_mps);
    visit("follow_gap", &Phase::follow_gap);
  }
};

struct RacingConfig : RacingFields {
  std::shared_ptr<const Course> course;  // null: every episode draws a circuit of its own
  CircuitConfig circuits;
  std::vector<CarConfig> cars;
  ObservationConfig observation;
  SpawnConfig spawn;
  std::vector<Phase> phases;  // at least one
  PurePursuit pure_pursuit;
  Squeezer squeezer;
  Blocker blocker;

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    RacingFields::fields(visit);
    visit("circuits", &RacingConfig::circuits);
    visit("cars", &RacingConfig::cars);
    visit("observation", &RacingConfig::observation);
    visit("spawn", &RacingConfig::spawn);
    visit("phases", &RacingConfig::phases);
    visit("pure_pursuit", &RacingConfig::pure_pursuit);
    visit("squeezer", &RacingConfig::squeezer);
    visit("blocker", &RacingConfig::blocker);
  }

  [[nodiscard]] int num_cars() const { return static_cast<int>(cars.size()); }
  [[nodiscard]] double decision_s() const { return kStep * action_repeat; }
  // Throws std::invalid_argument with one sentence where the race makes no sense.
  void validate() const;
};

}  // namespace slipstream::racing
