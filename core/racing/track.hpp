// Tracks of our own: a line to drive along and the walls beside it.
#pragma once

#include <vector>

#include "racing/centerline.hpp"
#include "racing/fields.hpp"
#include "racing/map.hpp"
#include "slipstream/rng.hpp"

namespace slipstream::racing {

struct Track {
  GridMap map;
  Centerline line;
};

inline constexpr double kWallMargin = 0.5;  // metres of wall kept outside the road on every side of the grid

// A straight road from (0, 0) to (length, 0), walled at both ends. Throws std::invalid_argument where a size is not
// positive or the road is narrower than two cells, as the others do.
[[nodiscard]] Track corridor(double length, double width, double resolution);

// Two straights joined by half circles about the origin, driven counter-clockwise from the middle of the lower one.
[[nodiscard]] Track oval(double straight, double radius, double width, double resolution);

// Draws circuits: a closed road through points around the middle, straightened until no bend is too tight and drawn
// again where parts come too near to each other; driven counter-clockwise where it is not mirrored.
class CircuitMaker {
 public:
  explicit CircuitMaker(const CircuitConfig& config);  // throws where the sizes do not fit each other

  // A track with memory for any circuit of this kind; drive on it after the first draw().
  [[nodiscard]] Track blank() const;
  // Draws the next circuit of the stream into a track made by blank(), without allocating.
  void draw(Rng& rng, Track& track);
  // Of a circuit's line.
  [[nodiscard]] std::size_t most_points() const { return line_.capacity(); }

 private:
  void smooth();
  void space_evenly();
  void relax(double least_radius);

  CircuitConfig config_;
  double narrowest_m_;
  std::vector<Point> corners_;
  std::vector<Point> line_;   // being drawn
  std::vector<Point> other_;  // what it is drawn from
};

[[nodiscard]] Track circuit(const CircuitConfig& config, Rng& rng);

}  // namespace slipstream::racing
