// n-step outcomes of decisions of any duration (Sutton 1988; semi-Markov form: the discounts gamma^duration multiply).
#pragma once

#include <cstdint>

namespace slipstream {

// Time-major [rows, columns] arrays; a column is one agent of one world. A decision is a row with decided != 0. What it
// led to stands on the first later-or-equal row with paid != 0: reward (already discounted tick by tick), duration in
// ticks, and how the episode ended there, if it did.
struct NstepInput {
  int rows = 0;
  int columns = 0;
  const std::uint8_t* decided = nullptr;
  const std::uint8_t* paid = nullptr;
  const float* reward = nullptr;
  const std::int32_t* duration = nullptr;
  const std::uint8_t* terminated = nullptr;
  const std::uint8_t* truncated = nullptr;
  double gamma = 0.99;
  int steps = 1;  // n
};

inline constexpr std::int32_t kTerminated = -1;
inline constexpr std::int32_t kTruncated = -2;  // bootstrap from the final observation of row `last`

// What stands on a decision's row. A span is the decision and those of its column after it, n in all, or fewer where
// the episode ends. It is complete when the outcome of its last decision is in the slab.
struct NstepOutput {
  float* reward = nullptr;          // sum of the span's rewards, each times the discounts before it
  float* discount = nullptr;        // product of the span's discounts; 0 where it ends in a termination
  std::int32_t* outcome = nullptr;  // row with the outcome of this decision itself; -1: not in the slab
  std::int32_t* last = nullptr;     // row with the outcome of the span's last decision
  std::int32_t* next = nullptr;  // row of the decision after the span; rows: after the slab; or kTerminated, kTruncated
  std::uint8_t* complete = nullptr;  // 0: the above but outcome are not known yet
};

// Fills every place; what is not a decision is 0 and its rows are -1.
void nstep(const NstepInput& in, const NstepOutput& out);

}  // namespace slipstream
