// Registers of 16 numbers (AVX-512). Only this file is compiled for processors that have them; none of it runs, or is
// initialised at run time, before mlp_tiles.cpp has asked the processor.
#include "kernels/mlp_finish_impl.hpp"

namespace slipstream {

#if defined(__AVX512F__)
namespace {
constexpr Tiles kTiles = tiles_by<Kernel<16, 6, 4>>();  // 24 of 32 registers hold sums
}
const Tiles* const kTilesOf16 = &kTiles;
#else
const Tiles* const kTilesOf16 = nullptr;
#endif

}  // namespace slipstream
