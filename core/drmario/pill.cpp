#include "drmario/pill.hpp"

namespace slipstream::drmario {
namespace {

constexpr std::uint8_t kRepeatAfter = 16;  // frames a direction is held before the pill moves again
constexpr std::uint8_t kRepeatFrom = 10;   // and what the counter goes back to then
constexpr std::uint8_t kBlocked = 15;      // or when something was in the way: tried again on the next frame

void turn(const Cells& cells, Fall& fall, int by, bool left, const Pose& before) {
  Pose& p = fall.pose;
  p.rot = static_cast<std::int8_t>((p.rot + by) & 3);
  if (p.vertical()) {
    if (!fits(cells, p)) p = before;
    return;
  }
  Pose beside = p;
  --beside.col;
  if (fits(cells, p)) {
    if (left && fits(cells, beside)) p = beside;  // the double move
  } else {
    p = fits(cells, beside) ? beside : before;
  }
}

}  // namespace

void write_pill(Cells& cells, const Pose& p, const Colours& colours) {
  const bool swapped = p.rot >= 2;  // rotation 2 and 3 have the second half at the pose's own cell
  const std::uint8_t here = colours[swapped ? 1 : 0];
  const std::uint8_t there = colours[swapped ? 0 : 1];
  cells[cell_index(p.row, p.col)] = static_cast<std::uint8_t>((p.vertical() ? kBottom : kLeft) | here);
  if (!p.vertical()) {
    cells[cell_index(p.row, p.col + 1)] = static_cast<std::uint8_t>(kRight | there);
  } else if (p.row + 1 < kRows) {
    cells[cell_index(p.row + 1, p.col)] = static_cast<std::uint8_t>(kTop | there);
  }
}

int placement_of(const Pose& p) {
  const int y = kRows - 1 - p.row;
  switch (p.rot) {
    case 0:
      return y * kColumns + p.col;
    case 1:
      return y == 0 ? -1 : 3 * kCells + y * kColumns + p.col;
    case 2:
      return 2 * kCells + y * kColumns + p.col + 1;
    default:
      return y == 0 ? -1 : kCells + (y - 1) * kColumns + p.col;
  }
}

Pose pose_of(int placement) {
  const int y = (placement % kCells) / kColumns;
  const int x = placement % kColumns;
  const auto at = [](int row, int col, int rot) {
    return Pose{static_cast<std::int8_t>(row), static_cast<std::int8_t>(col), static_cast<std::int8_t>(rot)};
  };
  switch (placement / kCells) {
    case 0:
      return at(kRows - 1 - y, x, 0);
    case 1:
      return at(kRows - 2 - y, x, 3);
    case 2:
      return at(kRows - 1 - y, x - 1, 2);
    default:
      return at(kRows - 1 - y, x, 1);
  }
}

bool drop(const Cells& cells, Fall& fall, std::uint8_t held, bool odd, int threshold) {
  const bool pushed = odd && (held & kPad) == kPressDown;
  if (!pushed && ++fall.speed_counter <= threshold) return false;
  fall.speed_counter = 0;
  --fall.pose.row;
  if (fits(cells, fall.pose)) return false;
  ++fall.pose.row;
  return true;
}

void shift(const Cells& cells, Fall& fall, std::uint8_t held, std::uint8_t pressed) {
  constexpr std::uint8_t kSides = kPressLeft | kPressRight;
  if ((held & kSides) == 0) return;
  if ((pressed & kSides) != 0) {
    fall.hor_velocity = 0;
  } else {
    if (++fall.hor_velocity < kRepeatAfter) return;
    fall.hor_velocity = kRepeatFrom;
  }
  Pose moved = fall.pose;
  if ((held & kPressRight) != 0) {
    if (moved.col >= (moved.vertical() ? kColumns - 1 : kColumns - 2)) return;
    ++moved.col;
  } else {
    if (moved.col <= 0) return;
    --moved.col;
  }
  if (fits(cells, moved)) {
    fall.pose = moved;
  } else {
    fall.hor_velocity = kBlocked;
  }
}

void rotate(const Cells& cells, Fall& fall, std::uint8_t held, std::uint8_t pressed) {
  const Pose before = fall.pose;
  const bool left = (held & kPressLeft) != 0;
  if ((pressed & kPressA) != 0) turn(cells, fall, -1, left, before);
  if ((pressed & kPressB) != 0) turn(cells, fall, 1, left, before);
}

}  // namespace slipstream::drmario
