#include <nanobind/stl/unique_ptr.h>

#include <algorithm>

#include "airspace/geo.hpp"
#include "airspace/world.hpp"
#include "bind/fields.hpp"

namespace slipstream {
namespace {

using namespace airspace;

// Columns of a state row: lat_deg, lon_deg, heading_deg, tas_mps.
constexpr std::size_t kStateColumns = 4;

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
  if (targets.shape(0) != n || targets.shape(1) != 2)
    throw std::invalid_argument("targets has the shape (" + std::to_string(targets.shape(0)) + ", " +
                                std::to_string(targets.shape(1)) +
                                "); it needs a row heading_deg, cas_kt for each of " + std::to_string(n) + " aircraft");
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
  bind_fields<AircraftConfig>(m, "AircraftConfig", "One aircraft of a listed scene.");
  bind_fields<RandomSectorConfig>(m, "RandomSectorConfig", "Traffic drawn anew at every reset.");
  bind_fields<AirspaceConfig>(m, "AirspaceConfig", "What an airspace scene is made of.");
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
