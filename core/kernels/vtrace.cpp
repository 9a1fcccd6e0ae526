#include "kernels/vtrace.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/decisions.hpp"

namespace slipstream {

void vtrace(const GaeInput& in, const VtraceRatios& ratios, float* advantage, float* target, std::uint8_t* complete) {
  std::vector<double> corrections(static_cast<std::size_t>(in.columns), 0.0);  // v - V of the decision that follows
  walk_back(
      in,
      [&](std::size_t at) {
        advantage[at] = target[at] = 0.0F;
        complete[at] = 0;
      },
      [&](const Outcome& to) {
        const double ratio = std::exp(static_cast<double>(ratios.log_ratio[to.at]));
        const double rho = std::min(ratio, ratios.rho_bar);  // in this order a ratio that is not a number stays one
        const double c = in.lambda * std::min(ratio, ratios.c_bar);
        const double value = in.value[to.at];
        const double correction = to.ended ? 0.0 : corrections[to.column];
        const double delta = to.reward + to.discount * to.next_value - value;
        // Remark 1 of the paper: v_s - V_s = rho_s delta_s + Gamma_s c_s (v_{s+1} - V_{s+1}).
        const double own = rho * delta + to.discount * c * correction;
        advantage[to.at] = static_cast<float>(delta + to.discount * correction);
        target[to.at] = static_cast<float>(value + own);
        complete[to.at] = 1;
        corrections[to.column] = own;
      });
}

}  // namespace slipstream
