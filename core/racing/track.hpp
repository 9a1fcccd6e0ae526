// Tracks of our own: a line to drive along and the walls beside it.
#pragma once

#include "racing/centerline.hpp"
#include "racing/map.hpp"

namespace slipstream::racing {

struct Track {
  GridMap map;
  Centerline line;
};

inline constexpr double kPointSpacing = 0.2;  // metres between points of a line, about
inline constexpr double kWallMargin = 0.5;    // metres of wall kept outside the road on every side of the grid

// Throws std::invalid_argument where a cell has no size or the road is narrower than two cells.
void check_road(double width, double resolution);

// A straight road from (0, 0) to (length, 0), walled at both ends. Throws std::invalid_argument where a size is not
// positive or the road is narrower than two cells, as the others do.
[[nodiscard]] Track corridor(double length, double width, double resolution);

// Two straights joined by half circles about the origin, driven counter-clockwise from the middle of the lower one.
[[nodiscard]] Track oval(double straight, double radius, double width, double resolution);

}  // namespace slipstream::racing
