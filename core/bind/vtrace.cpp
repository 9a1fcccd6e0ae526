#include "kernels/vtrace.hpp"

#include "bind/bind.hpp"
#include "bind/slab.hpp"

namespace slipstream {

void bind_vtrace(nb::module_& m) {
  m.def(
      "vtrace",
      [](In<std::uint8_t, 2> decided, In<float, 2> value, In<float, 2> log_ratio, In<std::uint8_t, 2> paid,
         In<float, 2> reward, In<std::int32_t, 2> duration, In<std::uint8_t, 2> terminated,
         In<std::uint8_t, 2> truncated, In<float, 2> end_value, In<float, 1> last_value, double gamma,
         double trace_lambda, double rho_bar, double c_bar, Out<float, 2> advantage, Out<float, 2> target,
         Out<std::uint8_t, 2> complete) {
        const GaeInput in = slab(decided, value, paid, reward, duration, terminated, truncated, end_value, last_value,
                                 gamma, trace_lambda);
        same_shape(decided, log_ratio, "log_ratio");
        same_shape(decided, advantage, "advantage");
        same_shape(decided, target, "target");
        same_shape(decided, complete, "complete");
        const VtraceRatios ratios{log_ratio.data(), rho_bar, c_bar};
        const nb::gil_scoped_release release;
        vtrace(in, ratios, advantage.data(), target.data(), complete.data());
      },
      nb::kw_only(), nb::arg("decided").noconvert(), nb::arg("value").noconvert(), nb::arg("log_ratio").noconvert(),
      nb::arg("paid").noconvert(), nb::arg("reward").noconvert(), nb::arg("duration").noconvert(),
      nb::arg("terminated").noconvert(), nb::arg("truncated").noconvert(), nb::arg("end_value").noconvert(),
      nb::arg("last_value").noconvert(), nb::arg("gamma"), nb::arg("trace_lambda"), nb::arg("rho_bar"),
      nb::arg("c_bar"), nb::arg("advantage").noconvert(), nb::arg("target").noconvert(),
      nb::arg("complete").noconvert(),
      "V-trace targets, and advantages that rho is still to weight, of decisions of any duration; [rows, columns].");
}

}  // namespace slipstream
