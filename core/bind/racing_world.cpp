#include <nanobind/stl/array.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include "bind/racing.hpp"
#include "racing/world.hpp"

namespace slipstream {
namespace {

using namespace racing;  // NOLINT(google-build-using-namespace)

void bind_drivers(nb::module_& m) {
  nb::class_<FollowGap>(m, "FollowGap")
      .def(nb::init<>())
      .def_rw("view", &FollowGap::view)
      .def_rw("cap_m", &FollowGap::cap_m)
      .def_rw("window", &FollowGap::window)
      .def_rw("half_width", &FollowGap::half_width)
      .def_rw("bubble", &FollowGap::bubble)
      .def_rw("depth", &FollowGap::depth)
      .def_rw("gap_m", &FollowGap::gap_m)
      .def_rw("gain", &FollowGap::gain)
      .def_rw("smooth", &FollowGap::smooth)
      .def_rw("fast_mps", &FollowGap::fast_mps)
      .def_rw("slow_mps", &FollowGap::slow_mps)
      .def_rw("hard", &FollowGap::hard)
      .def_rw("careful", &FollowGap::careful);
  nb::class_<PurePursuit>(m, "PurePursuit")
      .def(nb::init<>())
      .def_rw("ahead_s", &PurePursuit::ahead_s)
      .def_rw("ahead_min_m", &PurePursuit::ahead_min_m)
      .def_rw("share", &PurePursuit::share);
  nb::class_<Squeezer>(m, "Squeezer")
      .def(nb::init<>())
      .def_rw("ahead_m", &Squeezer::ahead_m)
      .def_rw("wide_m", &Squeezer::wide_m)
      .def_rw("narrow_m", &Squeezer::narrow_m)
      .def_rw("close_s", &Squeezer::close_s)
      .def_rw("look_m", &Squeezer::look_m)
      .def_rw("gain", &Squeezer::gain);
  nb::class_<Blocker>(m, "Blocker")
      .def(nb::init<>())
      .def_rw("watch_m", &Blocker::watch_m)
      .def_rw("room_m", &Blocker::room_m)
      .def_rw("share", &Blocker::share)
      .def_rw("ahead_s", &Blocker::ahead_s)
      .def_rw("ahead_min_m", &Blocker::ahead_min_m);
}

void bind_parts(nb::module_& m) {
  nb::class_<CarConfig>(m, "CarConfig")
      .def(nb::init<>())
      .def_rw("id", &CarConfig::id)
      .def_rw("role", &CarConfig::role)
      .def_rw("vehicle", &CarConfig::vehicle)
      .def_rw("speed_min_mps", &CarConfig::speed_min_mps)
      .def_rw("speed_max_mps", &CarConfig::speed_max_mps)
      .def_rw("friction_scale", &CarConfig::friction_scale)
      .def_rw("mass_scale", &CarConfig::mass_scale)
      .def_rw("reward", &CarConfig::reward);
  nb::class_<LidarConfig>(m, "LidarConfig")
      .def(nb::init<>())
      .def_rw("beams", &LidarConfig::beams)
      .def_rw("fov_rad", &LidarConfig::fov_rad)
      .def_rw("range_m", &LidarConfig::range_m)
      .def_rw("noise_m", &LidarConfig::noise_m)
      .def_rw("dropout", &LidarConfig::dropout)
      .def_rw("mount_m", &LidarConfig::mount_m);
  nb::class_<CircuitConfig>(m, "CircuitConfig")
      .def(nb::init<>())
      .def_rw("corners", &CircuitConfig::corners)
      .def_rw("radius", &CircuitConfig::radius)
      .def_rw("roughness", &CircuitConfig::roughness)
      .def_rw("width", &CircuitConfig::width)
      .def_rw("narrowest", &CircuitConfig::narrowest)
      .def_rw("tightest", &CircuitConfig::tightest)
      .def_rw("resolution", &CircuitConfig::resolution)
      .def_rw("mirrored", &CircuitConfig::mirrored);
  nb::class_<ObservationConfig>(m, "RacingObservation")
      .def(nb::init<>())
      .def_rw("scan", &ObservationConfig::scan)
      .def_rw("speed", &ObservationConfig::speed)
      .def_rw("sway", &ObservationConfig::sway)
      .def_rw("steer", &ObservationConfig::steer)
      .def_rw("line", &ObservationConfig::line)
      .def_rw("target", &ObservationConfig::target)
      .def_rw("frame_stack", &ObservationConfig::frame_stack)
      .def_rw("action_stack", &ObservationConfig::action_stack)
      .def_rw("ahead_m", &ObservationConfig::ahead_m);
  nb::class_<SpawnConfig>(m, "SpawnConfig")
      .def(nb::init<>())
      .def_prop_rw(
          "kind",
          [](const SpawnConfig& self) {
            return self.kind == SpawnKind::kGrid ? "grid" : self.kind == SpawnKind::kRandom ? "random" : "sets";
          },
          [](SpawnConfig& self, const std::string& kind) {
            self.kind = kind == "sets" ? SpawnKind::kSets : kind == "random" ? SpawnKind::kRandom : SpawnKind::kGrid;
          })
      .def_rw("start_m", &SpawnConfig::start_m)
      .def_rw("gap_m", &SpawnConfig::gap_m)
      .def_rw("stagger_m", &SpawnConfig::stagger_m)
      .def_rw("lateral_jitter_m", &SpawnConfig::lateral_jitter_m)
      .def_rw("yaw_jitter_rad", &SpawnConfig::yaw_jitter_rad)
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
  nb::class_<Phase>(m, "RacingPhase")
      .def(nb::init<>())
      .def_rw("name", &Phase::name)
      .def_rw("spawns", &Phase::spawns)
      .def_rw("speed_from_mps", &Phase::speed_from_mps)
      .def_rw("speed_to_mps", &Phase::speed_to_mps)
      .def_rw("lock_mps", &Phase::lock_mps)
      .def_rw("lock_steps", &Phase::lock_steps)
      .def_rw("follow_gap", &Phase::follow_gap);
}

void bind_config(nb::module_& m) {
  nb::enum_<Task>(m, "RacingTask")
      .value("time_trial", Task::kTimeTrial)
      .value("head_to_head", Task::kHeadToHead)
      .value("overtake", Task::kOvertake)
      .value("gaplock", Task::kGaplock)
      .value("convoy_lock", Task::kConvoyLock);
  nb::class_<Course>(m, "RacingCourse", "What everything drives on, shared by all worlds.")
      .def(
          "__init__",
          [](Course* self, SharedMap& map, const Centerline& line, const Centerline& along, In<double, 1> speed,
             const std::string& mode) {
            std::vector<double> distance;
            if (mode_named(mode) == Mode::kCompat) distance = map.distances();
            new (self)
                Course{{map.grid, line}, {along, {speed.data(), speed.data() + speed.shape(0)}}, std::move(distance)};
          },
          nb::arg("map"), nb::arg("line"), nb::arg("along"), nb::arg("speed"), nb::arg("mode"));
  nb::class_<RacingConfig>(m, "RacingConfig", "What a race is made of.")
      .def(nb::init<>())
      .def_rw("task", &RacingConfig::task)
      .def_prop_rw(
          "physics", [](const RacingConfig& self) { return self.physics == Mode::kCompat ? "compat" : "clean"; },
          [](RacingConfig& self, const std::string& name) { self.physics = mode_named(name); })
      .def_prop_rw(
          "course", [](const RacingConfig& self) { return std::const_pointer_cast<Course>(self.course); },
          [](RacingConfig& self, std::shared_ptr<Course> course) { self.course = std::move(course); },
          nb::arg("course").none())
      .def_rw("circuits", &RacingConfig::circuits)
      .def_rw("cars", &RacingConfig::cars)
      .def_rw("lidar", &RacingConfig::lidar)
      .def_rw("observation", &RacingConfig::observation)
      .def_rw("spawn", &RacingConfig::spawn)
      .def_rw("phases", &RacingConfig::phases)
      .def_rw("pure_pursuit", &RacingConfig::pure_pursuit)
      .def_rw("squeezer", &RacingConfig::squeezer)
      .def_rw("blocker", &RacingConfig::blocker)
      .def_prop_rw(
          "line_speed_max_mps", [](const RacingConfig& self) { return self.limits.speed_max; },
          [](RacingConfig& self, double speed) { self.limits.speed_max = speed; })
      .def_rw("action_repeat", &RacingConfig::action_repeat)
      .def_rw("max_episode_steps", &RacingConfig::max_episode_steps)
      .def_rw("steer_choices", &RacingConfig::steer_choices)
      .def_rw("speed_choices", &RacingConfig::speed_choices)
      .def_rw("laps", &RacingConfig::laps)
      .def_rw("finish_margin_m", &RacingConfig::finish_margin_m)
      .def_rw("lead_m", &RacingConfig::lead_m)
      .def_rw("idle_mps", &RacingConfig::idle_mps)
      .def_rw("idle_after_s", &RacingConfig::idle_after_s)
      .def_rw("pressure_m", &RacingConfig::pressure_m)
      .def_rw("pressed_s", &RacingConfig::pressed_s)
      .def_rw("border_m", &RacingConfig::border_m);
}

}  // namespace

void bind_racing_world(nb::module_& m) {
  bind_drivers(m);
  bind_parts(m);
  bind_config(m);
  m.def("racing_terms", &term_names, "Names of the reward's terms, in order.");
  m.attr("RACING_PAID_TERMS") = kNumPaid;
  m.def("make_racing", &make_vec_env<RacingWorld>, nb::arg("config"), nb::arg("num_worlds"), nb::arg("options"),
        "A batch of one race.");
}

}  // namespace slipstream
