#include "probe/probe.hpp"

#include <nanobind/stl/unique_ptr.h>

#include "bind/fields.hpp"

namespace slipstream {

void bind_probe(nb::module_& m) {
  using probe::ProbeConfig;
  bind_fields<ProbeConfig>(m, "ProbeConfig", "Which probe world, and how many ticks an episode has.");
  m.def("probe_tasks", &probe::task_names, "Names of the probe worlds.");
  m.def(
      "make_probe",
      [](const ProbeConfig& config, int num_worlds, const VecEnvOptions& options) {
        return std::make_unique<VecEnv>(probe::make_worlds(config, num_worlds), options);
      },
      nb::arg("config"), nb::arg("num_worlds"), nb::arg("options"), "A batch of one probe world.");
}

}  // namespace slipstream
