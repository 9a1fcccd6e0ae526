#include "airspace/horizontal_cr.hpp"

#include <nanobind/stl/unique_ptr.h>

#include "bind/fields.hpp"

namespace slipstream {

void bind_horizontal_cr(nb::module_& m) {
  using airspace::HorizontalCrConfig;
  bind_fields<HorizontalCrConfig>(m, "HorizontalCrConfig", "bluesky-gym's horizontal conflict resolution task.");
  m.def("make_horizontal_cr", &make_vec_env<airspace::HorizontalCrWorld>, nb::arg("config"), nb::arg("num_worlds"),
        nb::arg("options"), "A batch of the horizontal conflict resolution task.");
}

}  // namespace slipstream
