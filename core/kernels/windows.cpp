#include "kernels/windows.hpp"

#include <algorithm>

namespace slipstream {
namespace {

// The width known when compiled: then a row of a window is a register or two.
template <std::size_t kWidth>
void copy_window(const float* from, const WindowShape& shape, float* to) {
  const std::size_t width = kWidth != 0 ? kWidth : shape.width;
  for (std::size_t plane = 0; plane < shape.planes; ++plane) {
    const float* row = from + plane * shape.board_height * shape.board_width;
    for (std::size_t y = 0; y < shape.height; ++y, row += shape.board_width, to += width) std::copy_n(row, width, to);
  }
}

}  // namespace

void copy_windows(const float* boards, const WindowShape& shape, const std::int64_t* board, const std::int64_t* corner,
                  std::size_t count, float* out, std::size_t stride) {
  const std::size_t size = shape.planes * shape.board_height * shape.board_width;
  for (std::size_t k = 0; k < count; ++k) {
    const float* from = boards + static_cast<std::size_t>(board[k]) * size + static_cast<std::size_t>(corner[k]);
    if (shape.width == 8) {
      copy_window<8>(from, shape, out + k * stride);
    } else {
      copy_window<0>(from, shape, out + k * stride);
    }
  }
}

}  // namespace slipstream
