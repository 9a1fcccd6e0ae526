// The bottle: 16 rows of 8 cells, and what happens in it when nothing is falling under control.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace slipstream::drmario {

inline constexpr int kRows = 16;
inline constexpr int kColumns = 8;
inline constexpr int kCells = kRows * kColumns;

// A cell is a kind in the high nibble and a colour (0 yellow, 1 red, 2 blue) in the low one; row 0 is the top.
enum Kind : std::uint8_t {
  kTop = 0x40,
  kBottom = 0x50,
  kLeft = 0x60,
  kRight = 0x70,
  kSingle = 0x80,
  kMatched = 0xB0,
  kVirus = 0xD0,
  kEmptied = 0xF0,  // until the next fall; from here on a cell is free
};
inline constexpr std::uint8_t kEmpty = 0xFF;

constexpr std::uint8_t kind_of(std::uint8_t cell) { return cell & 0xF0; }
constexpr std::uint8_t colour_of(std::uint8_t cell) { return cell & 0x0F; }
constexpr bool is_free(std::uint8_t cell) { return cell >= kEmptied; }

using Cells = std::array<std::uint8_t, kCells>;

// What one pass over rows or columns marked.
struct Matches {
  int runs = 0;
  int cells = 0;
  int viruses = 0;
  std::array<std::uint8_t, 32> colours{};  // of each run, in the order they were found
};

// Everything loose falls by one row; true where anything did.
bool drop_loose(Cells& cells);
// Marks rows, or columns, of four and more cells of one colour.
Matches match_rows(Cells& cells);
Matches match_columns(Cells& cells);
// Marked cells become free, halves that lost their other half single.
void clear_matched(Cells& cells);
[[nodiscard]] int count_viruses(const Cells& cells);

}  // namespace slipstream::drmario
