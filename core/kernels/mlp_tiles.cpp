// Registers of 8 numbers, which every processor this is built for has, and the choice.
#include "kernels/mlp_finish_impl.hpp"

namespace slipstream {

const Tiles& tiles_of_8() {
  static constexpr Tiles kTiles = tiles_by<Kernel<8, 6, 2>>();  // 12 of 16 registers hold sums
  return kTiles;
}

const Tiles* tiles_of_16() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512cd"))
    return nullptr;
#endif
  return kTilesOf16;
}

const Tiles& fastest_tiles() {
  const Tiles* const wide = tiles_of_16();
  return wide != nullptr ? *wide : tiles_of_8();
}

}  // namespace slipstream
