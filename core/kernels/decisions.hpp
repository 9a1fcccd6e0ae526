// The one walk over a slab's decisions that GAE and V-trace share.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/gae.hpp"

namespace slipstream {

// A finished decision and what it led to.
struct Outcome {
  std::size_t at = 0;  // flat [row, column] of the decision
  std::size_t column = 0;
  double reward = 0.0;
  double discount = 1.0;    // gamma^duration
  double next_value = 0.0;  // V of where it led: 0 where terminated, V(final_obs) where truncated
  bool ended = false;       // the agent's episode ended with it, so nothing later counts
};

// Calls clear(at) for every place and visit(outcome) for every finished decision, the last row first, so that a
// column's later decisions have been visited when an earlier one is. Rows are outermost because that is how they lie in
// memory.
template <class Clear, class Visit>
void walk_back(const GaeInput& in, Clear clear, Visit visit) {
  const auto columns = static_cast<std::size_t>(in.columns);
  std::vector<std::ptrdiff_t> paid_rows(columns, -1);  // per column, the row that pays for the decision we look for
  for (std::ptrdiff_t r = in.rows - 1; r >= 0; --r) {
    for (std::size_t c = 0; c < columns; ++c) {
      const std::size_t at = static_cast<std::size_t>(r) * columns + c;
      std::ptrdiff_t& paid_row = paid_rows[c];
      clear(at);
      if (in.paid[at] != 0) paid_row = r;
      if (in.decided[at] == 0 || paid_row < 0) continue;

      const std::size_t end = static_cast<std::size_t>(paid_row) * columns + c;
      Outcome outcome{at, c, in.reward[end]};
      outcome.ended = in.terminated[end] != 0 || in.truncated[end] != 0;
      outcome.discount = in.duration[end] == 1 ? in.gamma : std::pow(in.gamma, in.duration[end]);
      if (in.truncated[end] != 0 && in.terminated[end] == 0) {
        outcome.next_value = in.end_value[end];
      } else if (!outcome.ended) {
        outcome.next_value = paid_row + 1 < in.rows ? in.value[end + columns] : in.last_value[c];
      }
      visit(outcome);
      paid_row = -1;
    }
  }
}

}  // namespace slipstream
