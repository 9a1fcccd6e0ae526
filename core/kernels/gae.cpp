#include "kernels/gae.hpp"

#include <cmath>
#include <cstddef>

namespace slipstream {

void gae(const GaeInput& in, float* advantage, float* target, std::uint8_t* complete) {
  const auto columns = static_cast<std::size_t>(in.columns);
  for (std::size_t c = 0; c < columns; ++c) {
    double next_advantage = 0.0;
    std::ptrdiff_t outcome = -1;  // row that pays for the decision we look for
    for (std::ptrdiff_t r = in.rows - 1; r >= 0; --r) {
      const std::size_t at = static_cast<std::size_t>(r) * columns + c;
      advantage[at] = target[at] = 0.0F;
      complete[at] = 0;
      if (in.paid[at] != 0) outcome = r;
      if (in.decided[at] == 0 || outcome < 0) continue;

      const std::size_t end = static_cast<std::size_t>(outcome) * columns + c;
      const bool ended = in.terminated[end] != 0 || in.truncated[end] != 0;
      double next_value = 0.0;
      if (in.truncated[end] != 0 && in.terminated[end] == 0) {
        next_value = in.end_value[end];
      } else if (!ended) {
        next_value = outcome + 1 < in.rows ? in.value[end + columns] : in.last_value[c];
      }
      const double discount = in.duration[end] == 1 ? in.gamma : std::pow(in.gamma, in.duration[end]);
      const double delta = in.reward[end] + discount * next_value - in.value[at];
      const double value = delta + (ended ? 0.0 : discount * in.lambda * next_advantage);
      advantage[at] = static_cast<float>(value);
      target[at] = static_cast<float>(value + in.value[at]);
      complete[at] = 1;
      next_advantage = value;
      outcome = -1;
    }
  }
}

}  // namespace slipstream
