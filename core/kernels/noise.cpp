#include "kernels/noise.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "slipstream/rng.hpp"

namespace slipstream {
namespace {

// Uniform in (0, 1): the half keeps logarithms finite.
double open_unit(std::uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1.0p-32; }

template <class Emit>
void for_each_block(const NoiseKey& key, int worlds, int agents, int width, Emit&& emit) {
  // A key of its own: with the world streams' key, counters of the two could meet.
  const std::uint64_t seed = key.seed ^ 0xA511E9B3C0FFEE11;
  for (int w = 0; w < worlds; ++w) {
    for (int a = 0; a < agents; ++a) {
      for (int k = 0; k < width; k += 4) {
        const PhiloxBlock bits = philox({static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(a),
                                         key.first_world + static_cast<std::uint32_t>(w), key.step},
                                        seed);
        emit(bits, (static_cast<std::ptrdiff_t>(w) * agents + a) * width + k, std::min(4, width - k));
      }
    }
  }
}

}  // namespace

void fill_normal(const NoiseKey& key, int worlds, int agents, int width, float* out) {
  for_each_block(key, worlds, agents, width, [&](const PhiloxBlock& bits, std::ptrdiff_t at, int count) {
    for (int pair = 0; pair < count; pair += 2) {
      const auto p = static_cast<std::size_t>(pair);
      const double radius = std::sqrt(-2.0 * std::log(open_unit(bits[p])));
      const double angle = 2.0 * std::numbers::pi * open_unit(bits[p + 1]);
      out[at + pair] = static_cast<float>(radius * std::cos(angle));
      if (pair + 1 < count) out[at + pair + 1] = static_cast<float>(radius * std::sin(angle));
    }
  });
}

void fill_uniform(const NoiseKey& key, int worlds, int agents, int width, float* out) {
  for_each_block(key, worlds, agents, width, [&](const PhiloxBlock& bits, std::ptrdiff_t at, int count) {
    // 24 bits and a half fit a float exactly, so that the result is never rounded up to 1.
    for (int k = 0; k < count; ++k) {
      out[at + k] = (static_cast<float>(bits[static_cast<std::size_t>(k)] >> 8) + 0.5F) * 0x1.0p-24F;
    }
  });
}

}  // namespace slipstream
