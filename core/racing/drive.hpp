// One car alone on a track, driven by rules: what baselines are measured with.
#pragma once

#include <functional>
#include <vector>

#include "racing/drivers.hpp"
#include "racing/lidar.hpp"

namespace slipstream::racing {

struct DriveConfig {
  const Vehicle* car = nullptr;
  Mode mode = Mode::kClean;
  int repeat = 4;          // physics steps between decisions
  int laps = 1;            // after which it is over
  double limit_s = 300.0;  // and at the latest
};

struct Drive {
  std::vector<State> path;    // at every decision, the start included
  std::vector<double> lap_s;  // of every lap that was finished
  bool crashed = false;
  double progress_m = 0.0;  // along the centreline, backwards negative
};

// Drives from `start` until the laps are done, a wall is touched or time is up. A lap is as much progress as the
// centreline is long, counted from the start; on an open line, the rest of it.
[[nodiscard]] Drive drive(const GridMap& map, const Centerline& line, const State& start,
                          const std::function<Command(const State&)>& driver, const DriveConfig& config);

}  // namespace slipstream::racing
