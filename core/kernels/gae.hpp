// Generalised advantage estimation over decisions of any duration (Schulman et al. 2016; semi-Markov form).
#pragma once

#include <cstdint>

namespace slipstream {

// Time-major [rows, columns] arrays; a column is one agent of one world. A decision is a row with decided != 0. What it
// led to stands on the first later-or-equal row with paid != 0: reward (already discounted tick by tick), duration in
// ticks, and how the episode ended there, if it did.
struct GaeInput {
  int rows = 0;
  int columns = 0;
  const std::uint8_t* decided = nullptr;
  const float* value = nullptr;  // V(obs) on decision rows
  const std::uint8_t* paid = nullptr;
  const float* reward = nullptr;
  const std::int32_t* duration = nullptr;
  const std::uint8_t* terminated = nullptr;
  const std::uint8_t* truncated = nullptr;
  const float* end_value = nullptr;   // V(final_obs) where truncated
  const float* last_value = nullptr;  // [columns], V(obs after the last row)
  double gamma = 0.99;
  double lambda = 0.95;
};

// Fills advantage and target (= advantage + value) on decision rows; complete[r, c] = 1 where the decision's outcome is
// in the slab. Everything else is set to 0.
void gae(const GaeInput& in, float* advantage, float* target, std::uint8_t* complete);

}  // namespace slipstream
