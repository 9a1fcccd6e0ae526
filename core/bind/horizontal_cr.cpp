#include "airspace/horizontal_cr.hpp"

#include <nanobind/stl/unique_ptr.h>

#include "bind/bind.hpp"

namespace slipstream {

void bind_horizontal_cr(nb::module_& m) {
  using airspace::HorizontalCrConfig;
  nb::class_<HorizontalCrConfig>(m, "HorizontalCrConfig", "bluesky-gym's horizontal conflict resolution task.")
      .def(nb::init<>())
      .def_rw("num_intruders", &HorizontalCrConfig::num_intruders)
      .def_rw("initial_speed_mps", &HorizontalCrConfig::initial_speed_mps)
      .def_rw("cruise_speed_mps", &HorizontalCrConfig::cruise_speed_mps)
      .def_rw("braking_mps2", &HorizontalCrConfig::braking_mps2)
      .def_rw("decision_s", &HorizontalCrConfig::decision_s)
      .def_rw("substep_s", &HorizontalCrConfig::substep_s)
      .def_rw("max_episode_steps", &HorizontalCrConfig::max_episode_steps)
      .def_rw("heading_step_deg", &HorizontalCrConfig::heading_step_deg)
      .def_rw("separation_nm", &HorizontalCrConfig::separation_nm)
      .def_rw("waypoint_radius_km", &HorizontalCrConfig::waypoint_radius_km)
      .def_rw("reach_reward", &HorizontalCrConfig::reach_reward)
      .def_rw("drift_penalty_per_rad", &HorizontalCrConfig::drift_penalty_per_rad)
      .def_rw("intrusion_penalty", &HorizontalCrConfig::intrusion_penalty);
  m.def("make_horizontal_cr", &make_vec_env<airspace::HorizontalCrWorld>, nb::arg("config"), nb::arg("num_worlds"),
        nb::arg("options"), "A batch of the horizontal conflict resolution task.");
}

}  // namespace slipstream
