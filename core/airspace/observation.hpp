// What an aircraft sees. `own_frame` is turned to its own heading, so one policy serves any geometry; `legacy` is the
// published observation, north up and with its published scales, kept for comparison.
#pragma once

#include <vector>

#include "airspace/config.hpp"
#include "airspace/scene.hpp"
#include "slipstream/spec.hpp"

namespace slipstream::airspace {

ObsBlock observation_block(const AirspaceConfig& config);
// Which part of it are rows of neighbours; none where it is legacy, or nobody is seen.
std::vector<EntityRows> neighbor_rows(const AirspaceConfig& config);

// Rates of change the legacy observation shows; 0 until there is something to compare with.
struct LegacyRates {
  double progress_nm = 0.0;
  double separation_nm = 0.0;
};

class Observer {
 public:
  explicit Observer(const AirspaceConfig& config);

  // Writes aircraft i's row; `time_left` is a share of the episode's. Finite and within bounds for any state.
  void write(const Scene& scene, std::size_t i, double time_left, const LegacyRates& rates, float* out);

 private:
  // Indices of the nearest aircraft present, nearest first, into near_; returns how many.
  std::size_t find_nearest(const Scene& scene, std::size_t i);
  static void write_own(const Scene& scene, std::size_t i, float* out);
  void write_neighbors(const Scene& scene, std::size_t i, std::size_t seen, float* row) const;
  void write_legacy(const Scene& scene, std::size_t i, std::size_t seen, const LegacyRates& rates, float* out) const;

  bool legacy_;
  bool shows_time_left_;
  std::size_t topk_;
  std::vector<std::size_t> near_;
  std::vector<double> chord2_;
};

// The whole scene for centralised critics: per aircraft, then the scene's own figures; north up from one fixed point.
class StateWriter {
 public:
  static int size(std::size_t aircraft);
  explicit StateWriter(const AirspaceConfig& config);
  void write(const Scene& scene, double time_share, double least_separation_nm, float* out) const;

 private:
  Vec3 origin_, east_, north_;
  double separation_nm_;
};

}  // namespace slipstream::airspace
