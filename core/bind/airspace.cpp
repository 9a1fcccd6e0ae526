#include <nanobind/stl/unique_ptr.h>

#include <algorithm>

#include "airspace/geo.hpp"
#include "airspace/world.hpp"
#include "bind/bind.hpp"

namespace slipstream {
namespace {

using namespace airspace;

// Columns of a state row: lat_deg, lon_deg, heading_deg, tas_mps.
constexpr std::size_t kStateColumns = 4;

void bind_config(nb::module_& m) {
  nb::enum_<Preset>(m, "AirspacePreset").value("unified", Preset::kUnified).value("legacy", Preset::kLegacy);
  nb::enum_<ObservationKind>(m, "AirspaceObservation")
      .value("own_frame", ObservationKind::kOwnFrame)
      .value("legacy", ObservationKind::kLegacy);
  nb::enum_<RewardKind>(m, "AirspaceReward")
      .value("unified", RewardKind::kUnified)
      .value("legacy", RewardKind::kLegacy);
  nb::enum_<TeamShare>(m, "AirspaceTeamShare")
      .value("responsibility", TeamShare::kResponsibility)
      .value("neighbor", TeamShare::kNeighbor)
      .value("equal", TeamShare::kEqual);

  nb::class_<AircraftConfig>(m, "AircraftConfig", "One aircraft of a listed scene.")
      .def(nb::init<>())
      .def_rw("id", &AircraftConfig::id)
      .def_rw("role", &AircraftConfig::role)
      .def_rw("type", &AircraftConfig::type)
      .def_rw("lat_deg", &AircraftConfig::lat_deg)
      .def_rw("lon_deg", &AircraftConfig::lon_deg)
      .def_rw("heading_deg", &AircraftConfig::heading_deg)
      .def_rw("cas_kt", &AircraftConfig::cas_kt)
      .def_rw("waypoint_lat_deg", &AircraftConfig::waypoint_lat_deg)
      .def_rw("waypoint_lon_deg", &AircraftConfig::waypoint_lon_deg);

  nb::class_<RandomSectorConfig>(m, "RandomSectorConfig", "Traffic drawn anew at every reset.")
      .def(nb::init<>())
      .def_rw("num_aircraft", &RandomSectorConfig::num_aircraft)
      .def_rw("types", &RandomSectorConfig::types)
      .def_rw("density_per_nm2", &RandomSectorConfig::density_per_nm2)
      .def_rw("conflict_share", &RandomSectorConfig::conflict_share)
      .def_rw("conflict_cpa_nm", &RandomSectorConfig::conflict_cpa_nm)
      .def_rw("conflict_after_s", &RandomSectorConfig::conflict_after_s)
      .def_rw("conflict_before_s", &RandomSectorConfig::conflict_before_s)
      .def_rw("min_start_separation_nm", &RandomSectorConfig::min_start_separation_nm)
      .def_rw("min_cas_kt", &RandomSectorConfig::min_cas_kt)
      .def_rw("max_cas_kt", &RandomSectorConfig::max_cas_kt)
      .def_rw("center_lat_deg", &RandomSectorConfig::center_lat_deg)
      .def_rw("center_lon_deg", &RandomSectorConfig::center_lon_deg);

  nb::class_<AirspaceConfig>(m, "AirspaceConfig", "What an airspace scene is made of.")
      .def(nb::init<>())
      .def_rw("preset", &AirspaceConfig::preset)
      .def_rw("observation", &AirspaceConfig::observation)
      .def_rw("reward", &AirspaceConfig::reward)
      .def_rw("aircraft", &AirspaceConfig::aircraft)
      .def_rw("random_sector", &AirspaceConfig::random_sector)
      .def_rw("altitude_ft", &AirspaceConfig::altitude_ft)
      .def_rw("wind_speed_kt", &AirspaceConfig::wind_speed_kt)
      .def_rw("wind_from_deg", &AirspaceConfig::wind_from_deg)
      .def_rw("position_jitter_nm", &AirspaceConfig::position_jitter_nm)
      .def_rw("heading_jitter_deg", &AirspaceConfig::heading_jitter_deg)
      .def_rw("speed_jitter_kt", &AirspaceConfig::speed_jitter_kt)
      .def_rw("decision_s", &AirspaceConfig::decision_s)
      .def_rw("substep_s", &AirspaceConfig::substep_s)
      .def_rw("max_episode_steps", &AirspaceConfig::max_episode_steps)
      .def_rw("heading_step_deg", &AirspaceConfig::heading_step_deg)
      .def_rw("speed_step_kt", &AirspaceConfig::speed_step_kt)
      .def_rw("heading_deadband_deg", &AirspaceConfig::heading_deadband_deg)
      .def_rw("speed_deadband_kt", &AirspaceConfig::speed_deadband_kt)
      .def_rw("separation_nm", &AirspaceConfig::separation_nm)
      .def_rw("collision_nm", &AirspaceConfig::collision_nm)
      .def_rw("waypoint_radius_nm", &AirspaceConfig::waypoint_radius_nm)
      .def_rw("neighbor_topk", &AirspaceConfig::neighbor_topk)
      .def_rw("progress_reward_per_km", &AirspaceConfig::progress_reward_per_km)
      .def_rw("time_penalty_per_sec", &AirspaceConfig::time_penalty_per_sec)
      .def_rw("reach_reward", &AirspaceConfig::reach_reward)
      .def_rw("violation_entry_penalty", &AirspaceConfig::violation_entry_penalty)
      .def_rw("violation_step_scale", &AirspaceConfig::violation_step_scale)
      .def_rw("deep_breach_nm", &AirspaceConfig::deep_breach_nm)
      .def_rw("drift_improve_gain", &AirspaceConfig::drift_improve_gain)
      .def_rw("drift_deadzone_deg", &AirspaceConfig::drift_deadzone_deg)
      .def_rw("action_cost_per_unit", &AirspaceConfig::action_cost_per_unit)
      .def_rw("terminal_not_reached_penalty", &AirspaceConfig::terminal_not_reached_penalty)
      .def_rw("team_coordination_weight", &AirspaceConfig::team_coordination_weight)
      .def_rw("team_gamma", &AirspaceConfig::team_gamma)
      .def_rw("team_ema", &AirspaceConfig::team_ema)
      .def_rw("team_cap", &AirspaceConfig::team_cap)
      .def_rw("team_share", &AirspaceConfig::team_share);
}

// Positions and ground velocities of two state rows as flat offsets, NM and NM/s.
struct Pair {
  Vec2 r, v;
};
Pair pair_of(const double* own, const double* other) {
  const auto velocity = [](const double* row) {
    return Vec2{velocity_east(row[2], row[3] / kNauticalMile), velocity_north(row[2], row[3] / kNauticalMile)};
  };
  const Vec2 v1 = velocity(own);
  const Vec2 v2 = velocity(other);
  return {flat_offset_nm(own[0], own[1], other[0], other[1]), {v2.x - v1.x, v2.y - v1.y}};
}

void propagate(In<double, 2> state, In<double, 2> targets, const std::string& aircraft_type, double altitude_ft,
               Out<double, 3> out) {
  const std::size_t n = state.shape(0);
  const std::size_t seconds = out.shape(0);
  require(state.shape(1) == kStateColumns, "state needs 4 columns: lat_deg, lon_deg, heading_deg, tas_mps");
  require(targets.shape(0) == n && targets.shape(1) == 2, "targets needs a row heading_deg, cas_kt per aircraft");
  require(out.shape(1) == n && out.shape(2) == 5, "out needs the shape [seconds, aircraft, 5]");
  const Performance performance(find_aircraft_type(aircraft_type), altitude_ft);
  const Atmosphere& air = performance.atmosphere();
  Fleet fleet(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double* row = state.data() + kStateColumns * i;
    fleet.place(i, row[0], row[1], row[2], air.cas_of_tas(row[3]), air);
    fleet.tas_mps[i] = row[3];  // to the last bit, whatever the way through CAS
    fleet.target_heading_deg[i] = wrap_360(targets.data()[2 * i]);
    fleet.aim_speed(i, performance.limit_cas(targets.data()[2 * i + 1] * kKnot), air);
  }
  for (std::size_t t = 0; t < seconds; ++t) {
    for (std::size_t i = 0; i < n; ++i) {
      fly(fleet, i, performance, {}, 1.0, 1, [](int, const Vec3&) { return true; });
      double* row = out.data() + (t * n + i) * 5;
      row[0] = fleet.lat_deg[i];
      row[1] = fleet.lon_deg[i];
      row[2] = fleet.heading_deg[i];
      row[3] = fleet.tas_mps[i];
      row[4] = fleet.cas_mps(i, air);
    }
  }
}

// Columns: range_nm, separation_nm (great circle), tcpa_s, dcpa_nm, modified tau (NaN: not closing), miss_nm,
// horizontal well-clear violation (0 or 1).
constexpr std::size_t kPairColumns = 7;
void pair_geometry(In<double, 2> own, In<double, 2> other, std::optional<double> horizon_s, Out<double, 2> out) {
  const std::size_t n = own.shape(0);
  require(own.shape(1) == kStateColumns && other.shape(1) == kStateColumns && other.shape(0) == n,
          "own and other need the same number of rows lat_deg, lon_deg, heading_deg, tas_mps");
  require(out.shape(0) == n && out.shape(1) == kPairColumns, "out needs the shape [pairs, 7]");
  require(!horizon_s || *horizon_s >= 0.0, "horizon_s must be 0 or more");
  for (std::size_t i = 0; i < n; ++i) {
    const double* a = own.data() + kStateColumns * i;
    const double* b = other.data() + kStateColumns * i;
    const auto [r, v] = pair_of(a, b);
    const Cpa cpa = horizon_s ? closest_approach(r, v, 0.0, *horizon_s) : closest_approach(r, v);
    double* row = out.data() + kPairColumns * i;
    row[0] = norm(r);
    row[1] = haversine_nm(a[0], a[1], b[0], b[1]);
    row[2] = cpa.time_s;
    row[3] = cpa.distance;
    row[4] = modified_tau_s(r, v);
    row[5] = horizontal_miss_nm(r, v);
    row[6] = violates_well_clear(r, v) ? 1.0 : 0.0;
  }
}

}  // namespace

void bind_airspace(nb::module_& m) {
  bind_config(m);
  m.def("make_airspace", &make_vec_env<AirspaceWorld>, nb::arg("config"), nb::arg("num_worlds"), nb::arg("options"),
        "A batch of one airspace scene.");
  m.def(
      "airspace_types",
      [] {
        std::vector<std::string> names;
        for (const AircraftType& type : aircraft_types()) names.emplace_back(type.name);
        return names;
      },
      "Names of the known aircraft types.");
  m.def("airspace_propagate", &propagate, nb::arg("state").noconvert(), nb::arg("targets").noconvert(),
        nb::arg("aircraft_type"), nb::arg("altitude_ft"), nb::arg("out").noconvert(),
        "Flies aircraft toward fixed targets, second by second, into out [seconds, n, 5].");
  m.def("airspace_pair_geometry", &pair_geometry, nb::arg("own").noconvert(), nb::arg("other").noconvert(),
        nb::arg("horizon_s").none(), nb::arg("out").noconvert(),
        "Distance, closest approach and well clear of pairs flying straight on, into out [n, 7].");
}

}  // namespace slipstream
