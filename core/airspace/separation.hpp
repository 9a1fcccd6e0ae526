// Who came how close to whom, second by second. Distances stay squared chords of the unit sphere until somebody asks.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "airspace/geo.hpp"

namespace slipstream::airspace {

// Where everyone was during one decision: index 0 is its start, index s the end of substep s.
class Tracks {
 public:
  Tracks(std::size_t aircraft, int substeps)
      : stride_(static_cast<std::size_t>(substeps) + 1),
        x(aircraft * stride_),
        y(aircraft * stride_),
        z(aircraft * stride_),
        stay(aircraft) {}

  [[nodiscard]] std::size_t row(std::size_t aircraft) const { return aircraft * stride_; }
  [[nodiscard]] std::size_t stride() const { return stride_; }
  void put(std::size_t aircraft, std::size_t substep, const Vec3& p) {
    const std::size_t at = row(aircraft) + substep;
    x[at] = p.x;
    y[at] = p.y;
    z[at] = p.z;
  }
  // Length of the way aircraft flew during its stay, NM.
  [[nodiscard]] double length_nm(std::size_t aircraft) const;

 private:
  std::size_t stride_;

 public:
  std::vector<double> x, y, z;    // [aircraft, 1 + substeps]
  std::vector<std::size_t> stay;  // substeps each aircraft was in the scene for, 0 for those gone before
};

struct SeparationFigures {
  double conflicts = 0.0;              // losses of separation begun, pair by pair
  double lost_substeps = 0.0;          // substeps with at least one pair too close
  double collisions = 0.0;             // pairs that came below collision_nm
  double nmac = 0.0;                   // pairs that came within 500 ft
  double well_clear_violations = 0.0;  // pairs that violated DO-365 well clear
  double least_chord2 = std::numeric_limits<double>::infinity();
};

class Separation {
 public:
  Separation(std::size_t aircraft, int substeps, double separation_nm, double collision_nm, double substep_s);

  // At the start of an episode; those who are not present are nowhere.
  void reset(const std::vector<Vec3>& positions, const std::vector<std::uint8_t>& present);
  void update(const Tracks& tracks);

  // Squared chord to the nearest other aircraft at the end of substep 1 .. stay; infinite when alone.
  [[nodiscard]] const double* own_chord2(std::size_t aircraft) const { return &own_[aircraft * stride_]; }
  [[nodiscard]] double lost_chord2() const { return lost_chord2_; }
  [[nodiscard]] const SeparationFigures& figures() const { return figures_; }

  template <class Archive>
  void archive(Archive& ar) {
    ar(pair_, figures_);
  }

 private:
  void follow_pair(const Tracks& tracks, std::size_t i, std::size_t j, std::size_t pair, std::size_t together);

  std::size_t aircraft_;
  std::size_t stride_;
  double lost_chord2_;
  double collision_chord2_;
  double nmac_chord2_;
  double well_clear_chord2_;
  double alert_chord2_;  // beyond this, no pair can violate anything within one substep
  double substep_s_;
  std::vector<std::uint8_t> pair_;  // flags, pairs i < j in order
  std::vector<double> own_;         // [aircraft, 1 + substeps]
  std::vector<double> chord2_;      // [1 + substeps], of the pair at hand
  std::vector<std::uint8_t> lost_;  // [1 + substeps], somebody too close
  SeparationFigures figures_;
};

}  // namespace slipstream::airspace
