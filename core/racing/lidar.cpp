#include "racing/lidar.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

#include "slipstream/ziggurat.hpp"

namespace slipstream::racing {
namespace {

constexpr double kTurn = 2.0 * std::numbers::pi;
constexpr int kTable = 2000;  // directions of f1tenth_gym, over [0, 2 pi] with both ends

const std::vector<Pose>& table() {  // cosine in x, sine in y
  static const std::vector<Pose> directions = [] {
    std::vector<Pose> all;
    for (int i = 0; i < kTable; ++i) {
      const double angle = i == kTable - 1 ? kTurn : i * (kTurn / (kTable - 1));
      all.push_back({std::cos(angle), std::sin(angle), angle});
    }
    return all;
  }();
  return directions;
}

}  // namespace

Lidar::Lidar(int beams, double fov, double range)
    : fov_(fov), range_(range), increment_(beams > 1 ? fov / (beams - 1) : 0.0) {
  if (beams < 1) throw std::invalid_argument("a lidar needs at least one beam, not " + std::to_string(beams));
  if (!(fov > 0.0 && fov <= kTurn))
    throw std::invalid_argument("a lidar's field of view is in radians, above 0 and at most 2 pi, not " +
                                std::to_string(fov));
  if (!(range > 0.0) || !std::isfinite(range))
    throw std::invalid_argument("a lidar's range must be above 0 m, not " + std::to_string(range));
  for (int i = 0; i < beams; ++i) {
    const double angle = beams > 1 ? i * increment_ - 0.5 * fov : 0.0;
    cosine_.push_back(std::cos(angle));
    sine_.push_back(std::sin(angle));
  }
}

void Lidar::walls(const GridMap& map, const Pose& pose, std::span<float> out) const {
  const double c = std::cos(pose.yaw);
  const double s = std::sin(pose.yaw);
  constexpr std::size_t kBlock = 64;
  std::array<double, kBlock> dx;
  std::array<double, kBlock> dy;
  for (std::size_t begin = 0; begin < cosine_.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, cosine_.size() - begin);
    for (std::size_t k = 0; k < count; ++k) {
      dx[k] = c * cosine_[begin + k] - s * sine_[begin + k];
      dy[k] = s * cosine_[begin + k] + c * sine_[begin + k];
    }
    map.rays(pose.x, pose.y, {dx.data(), count}, {dy.data(), count}, range_, out.subspan(begin, count));
  }
}

void Lidar::march(const GridMap& map, std::span<const double> distance, const Pose& pose, std::span<float> out) const {
  double index = std::fmod(kTable * (pose.yaw - 0.5 * fov_) / kTurn, kTable);
  while (index < 0.0) index += kTable;
  for (float& range : out) {
    const Pose& direction = table()[std::min(static_cast<std::size_t>(index), table().size() - 1)];
    range = static_cast<float>(map.march(distance, pose.x, pose.y, direction.x, direction.y, range_));
    index += kTable * increment_ / kTurn;
    while (index >= kTable) index -= kTable;
  }
}

void Lidar::add_noise(Rng& rng, double deviation, std::span<float> out) const {
  const auto sigma = static_cast<float>(deviation);
  const auto most = static_cast<float>(range_);
  const Ziggurat& normal = Ziggurat::shared();
  for (float& range : out) range = std::clamp(range + sigma * normal.draw(rng), 0.0F, most);
}

void Lidar::drop(Rng& rng, double share, std::span<float> out) const {
  for (float& range : out)
    if (rng.uniform() < share) range = static_cast<float>(range_);
}

void Lidar::occlude(const Box& car, const Pose& pose, std::span<float> out) const {
  const double dx = car.x - pose.x;
  const double dy = car.y - pose.y;
  const double apart = std::hypot(dx, dy);
  const double radius = car.radius();
  if (apart - radius >= range_) return;
  const double c = std::cos(pose.yaw);
  const double s = std::sin(pose.yaw);
  int first = 0;
  int last = beams() - 1;
  const auto look = [&](int from, int to) {
    for (int i = std::max(from, 0); i <= std::min(to, beams() - 1); ++i) {
      const auto beam = static_cast<std::size_t>(i);
      const double ux = c * cosine_[beam] - s * sine_[beam];
      const double uy = s * cosine_[beam] + c * sine_[beam];
      out[beam] = std::min(out[beam], static_cast<float>(ray_distance(car, pose.x, pose.y, ux, uy)));
    }
  };
  if (apart <= radius || beams() == 1) {
    look(first, last);
    return;
  }
  // The car's corners lie within `half` of the direction of its centre. The angle of the first beam is 0 here.
  const double ahead = dx * c + dy * s;
  const double aside = dy * c - dx * s;
  const double half = std::asin(radius / apart);
  double centre = std::fmod(std::atan2(aside, ahead) + 0.5 * fov_, kTurn);
  if (centre < 0.0) centre += kTurn;
  for (const double turn : {-kTurn, 0.0, kTurn}) {  // a car across the ends of a full circle is seen at both
    first = static_cast<int>(std::floor((centre + turn - half) / increment_));
    last = static_cast<int>(std::ceil((centre + turn + half) / increment_));
    look(first, last);
  }
}

}  // namespace slipstream::racing
