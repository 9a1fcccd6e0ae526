#include "kernels/gae.hpp"

#include <vector>

#include "kernels/decisions.hpp"

namespace slipstream {

void gae(const GaeInput& in, float* advantage, float* target, std::uint8_t* complete) {
  std::vector<double> next_advantage(static_cast<std::size_t>(in.columns), 0.0);
  walk_back(
      in,
      [&](std::size_t at) {
        advantage[at] = target[at] = 0.0F;
        complete[at] = 0;
      },
      [&](const Outcome& to) {
        const double delta = to.reward + to.discount * to.next_value - in.value[to.at];
        const double value = delta + (to.ended ? 0.0 : to.discount * in.lambda * next_advantage[to.column]);
        advantage[to.at] = static_cast<float>(value);
        target[to.at] = static_cast<float>(value + in.value[to.at]);
        complete[to.at] = 1;
        next_advantage[to.column] = value;
      });
}

}  // namespace slipstream
