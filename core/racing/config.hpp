// What a race is made of. Units are in the names; meanings and bounds are told to users by
// slipstream/worlds/racing/config.py, whose defaults a test keeps equal to these.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "racing/drivers.hpp"
#include "racing/reward.hpp"
#include "racing/track.hpp"

namespace slipstream::racing {

inline constexpr int kMaxCars = 16;

// time_trial: laps, alone. head_to_head: who is first. overtake: the first car starts last and must lead. gaplock: the
// first car (the attacker) must make the second crash without touching it. convoy_lock: the same, where pressing it to
// the border counts too, and a crash only if it was pressed.
enum class Task { kTimeTrial, kHeadToHead, kOvertake, kGaplock, kConvoyLock };

// What everything drives on: one for all worlds, or each world's own.
struct Course {
  Track track;
  SpeedLine ideal;               // what pure pursuit and the blocker follow
  std::vector<double> distance;  // euclidean_distance() of the map, for compat scans; empty: scans are exact
};

struct LidarConfig {
  int beams = 108;
  double fov_rad = 4.7;
  double range_m = 10.0;
  double noise_m = 0.01;  // standard deviation
  double dropout = 0.0;   // share of the beams that do not come back, and so show the longest range
  double mount_m = 0.0;   // ahead of the centre of gravity
};

struct CarConfig {
  std::string id;
  std::string role = "car";
  std::string vehicle = "f1tenth";
  double speed_min_mps = 0.0;  // what the ends of the speed axis ask for
  double speed_max_mps = 8.0;
  double friction_scale = 1.0;  // of the vehicle's
  double mass_scale = 1.0;      // likewise, at the centre of gravity: its inertia stays
  TermWeights reward{};
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

enum class SpawnKind { kGrid, kRandom, kSets };

struct SpawnConfig {
  SpawnKind kind = SpawnKind::kGrid;
  std::vector<SpawnSet> sets;     // of kind kSets
  double start_m = 0.0;           // of kind kGrid: where the first place is
  double gap_m = 1.5;             // from place to place
  double stagger_m = 0.0;         // places are this far left and right of the line, in turn
  double lateral_jitter_m = 0.0;  // drawn at reset, as are
  double yaw_jitter_rad = 0.0;
};

// What changes as a curriculum goes on; a world without one has a single phase.
struct Phase {
  std::string name;
  std::vector<int> spawns;      // which of the spawn sets; empty: all
  double speed_from_mps = 0.0;  // speed at the start, drawn between these
  double speed_to_mps = 0.0;
  double lock_mps = 0.0;  // the first car's speed is held at this
  int lock_steps = 0;     // for so many decisions
  FollowGap follow_gap;   // how the follow_gap script drives
};

struct ObservationConfig {
  bool scan = true;
  bool speed = true;
  bool sway = true;  // sideways speed and yaw rate
  bool steer = true;
  bool line = false;    // place and heading on the centreline, and points of it ahead
  bool target = false;  // the nearest other car
  int frame_stack = 1;
  int action_stack = 1;
  std::vector<double> ahead_m{1.0, 2.0, 4.0, 6.0, 8.0, 10.0};
};

struct RacingConfig {
  Task task = Task::kTimeTrial;
  Mode physics = Mode::kClean;
  std::shared_ptr<const Course> course;  // null: every episode draws a circuit of its own
  CircuitConfig circuits;
  SpeedLimits limits;  // of the ideal line on drawn circuits
  std::vector<CarConfig> cars;
  LidarConfig lidar;
  ObservationConfig observation;
  SpawnConfig spawn;
  std::vector<Phase> phases;  // at least one
  PurePursuit pure_pursuit;
  Squeezer squeezer;
  Blocker blocker;

  int action_repeat = 4;  // physics steps of 0.01 s per decision
  int max_episode_steps = 1500;
  int steer_choices = 5;  // of the grid a discrete policy chooses from
  int speed_choices = 5;
  int laps = 1;                  // on a circuit
  double finish_margin_m = 2.0;  // an open road is finished this far before its end
  double lead_m = 1.0;           // overtake: how far ahead counts as having passed
  double idle_mps = 0.05;        // gaplock, convoy_lock: an attacker slower than this
  double idle_after_s = 2.0;     // for so long has given up; 0: never
  double pressure_m = 0.75;      // within this an attacker presses its target
  double pressed_s = 0.5;        // convoy_lock: a crash counts if it was pressed so recently
  double border_m = 1.1;         // convoy_lock: a target this far from the middle is beaten

  [[nodiscard]] int num_cars() const { return static_cast<int>(cars.size()); }
  [[nodiscard]] double decision_s() const { return kStep * action_repeat; }
  // Throws std::invalid_argument with one sentence where the race makes no sense.
  void validate() const;
};

}  // namespace slipstream::racing
