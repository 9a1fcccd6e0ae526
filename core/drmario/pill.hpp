// The falling pill: where it is, where it fits, and what one frame of buttons does to it.
#pragma once

#include <array>
#include <cstdint>

#include "drmario/field.hpp"

namespace slipstream::drmario {

enum Button : std::uint8_t {
  kPressRight = 1,
  kPressLeft = 2,
  kPressDown = 4,
  kPressUp = 8,
  kPressStart = 16,
  kPressSelect = 32,
  kPressB = 64,
  kPressA = 128,
};
inline constexpr std::uint8_t kPad = 0x0F;

// A pad cannot be pushed both ways; what a console would make of it is undone here.
constexpr std::uint8_t cleaned(std::uint8_t buttons) {
  if ((buttons & 3) == 3) buttons = static_cast<std::uint8_t>(buttons & ~3);
  if ((buttons & 12) == 12) buttons = static_cast<std::uint8_t>(buttons & ~12);
  return buttons;
}

// The lower left cell of the pill. Rotation 0: first half there, second right of it; 1: first there, second above;
// 2: second there, first right of it; 3: second there, first above.
struct Pose {
  std::int8_t row = 15;  // from the bottom
  std::int8_t col = 3;
  std::int8_t rot = 0;
  [[nodiscard]] constexpr bool vertical() const { return (rot & 1) != 0; }
  friend constexpr bool operator==(const Pose&, const Pose&) = default;
};

constexpr std::size_t cell_index(int row, int col) {
  return static_cast<std::size_t>((kRows - 1 - row) * kColumns + col);
}

// Above the bottle everything is free.
constexpr bool fits(const Cells& cells, const Pose& p) {
  const int right = p.vertical() ? p.col : p.col + 1;
  if (p.row < 0 || p.col < 0 || right >= kColumns) return false;
  if (!is_free(cells[cell_index(p.row, p.col)])) return false;
  if (!p.vertical()) return is_free(cells[cell_index(p.row, p.col + 1)]);
  return p.row + 1 >= kRows || is_free(cells[cell_index(p.row + 1, p.col)]);
}

using Colours = std::array<std::uint8_t, 2>;

// Writes the pill's halves; one above the bottle is lost.
void write_pill(Cells& cells, const Pose& p, const Colours& colours);

// A placement: which of 4 x 128 it is. o * 128 + 8 * (row from the top) + column of the first half; the second half is
// to the right (0), below (1), to the left (2) or above (3). -1 where a half is above the bottle.
[[nodiscard]] int placement_of(const Pose& p);
[[nodiscard]] Pose pose_of(int placement);  // of one in the bottle

// A pill under control, with the counters that decide when it moves.
struct Fall {
  Pose pose;
  std::uint8_t speed_counter = 0;
  std::uint8_t hor_velocity = 0;
};

// The three parts of a frame. drop() tells whether the pill rests on something: then it locks where it is.
[[nodiscard]] bool drop(const Cells& cells, Fall& fall, std::uint8_t held, bool odd, int threshold);
void shift(const Cells& cells, Fall& fall, std::uint8_t held, std::uint8_t pressed);
void rotate(const Cells& cells, Fall& fall, std::uint8_t held, std::uint8_t pressed);

}  // namespace slipstream::drmario
