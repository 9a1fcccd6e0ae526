#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include "bind/fields.hpp"
#include "bind/racing.hpp"
#include "racing/world.hpp"

namespace slipstream {
namespace {

using namespace racing;  // NOLINT(google-build-using-namespace)

void bind_parts(nb::module_& m) {
  bind_fields<FollowGap>(m, "FollowGap");
  bind_fields<PurePursuit>(m, "PurePursuit");
  bind_fields<Squeezer>(m, "Squeezer");
  bind_fields<Blocker>(m, "Blocker");
  bind_fields<CarConfig>(m, "CarConfig");
  bind_fields<LidarConfig>(m, "LidarConfig");
  bind_fields<CircuitConfig>(m, "CircuitConfig");
  bind_fields<ObservationConfig>(m, "RacingObservation");
  bind_fields<SpawnConfig>(m, "SpawnConfig")
      .def_prop_ro("sets",
                   [](const SpawnConfig& self) {
                     std::vector<std::vector<std::array<double, 3>>> all;
                     for (const SpawnSet& set : self.sets) {
                       all.emplace_back();
                       for (const Spot& spot : set.cars) all.back().push_back({spot.s_m, spot.lateral_m, spot.yaw_rad});
                     }
                     return all;
                   })
      .def(
          "add_set",
          [](SpawnConfig& self, const std::string& name, const std::vector<std::array<double, 3>>& cars) {
            SpawnSet set{name, {}};
            for (const auto& [s, lateral, yaw] : cars) set.cars.push_back({s, lateral, yaw});
            self.sets.push_back(std::move(set));
          },
          nb::arg("name"), nb::arg("cars"), "A place [s_m, lateral_m, yaw_rad] for every car.");
  bind_fields<Phase>(m, "RacingPhase");
}

void bind_config(nb::module_& m) {
  nb::class_<Course>(m, "RacingCourse", "What everything drives on, shared by all worlds.")
      .def(
          "__init__",
          [](Course* self, SharedMap& map, const Centerline& line, const Centerline& along, In<double, 1> speed,
             const std::string& mode) {
            std::vector<double> distance;
            if (choice_named<Mode>(mode) == Mode::kCompat) distance = map.distances();
            new (self)
                Course{{map.grid, line}, {along, {speed.data(), speed.data() + speed.shape(0)}}, std::move(distance)};
          },
          nb::arg("map"), nb::arg("line"), nb::arg("along"), nb::arg("speed"), nb::arg("mode"));
  bind_fields<RacingConfig>(m, "RacingConfig", "What a race is made of.")
      .def_prop_rw(
          "course", [](const RacingConfig& self) { return std::const_pointer_cast<Course>(self.course); },
          [](RacingConfig& self, std::shared_ptr<Course> course) { self.course = std::move(course); },
          nb::arg("course").none());
}

}  // namespace

void bind_racing_world(nb::module_& m) {
  bind_parts(m);
  bind_config(m);
  m.def("make_racing", &make_vec_env<RacingWorld>, nb::arg("config"), nb::arg("num_worlds"), nb::arg("options"),
        "A batch of one race.");
}

}  // namespace slipstream
