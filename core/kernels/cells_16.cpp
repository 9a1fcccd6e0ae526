// Registers of 16 numbers (AVX-512), compiled and used as mlp_tiles_16.cpp is.
#include "kernels/cells_impl.hpp"

namespace slipstream {

#if defined(__AVX512F__)
namespace {
constexpr Cells kCells = CellKernel<16>::cells();
}
const Cells* const kCellsOf16 = &kCells;
#else
const Cells* const kCellsOf16 = nullptr;
#endif

}  // namespace slipstream
