#include "drmario/field.hpp"

#include <algorithm>
#include <cstring>

namespace slipstream::drmario {
namespace {

constexpr int kRun = 4;

// Cells of one colour as bits, a byte for each row.
struct ColourBits {
  std::uint64_t upper = 0;
  std::uint64_t lower = 0;
};

// Eight cells at a time: a byte has bit 4 set where the cell is not free and of this colour.
ColourBits bits_of(const Cells& cells, std::uint64_t colour) {
  constexpr std::uint64_t kOnes = 0x0101010101010101ULL;
  constexpr std::uint64_t kLow = 0x0F * kOnes;
  constexpr std::uint64_t kFifth = 0x10 * kOnes;
  ColourBits bits;
  for (std::size_t row = 0; row < kRows; ++row) {
    std::uint64_t eight;
    std::memcpy(&eight, &cells[row * kColumns], sizeof eight);
    const std::uint64_t other = (((eight & kLow) ^ (colour * kOnes)) + kLow) & kFifth;
    const std::uint64_t free = ((eight >> 4 & kLow) + kOnes) & kFifth;
    const std::uint64_t chosen = (~(other | free) & kFifth) >> 4;
    const std::uint64_t packed = chosen * 0x0102040810204080ULL >> 56;  // one bit a cell, the first one the highest
    (row < 8 ? bits.upper : bits.lower) |= packed << (8 * (row & 7));
  }
  return bits;
}

// Whether four in line are of one colour anywhere; most of the time they are not.
bool any_run(const Cells& cells, bool rows) {
  for (std::uint64_t colour = 0; colour < 3; ++colour) {
    const ColourBits bits = bits_of(cells, colour);
    const auto in_rows = [](std::uint64_t x) { return x & x >> 1 & x >> 2 & x >> 3 & 0x1F1F1F1F1F1F1F1FULL; };
    if (rows) {
      if ((in_rows(bits.upper) | in_rows(bits.lower)) != 0) return true;
      continue;
    }
    const auto below = [&](int by) { return bits.upper >> (8 * by) | bits.lower << (64 - 8 * by); };
    const std::uint64_t low = bits.lower & bits.lower >> 8 & bits.lower >> 16 & bits.lower >> 24;
    if ((low | (bits.upper & below(1) & below(2) & below(3))) != 0) return true;
  }
  return false;
}

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
  if (!any_run(cells, true)) return found;
  for (int row = 0; row < kRows; ++row) match_line(cells, row * kColumns, kColumns, 1, found);
  return found;
}

Matches match_columns(Cells& cells) {
  Matches found;
  if (!any_run(cells, false)) return found;
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
