// Circuits drawn at random: a new one for every episode, so drawing one has to be quick.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "racing/fields.hpp"
#include "racing/paving.hpp"
#include "racing/track.hpp"
#include "slipstream/rng.hpp"

namespace slipstream::racing {

// A closed line while it is drawn: coordinates apart, so that loops over them become vectors.
struct Outline {
  std::vector<double> x;
  std::vector<double> y;

  [[nodiscard]] std::size_t size() const { return x.size(); }
  [[nodiscard]] Point at(std::size_t i) const { return {x[i], y[i]}; }
  void resize(std::size_t points) {
    x.resize(points);
    y.resize(points);
  }
};

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
  [[nodiscard]] std::size_t most_points() const { return points_.capacity(); }

 private:
  [[nodiscard]] std::size_t side_cells() const;
  void smooth();
  void space_evenly();
  void relax(double least_radius);
  [[nodiscard]] bool is_road(double width) const;

  CircuitConfig config_;
  double narrowest_m_;
  std::vector<Point> corners_;
  Outline line_;                              // being drawn
  Outline other_;                             // what it is drawn from
  std::array<std::vector<double>, 2> rings_;  // what relax() works with
  std::vector<double> pieces_;                // metres from each point to the next
  std::vector<double> ends_;                  // and along the line to where each ends
  std::vector<Point> points_;                 // the line, once it is drawn
  Paver paver_;
};

[[nodiscard]] Track circuit(const CircuitConfig& config, Rng& rng);

}  // namespace slipstream::racing
