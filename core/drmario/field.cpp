#include "drmario/field.hpp"

#include <algorithm>

namespace slipstream::drmario {
namespace {

constexpr int kRun = 4;

// One line of cells: `count` of them, `stride` apart.
void match_line(Cells& cells, int first, int count, int stride, Matches& found) {
  const auto at = [&](int i) -> std::uint8_t& { return cells[static_cast<std::size_t>(first + i * stride)]; };
  for (int i = 0; i < count;) {
    if (is_free(at(i))) {
      ++i;
      continue;
    }
    const std::uint8_t colour = colour_of(at(i));
    int end = i + 1;
    while (end < count && !is_free(at(end)) && colour_of(at(end)) == colour) ++end;
    if (end - i >= kRun) {
      found.colours[static_cast<std::size_t>(found.runs++)] = colour;
      for (int k = i; k < end; ++k) {
        const std::uint8_t kind = kind_of(at(k));
        if (kind == kMatched) continue;
        ++found.cells;
        found.viruses += kind == kVirus ? 1 : 0;
        at(k) = static_cast<std::uint8_t>(kMatched | colour);
      }
    }
    i = end;
  }
}

}  // namespace

bool drop_loose(Cells& cells) {
  bool fell = false;
  for (int i = kCells - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    if (!is_free(cells[at])) continue;
    cells[at] = kEmpty;
    if (i < kColumns) continue;
    std::uint8_t& above = cells[at - kColumns];
    const std::uint8_t kind = kind_of(above);
    if (kind == kSingle || kind == kTop || kind == kBottom) {
      cells[at] = above;
      above = kEmpty;
      fell = true;
    } else if (kind == kRight && is_free(cells[at - 1])) {
      cells[at] = above;
      cells[at - 1] = cells[at - 1 - kColumns];
      above = kEmpty;
      cells[at - 1 - kColumns] = kEmpty;
      fell = true;
    }
  }
  return fell;
}

Matches match_rows(Cells& cells) {
  Matches found;
  for (int row = 0; row < kRows; ++row) match_line(cells, row * kColumns, kColumns, 1, found);
  return found;
}

Matches match_columns(Cells& cells) {
  Matches found;
  for (int column = 0; column < kColumns; ++column) match_line(cells, column, kRows, kColumns, found);
  return found;
}

void clear_matched(Cells& cells) {
  for (std::uint8_t& cell : cells)
    if (kind_of(cell) == kMatched) cell = static_cast<std::uint8_t>(kEmptied | colour_of(cell));
  for (int i = 0; i < kCells; ++i) {
    const auto kind_at = [&](int k) {
      return k < 0 || k >= kCells ? kEmpty : kind_of(cells[static_cast<std::size_t>(k)]);
    };
    std::uint8_t& cell = cells[static_cast<std::size_t>(i)];
    const std::uint8_t kind = kind_of(cell);
    const bool alone = (kind == kTop && kind_at(i + kColumns) != kBottom) ||
                       (kind == kBottom && kind_at(i - kColumns) != kTop) ||
                       (kind == kLeft && kind_at(i + 1) != kRight) || (kind == kRight && kind_at(i - 1) != kLeft);
    if (alone) cell = static_cast<std::uint8_t>(kSingle | colour_of(cell));
  }
}

int count_viruses(const Cells& cells) {
  return static_cast<int>(std::count_if(cells.begin(), cells.end(), [](auto cell) { return kind_of(cell) == kVirus; }));
}

}  // namespace slipstream::drmario
