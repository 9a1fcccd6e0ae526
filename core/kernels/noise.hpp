// Action noise from a counter-based stream keyed by (seed, global world, agent, step): the same whatever the batch
// width, worker or thread that asks.
#pragma once

#include <cstdint>

namespace slipstream {

struct NoiseKey {
  std::uint64_t seed = 0;
  std::uint32_t first_world = 0;
  std::uint32_t step = 0;  // ticks of the run so far
};

// out[worlds, agents, width]: standard normal, or uniform in (0, 1).
void fill_normal(const NoiseKey& key, int worlds, int agents, int width, float* out);
void fill_uniform(const NoiseKey& key, int worlds, int agents, int width, float* out);

}  // namespace slipstream
