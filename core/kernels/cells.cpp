// Registers of 8 numbers, which every processor this is built for has, and the choice.
#include "kernels/cells_impl.hpp"

namespace slipstream {

const Cells& cells_of_8() {
  static constexpr Cells kCells = CellKernel<8>::cells();
  return kCells;
}

const Cells* cells_of_16() { return tiles_of_16() == nullptr ? nullptr : kCellsOf16; }

const Cells& fastest_cells() {
  const Cells* const wide = cells_of_16();
  return wide != nullptr ? *wide : cells_of_8();
}

}  // namespace slipstream
