// What an airspace scene is made of. Units are in the names; meanings and bounds are told to users by
// slipstream/worlds/airspace/config.py, whose fields and defaults a test keeps equal to these.
#pragma once

#include <string>
#include <vector>

namespace slipstream::airspace {

inline constexpr int kMaxAircraft = 256;
inline constexpr int kMaxSubsteps = 64;

struct AircraftConfig {
  std::string id;
  std::string role = "aircraft";
  std::string type = "A320";
  double lat_deg = 0.0;
  double lon_deg = 0.0;
  double heading_deg = 0.0;
  double cas_kt = 250.0;
  double waypoint_lat_deg = 0.0;
  double waypoint_lon_deg = 0.0;
};

// Traffic drawn anew at every reset: aircraft enter at the edge of a round sector and cross it.
struct RandomSectorConfig {
  int num_aircraft = 0;  // 0: the scene is the list of aircraft instead
  std::vector<std::string> types{"A320"};
  double density_per_nm2 = 0.003;
  double conflict_share = 0.6;
  double conflict_cpa_nm = 3.0;
  double conflict_after_s = 120.0;
  double conflict_before_s = 400.0;
  double min_start_separation_nm = 8.0;
  double min_cas_kt = 230.0;
  double max_cas_kt = 270.0;
  double center_lat_deg = 52.0;
  double center_lon_deg = 4.0;
};

// Offsets in degrees stretch a little away from a sector's centre; a twentieth keeps its distances true everywhere.
inline constexpr double kSectorMargin = 1.05;

enum class Preset { kUnified, kLegacy };
enum class ObservationKind { kOwnFrame, kLegacy };
enum class RewardKind { kUnified, kLegacy };
enum class TeamShare { kResponsibility, kNeighbor, kEqual };

struct AirspaceConfig {
  Preset preset = Preset::kUnified;
  ObservationKind observation = ObservationKind::kOwnFrame;
  RewardKind reward = RewardKind::kUnified;

  std::vector<AircraftConfig> aircraft;
  RandomSectorConfig random_sector;
  double altitude_ft = 10000.0;
  double wind_speed_kt = 0.0;
  double wind_from_deg = 0.0;
  double position_jitter_nm = 1.0;
  double heading_jitter_deg = 5.0;
  double speed_jitter_kt = 5.0;

  double decision_s = 10.0;
  double substep_s = 1.0;
  int max_episode_steps = 150;
  double heading_step_deg = 18.0;
  double speed_step_kt = 10.0;
  double heading_deadband_deg = 0.0;
  double speed_deadband_kt = 0.0;

  double separation_nm = 5.0;
  double collision_nm = 3.0;
  double waypoint_radius_nm = 1.0;
  int neighbor_topk = 3;

  double progress_reward_per_km = 0.04;
  double time_penalty_per_sec = -0.0005;
  double reach_reward = 10.0;
  double violation_entry_penalty = -25.0;
  double violation_step_scale = -1.0;
  double deep_breach_nm = 1.0;
  double drift_improve_gain = 0.01;
  double drift_deadzone_deg = 8.0;
  double action_cost_per_unit = -0.01;
  double terminal_not_reached_penalty = -10.0;
  double team_coordination_weight = 0.6;
  double team_gamma = 0.99;
  double team_ema = 0.05;
  double team_cap = 0.05;
  TeamShare team_share = TeamShare::kResponsibility;

  [[nodiscard]] int num_aircraft() const {
    return random_sector.num_aircraft > 0 ? random_sector.num_aircraft : static_cast<int>(aircraft.size());
  }
  [[nodiscard]] int substeps() const { return static_cast<int>(decision_s / substep_s + 0.5); }
  // Radius that gives the sector its density, NM.
  [[nodiscard]] double sector_radius_nm() const;
  // Throws std::invalid_argument with one sentence when the scene makes no sense.
  void validate() const;
};

}  // namespace slipstream::airspace
