// The airspace world: aircraft at one level, each flying to its waypoint, kept apart by the agents that steer them.
#pragma once

#include <cstdint>
#include <vector>

#include "airspace/config.hpp"
#include "airspace/observation.hpp"
#include "airspace/reward.hpp"
#include "airspace/scene.hpp"
#include "airspace/sector.hpp"
#include "airspace/separation.hpp"
#include "slipstream/world.hpp"

namespace slipstream::airspace {

class AirspaceWorld {
 public:
  using Config = AirspaceConfig;

  static WorldSpec spec(const AirspaceConfig& config);
  explicit AirspaceWorld(const AirspaceConfig& config);  // throws std::invalid_argument where the scene makes no sense

  void reset(const Rng& rng, const Slices& s);
  void step(const Slices& s);
  void scripted(int script, int agent, const Slices& s);
  void frame(double* out) const;

  template <class Archive>
  void archive(Archive& ar) {
    scene_.archive(ar);
    separation_.archive(ar);
    ar(steps_, lost_, distance_nm_, drift_deg_, own_separation_nm_, flown_nm_, direct_nm_, left_nm_, flight_s_,
       maneuvers_, team_);
  }

 private:
  // Starting
  void place_as_listed();
  void place_jittered(Rng& rng);
  void place_sector(Rng& rng);
  void warm_up();
  // One decision
  void read_action(std::size_t i, const float* action);
  void command(std::size_t i, double turn_deg, double faster_kt);
  void fly_decision(std::size_t i);
  void judge(std::size_t i);
  void judge_separation(std::size_t i, Outcome& outcome);
  void pay(const Slices& s);
  [[nodiscard]] double team_weight(std::size_t i) const;
  [[nodiscard]] bool legacy() const { return config_.legacy(); }
  // Showing
  void observe(const Slices& s);
  void remember();
  void write_stats(double* stats) const;

  AirspaceConfig config_;
  Scene scene_;
  Tracks tracks_;
  Separation separation_;
  Observer observer_;
  StateWriter state_writer_;
  double capture_chord2_;
  std::size_t obs_width_;
  double required_start_nm_ = 0.0;  // jitter never starts aircraft closer than this
  std::vector<SpeedRange> speeds_;  // of the random sector's types
  std::vector<Entry> entries_;
  std::vector<Outcome> outcomes_;

  std::int32_t steps_ = 0;
  std::vector<std::uint8_t> lost_;                      // own separation was lost at the last look
  std::vector<double> distance_nm_;                     // to the waypoint at the last decision
  std::vector<double> drift_deg_;                       // at the last decision; legacy starts from 0
  std::vector<double> own_separation_nm_;               // at the last decision
  std::vector<double> flown_nm_, direct_nm_, left_nm_;  // until the waypoint is reached
  std::vector<double> flight_s_;
  double maneuvers_ = 0.0;
  LegacyTeam team_;
};

}  // namespace slipstream::airspace
