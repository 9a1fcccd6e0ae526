#include "racing/centerline.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>

namespace slipstream::racing {

Centerline::Centerline(std::vector<Point> points, bool closed) : points_(std::move(points)), closed_(closed) {
  const std::size_t least = closed ? 3 : 2;
  if (points_.size() < least)
    throw std::invalid_argument("a centreline needs at least " + std::to_string(least) + " points, not " +
                                std::to_string(points_.size()));
  start_.push_back(0.0);
  const std::size_t count = closed ? points_.size() : points_.size() - 1;
  for (std::size_t i = 0; i < count; ++i) {
    const Point& a = points_[i];
    const Point& b = points_[(i + 1) % points_.size()];
    const double length = std::hypot(b.x - a.x, b.y - a.y);
    if (!std::isfinite(length)) throw std::invalid_argument("centreline point " + std::to_string(i) + " is not finite");
    if (length == 0.0)
      throw std::invalid_argument("centreline points " + std::to_string(i) + " and " +
                                  std::to_string((i + 1) % points_.size()) + " are the same");
    start_.push_back(start_.back() + length);
  }
}

Point Centerline::at(double s) const {
  if (closed_) {
    s = std::fmod(s, length());
    if (s < 0.0) s += length();
  }
  s = std::clamp(s, 0.0, length());
  const auto after = std::upper_bound(start_.begin(), start_.end() - 1, s);
  const auto i = static_cast<std::size_t>(std::max<std::ptrdiff_t>(after - start_.begin() - 1, 0));
  const std::size_t segment = std::min(i, static_cast<std::size_t>(segments()) - 1);
  const Point& a = points_[segment];
  const Point& b = points_[(segment + 1) % points_.size()];
  const double share = (s - start_[segment]) / (start_[segment + 1] - start_[segment]);
  return {a.x + share * (b.x - a.x), a.y + share * (b.y - a.y)};
}

Progress Centerline::project(double x, double y) const {
  Progress best;
  double nearest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < segments(); ++i) {
    const auto segment = static_cast<std::size_t>(i);
    const Point& a = points_[segment];
    const Point& b = points_[(segment + 1) % points_.size()];
    const double length = start_[segment + 1] - start_[segment];
    const double tx = (b.x - a.x) / length;
    const double ty = (b.y - a.y) / length;
    const double along = std::clamp((x - a.x) * tx + (y - a.y) * ty, 0.0, length);
    const double ox = x - (a.x + along * tx);
    const double oy = y - (a.y + along * ty);
    const double squared = ox * ox + oy * oy;
    if (squared >= nearest) continue;
    nearest = squared;
    const double side = tx * (y - a.y) - ty * (x - a.x);
    best = {start_[segment] + along, std::copysign(std::sqrt(squared), side), std::atan2(ty, tx), i};
  }
  return best;
}

}  // namespace slipstream::racing
