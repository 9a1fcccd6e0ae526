#include "racing/drivers.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace slipstream::racing {

Command FollowGap::drive(std::span<const float> ranges, double fov, const Vehicle& car,
                         std::span<float> scratch) const {
  const int beams = static_cast<int>(ranges.size());
  const double increment = beams > 1 ? fov / (beams - 1) : 0.0;
  const int skipped = increment > 0.0 ? std::clamp(static_cast<int>(0.5 * (fov - view) / increment), 0, beams / 2) : 0;
  const int first = skipped;
  const int last = beams - 1 - skipped;  // looked at: first..last
  const auto angle = [&](double beam) { return beam * increment - 0.5 * fov; };
  const auto at = [](int beam) { return static_cast<std::size_t>(beam); };

  int nearest = first;
  for (int i = first; i <= last; ++i) {
    scratch[at(i)] = std::min(ranges[at(i)], static_cast<float>(cap_m));
    if (ranges[at(i)] < ranges[at(nearest)]) nearest = i;
  }
  // Where the nearest thing is nobody drives: as many beams as hide its half width.
  const double distance = std::max<double>(ranges[at(nearest)], 1e-3);
  const int hidden = increment > 0.0 ? static_cast<int>(std::atan2(half_width, distance) / increment) : 0;
  for (int i = std::max(first, nearest - hidden); i <= std::min(last, nearest + hidden); ++i) scratch[at(i)] = 0.0F;

  float deepest = 0.0F;
  for (int i = first; i <= last; ++i) deepest = std::max(deepest, scratch[at(i)]);
  // The widest run of beams that are deep enough; of equally wide ones the one more nearly straight ahead.
  double target = 0.5 * (first + last);
  int widest = 0;
  for (int i = first; i <= last;) {
    if (scratch[at(i)] < depth * deepest || deepest == 0.0F) {
      ++i;
      continue;
    }
    int end = i;
    while (end + 1 <= last && scratch[at(end + 1)] >= depth * deepest) ++end;
    const double middle = 0.5 * (i + end);
    const int width = end - i + 1;
    if (width > widest || (width == widest && std::abs(angle(middle)) < std::abs(angle(target)))) {
      widest = width;
      target = middle;
    }
    i = end + 1;
  }
  Command command;
  command.steer = std::clamp(gain * angle(target), -car.steer_max, car.steer_max);
  command.speed = std::abs(command.steer) > hard ? slow_mps : fast_mps;
  command.speed = std::clamp(command.speed, car.speed_min, car.speed_max);
  return command;
}

Command PurePursuit::drive(const State& state, const SpeedLine& along, const Vehicle& car) const {
  const Progress here = along.line.project(state.x, state.y);
  const double ahead = std::max(ahead_min_m, ahead_s * state.speed);
  const Point goal = along.line.at(here.s + ahead);
  const double dx = goal.x - state.x;
  const double dy = goal.y - state.y;
  const double squared = dx * dx + dy * dy;
  const double aside = dy * std::cos(state.yaw) - dx * std::sin(state.yaw);
  Command command;
  command.steer = squared > 0.0 ? std::atan(2.0 * car.wheelbase() * aside / squared) : 0.0;
  command.steer = std::clamp(command.steer, -car.steer_max, car.steer_max);
  command.speed = std::clamp(share * along.speed[static_cast<std::size_t>(here.segment)], car.speed_min, car.speed_max);
  return command;
}

}  // namespace slipstream::racing
