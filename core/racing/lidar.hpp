// What a planar laser scanner sees from a pose: walls of the map, and other cars.
#pragma once

#include <span>
#include <vector>

#include "racing/map.hpp"
#include "slipstream/rng.hpp"

namespace slipstream::racing {

// Beams at fixed angles about the heading, the first to the right. Throws std::invalid_argument for fewer than one
// beam, a field of view outside (0, 2 pi], or a range that is not positive.
class Lidar {
 public:
  Lidar(int beams, double fov, double range);

  [[nodiscard]] int beams() const { return static_cast<int>(cosine_.size()); }
  [[nodiscard]] double range() const { return range_; }

  // Exact distance to the walls, [beams].
  void walls(const GridMap& map, const Pose& pose, std::span<float> out) const;

  // f1tenth_gym's: marching on `distance` (euclidean_distance), directions rounded down to a table of 2000.
  void march(const GridMap& map, std::span<const double> distance, const Pose& pose, std::span<float> out) const;

  // Adds normal errors of this deviation; no range becomes negative or longer than the longest.
  void add_noise(Rng& rng, double deviation, std::span<float> out) const;

  // Loses this share of the beams, each on its own: they show the longest range.
  void drop(Rng& rng, double share, std::span<float> out) const;

  // Shorten the beams that a car is in the way of. Only those that can meet it are looked at: one behind costs nothing.
  void occlude(const Box& car, const Pose& pose, std::span<float> out) const;

 private:
  double fov_;
  double range_;
  double increment_;            // angle between two beams
  std::vector<double> cosine_;  // [beams], relative to the heading
  std::vector<double> sine_;
};

}  // namespace slipstream::racing
