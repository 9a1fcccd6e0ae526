// Windows cut out of boards that lie one after the other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream {

struct WindowShape {
  std::size_t planes = 1;
  std::size_t board_height = 1;
  std::size_t board_width = 1;
  std::size_t height = 1;  // of a window
  std::size_t width = 1;
};

// Row k of `out` begins with window k: of board[k], from the cell corner[k] (row * board_width + column) on, plane by
// plane, row by row; `out` has `stride` floats a row, and what follows the window is left alone. No window may reach
// over the border of its board.
void copy_windows(const float* boards, const WindowShape& shape, const std::int64_t* board, const std::int64_t* corner,
                  std::size_t count, float* out, std::size_t stride);

}  // namespace slipstream
