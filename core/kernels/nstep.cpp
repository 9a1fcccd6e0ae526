#include "kernels/nstep.hpp"

#include <cmath>
#include <cstddef>
#include <vector>

namespace slipstream {
namespace {

struct Decision {
  std::int32_t row = 0;
  std::int32_t outcome = -1;  // row; -1: still open
  double reward = 0.0;
  double discount = 1.0;
  bool terminated = false;
  bool ended = false;
};

// The decisions of one column in order, each with what it led to.
void read_column(const NstepInput& in, std::size_t column, std::vector<Decision>& decisions) {
  decisions.clear();
  for (std::int32_t r = 0; r < in.rows; ++r) {
    const std::size_t at = static_cast<std::size_t>(r) * static_cast<std::size_t>(in.columns) + column;
    if (in.decided[at] != 0) decisions.push_back({.row = r});
    if (in.paid[at] == 0 || decisions.empty() || decisions.back().outcome >= 0) continue;
    Decision& decision = decisions.back();
    decision.outcome = r;
    decision.reward = in.reward[at];
    decision.discount = in.duration[at] == 1 ? in.gamma : std::pow(in.gamma, in.duration[at]);
    decision.terminated = in.terminated[at] != 0;
    decision.ended = decision.terminated || in.truncated[at] != 0;
  }
}

}  // namespace

void nstep(const NstepInput& in, const NstepOutput& out) {
  const auto columns = static_cast<std::size_t>(in.columns);
  for (std::size_t at = 0; at < static_cast<std::size_t>(in.rows) * columns; ++at) {
    out.reward[at] = out.discount[at] = 0.0F;
    out.outcome[at] = out.last[at] = out.next[at] = -1;
    out.complete[at] = 0;
  }
  std::vector<Decision> decisions;
  decisions.reserve(static_cast<std::size_t>(in.rows));
  for (std::size_t c = 0; c < columns; ++c) {
    read_column(in, c, decisions);
    for (std::size_t i = 0; i < decisions.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(decisions[i].row) * columns + c;
      out.outcome[at] = decisions[i].outcome;
      double reward = 0.0;
      double discount = 1.0;
      const std::size_t limit = i + static_cast<std::size_t>(in.steps);
      for (std::size_t k = i; k < decisions.size() && decisions[k].outcome >= 0; ++k) {
        const Decision& step = decisions[k];
        reward += discount * step.reward;
        discount *= step.discount;
        if (!step.ended && k + 1 < limit) continue;
        out.reward[at] = static_cast<float>(reward);
        out.discount[at] = step.terminated ? 0.0F : static_cast<float>(discount);
        out.last[at] = step.outcome;
        if (step.ended) {
          out.next[at] = step.terminated ? kTerminated : kTruncated;
        } else {
          out.next[at] = k + 1 < decisions.size() ? decisions[k + 1].row : in.rows;
        }
        out.complete[at] = 1;
        break;
      }
    }
  }
}

}  // namespace slipstream
