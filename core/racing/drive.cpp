#include "racing/drive.hpp"

#include <cmath>

namespace slipstream::racing {

Drive drive(const GridMap& map, const Centerline& line, const State& start,
            const std::function<Command(const State&)>& driver, const DriveConfig& config) {
  const Vehicle& car = *config.car;
  Drive out;
  State state = start;
  Delay delay;
  double s = line.project(state.x, state.y).s;
  const double lap = line.closed() ? line.length() : line.length() - s;
  double lap_began = 0.0;
  const auto limit = static_cast<long>(std::lround(config.limit_s / kStep));
  Command command;
  for (long step = 0; step < limit; ++step) {
    if (step % config.repeat == 0) {
      out.path.push_back(state);
      command = driver(state);
    }
    advance(state, delay, command, car, config.mode);
    if (map.touches(Box({state.x, state.y, state.yaw}, car.length_m, car.width_m))) {
      out.crashed = true;
      break;
    }
    const double now = line.project(state.x, state.y).s;
    double moved = now - s;
    if (line.closed()) moved -= line.length() * std::round(moved / line.length());  // the shorter way around
    const double before = out.progress_m;
    out.progress_m += moved;
    s = now;
    const double goal = lap * static_cast<double>(out.lap_s.size() + 1);
    if (out.progress_m < goal) continue;
    // Within the step, at constant speed.
    const double finished = kStep * (static_cast<double>(step) + (goal - before) / (out.progress_m - before));
    out.lap_s.push_back(finished - lap_began);
    lap_began = finished;
    if (static_cast<int>(out.lap_s.size()) >= config.laps) break;
  }
  out.path.push_back(state);
  return out;
}

}  // namespace slipstream::racing
