#include "racing/drivers.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace slipstream::racing {

double steer_to(const State& state, const Point& goal, const Vehicle& car) {
  const double dx = goal.x - state.x;
  const double dy = goal.y - state.y;
  const double squared = dx * dx + dy * dy;
  const double aside = dy * std::cos(state.yaw) - dx * std::sin(state.yaw);
  const double steer = squared > 0.0 ? std::atan(2.0 * car.wheelbase() * aside / squared) : 0.0;
  return std::clamp(steer, -car.steer_max, car.steer_max);
}

Command FollowGap::drive(std::span<const float> ranges, double fov, double last_steer, const Vehicle& car,
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
    const int from = std::max(i - (window - 1) / 2, 0);
    const int to = std::min(i + window / 2, beams - 1);
    float sum = 0.0F;
    for (int k = from; k <= to; ++k) sum += std::min(ranges[at(k)], static_cast<float>(cap_m));
    scratch[at(i)] = sum / static_cast<float>(to - from + 1);
    if (ranges[at(i)] < ranges[at(nearest)]) nearest = i;
  }
  // Where the nearest thing is nobody drives: as many beams as hide its half width.
  const double distance = std::max<double>(ranges[at(nearest)], 1e-3);
  const double aside = std::max(std::atan2(half_width, distance), bubble);
  const int hidden = increment > 0.0 ? static_cast<int>(aside / increment) : 0;
  for (int i = std::max(first, nearest - hidden); i <= std::min(last, nearest + hidden); ++i) scratch[at(i)] = 0.0F;

  float deepest = 0.0F;
  for (int i = first; i <= last; ++i) deepest = std::max(deepest, scratch[at(i)]);
  const float enough = std::max(static_cast<float>(depth) * deepest, static_cast<float>(gap_m));
  // The widest run of beams that are deep enough; of equally wide ones the one more nearly straight ahead.
  double target = 0.5 * (first + last);
  int widest = 0;
  for (int i = first; i <= last;) {
    if (scratch[at(i)] < enough || deepest == 0.0F) {
      ++i;
      continue;
    }
    int end = i;
    while (end + 1 <= last && scratch[at(end + 1)] >= enough) ++end;
    const double middle = 0.5 * (i + end);
    const int width = end - i + 1;
    if (width > widest || (width == widest && std::abs(angle(middle)) < std::abs(angle(target)))) {
      widest = width;
      target = middle;
    }
    i = end + 1;
  }
  Command command;
  const double wanted = smooth * last_steer + (1.0 - smooth) * gain * angle(target);
  command.steer = std::clamp(wanted, -car.steer_max, car.steer_max);
  command.speed = std::abs(command.steer) > hard ? slow_mps : fast_mps;
  if (careful) {
    const float ahead = ranges[at(beams / 2)];
    const double share = ahead < 1.5F ? 0.5 : ahead < 3.0F ? 0.6 : ahead < 6.0F ? 0.8 : 1.0;
    command.speed = std::max(slow_mps, std::min(command.speed, share * fast_mps));
  }
  command.speed = std::clamp(command.speed, car.speed_min, car.speed_max);
  return command;
}

void set_speeds(SpeedLine& along, const SpeedLimits& limits) {
  const auto points = along.line.points();
  const std::size_t n = points.size();
  const bool closed = along.line.closed();
  along.speed.resize(n);
  const auto step = [&](std::size_t i) {  // metres from a point to the next
    return std::hypot(points[(i + 1) % n].x - points[i].x, points[(i + 1) % n].y - points[i].y);
  };
  const auto curvature = [&](std::size_t i) {  // of the circle through a point and its neighbours
    if (!closed && (i == 0 || i + 1 == n)) return 0.0;
    const Point& a = points[(i + n - 1) % n];
    const Point& b = points[i];
    const Point& c = points[(i + 1) % n];
    const double cross = (b.x - a.x) * (c.y - b.y) - (b.y - a.y) * (c.x - b.x);
    const double sides =
        std::hypot(b.x - a.x, b.y - a.y) * std::hypot(c.x - b.x, c.y - b.y) * std::hypot(c.x - a.x, c.y - a.y);
    return 2.0 * std::abs(cross) / std::max(sides, 1e-12);
  };
  for (std::size_t i = 0; i < n; ++i)
    along.speed[i] = std::min(limits.speed_max, std::sqrt(limits.lateral_max / std::max(curvature(i), 1e-9)));
  const auto reach = [&](std::size_t i, std::size_t j, double metres) {  // from the speed at i
    const double squared = along.speed[i] * along.speed[i];
    const double used = std::min(1.0, squared * curvature(i) / limits.lateral_max);
    const double gained = 2.0 * limits.accel_max * std::sqrt(1.0 - used * used) * metres;
    along.speed[j] = std::min(along.speed[j], std::sqrt(squared + gained));
  };
  const std::size_t rounds = closed ? 2 * n : n - 1;  // twice around, so that the seam counts too
  for (std::size_t k = 0; k < rounds; ++k) reach(k % n, (k + 1) % n, step(k % n));
  for (std::size_t k = rounds; k > 0; --k) reach(k % n, (k - 1) % n, step((k - 1) % n));
}

Command PurePursuit::drive(const State& state, const SpeedLine& along, const Progress& here, const Vehicle& car) const {
  const double ahead = std::max(ahead_min_m, ahead_s * state.speed);
  const double speed = share * along.speed[static_cast<std::size_t>(here.segment)];
  return {steer_to(state, along.line.at(here.s + ahead), car), std::clamp(speed, car.speed_min, car.speed_max)};
}

Command Squeezer::drive(const State& own, const State& other, double lateral, double seconds,
                        const Vehicle& car) const {
  const double c = std::cos(other.yaw);
  const double s = std::sin(other.yaw);
  const double dx = own.x - other.x;
  const double dy = own.y - other.y;
  const double ahead = dx * c + dy * s;  // in the other's frame
  const double aside = dy * c - dx * s;
  // It keeps its side, or takes the one that leaves the other the nearer wall.
  constexpr double kClear = 0.05;
  const double side = std::abs(aside) > kClear ? std::copysign(1.0, aside) : std::copysign(1.0, -lateral);
  const double share = std::clamp(seconds / close_s, 0.0, 1.0);
  const double beside = side * (wide_m + share * (narrow_m - wide_m));
  const double forward = ahead_m + look_m;
  const Point goal{other.x + forward * c - beside * s, other.y + forward * s + beside * c};
  const double speed = other.speed + gain * (ahead_m - ahead);
  return {steer_to(own, goal, car), std::clamp(speed, 0.0, car.speed_max)};
}

Command Blocker::drive(const State& state, const SpeedLine& along, const Progress& here, double behind_m,
                       double aside_m, const Vehicle& car) const {
  const double ahead = here.s + std::max(ahead_min_m, ahead_s * state.speed);
  const double aside = behind_m > 0.0 && behind_m < watch_m ? std::clamp(aside_m, -room_m, room_m) : 0.0;
  const Point middle = along.line.at(ahead);
  const double heading = along.line.heading_at(ahead);
  const Point goal{middle.x - aside * std::sin(heading), middle.y + aside * std::cos(heading)};
  const double speed = share * along.speed[static_cast<std::size_t>(here.segment)];
  return {steer_to(state, goal, car), std::clamp(speed, car.speed_min, car.speed_max)};
}

}  // namespace slipstream::racing
