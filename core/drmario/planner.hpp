// The fewest frames in which a pill can be made to lock at each placement, and the buttons that do it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "drmario/pill.hpp"

namespace slipstream::drmario {

inline constexpr int kPlacements = 4 * kCells;
inline constexpr std::uint16_t kUnreachable = 0xFFFF;

using Costs = std::array<std::uint16_t, kPlacements>;  // by placement_of()

// A pill under control just before a frame.
struct Start {
  Pose pose;
  int threshold = 39;  // a row is lost when the speed counter exceeds it
  std::uint8_t speed_counter = 0;
  std::uint8_t hor_velocity = 0;
  std::uint8_t held = 0;  // buttons, on the frame before
  bool odd_next = true;   // whether the next frame's counter is odd, so that down acts
};

// Exact: every pose is followed through every frame, all columns and rows of it at once (see planner.cpp).
// `both` allows A and B to be pressed on one frame.
void plan(const Cells& cells, const Start& start, Costs& costs, bool both = false);

// Buttons, frame by frame, that lock the pill at a placement in the fewest frames; empty where it cannot be reached.
[[nodiscard]] std::vector<std::uint8_t> script(const Cells& cells, const Start& start, int placement,
                                               bool both = false);

}  // namespace slipstream::drmario
