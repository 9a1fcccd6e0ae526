// bluesky-gym's HorizontalCREnv-v0 as a native world, for like-for-like comparison: one aircraft turns, five intruders
// fly straight into its way, everyone at one level. Its published figures and its oddities are kept; only the seeding
// is ours.
#pragma once

#include <cstdint>
#include <limits>

#include "airspace/config.hpp"
#include "airspace/fields.hpp"
#include "airspace/scene.hpp"
#include "slipstream/world.hpp"

namespace slipstream::airspace {

struct HorizontalCrConfig : HorizontalCrFields {
  [[nodiscard]] int substeps() const { return static_cast<int>(decision_s / substep_s + 0.5); }
  // Throws std::invalid_argument with one sentence when the scene makes no sense.
  void validate() const;
};

class HorizontalCrWorld {
 public:
  using Config = HorizontalCrConfig;

  static WorldSpec spec(const HorizontalCrConfig& config);
  explicit HorizontalCrWorld(const HorizontalCrConfig& config);

  void reset(const Rng& rng, const Slices& s);
  void step(const Slices& s);
  void scripted(int script, int agent, const Slices& s);
  void frame(double* out) const;

  template <class Archive>
  void archive(Archive& ar) {
    scene_.archive(ar);
    ar(steps_, figures_);
  }

 private:
  // What an episode adds up to.
  struct Figures {
    double intrusions = 0.0;     // decisions x intruders too close at its end: what the published task counts
    double lost_substeps = 0.0;  // substeps with at least one intruder too close
    double least_chord2 = std::numeric_limits<double>::infinity();
    double drift_rad = 0.0;  // summed over decisions
    double flown_nm = 0.0;
    double direct_nm = 0.0;  // to the waypoint at the start
    double left_nm = 0.0;    // to the waypoint now
    double reached = 0.0;
  };
  // What one observation was worked out from and a reward is paid for.
  struct Sight {
    double waypoint_km = 0.0;
    double drift_rad = 0.0;
    int intrusions = 0;
  };

  void place(std::size_t i, double lat_deg, double lon_deg, double heading_deg);
  void place_intruder(std::size_t i, double angle_deg, double cpa_nm, double until_lost_s);
  void fly_decision();
  Sight observe(float* out) const;
  void write_stats(double* stats) const;

  HorizontalCrConfig config_;
  AirspaceConfig rules_;  // the same for the scripts that the airspace world has
  double lost_chord2_;
  Scene scene_;  // aircraft 0 is the agent; derived quantities are refreshed only for scripts
  std::int32_t steps_ = 0;
  Figures figures_;
};

}  // namespace slipstream::airspace
