#include "racing/centerline.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>

namespace slipstream::racing {

Centerline::Centerline(std::vector<Point> points, bool closed) : points_(std::move(points)), closed_(closed) {
  measure();
}

void Centerline::assign(std::span<const Point> points, bool closed) {
  points_.assign(points.begin(), points.end());
  closed_ = closed;
  measure();
}

void Centerline::reserve(std::size_t points) {
  points_.reserve(points);
  start_.reserve(points + 1);
}

void Centerline::measure() {
  const std::size_t least = closed_ ? 3 : 2;
  if (points_.size() < least)
    throw std::invalid_argument("a centreline needs at least " + std::to_string(least) + " points, not " +
                                std::to_string(points_.size()));
  start_.clear();
  start_.push_back(0.0);
  const std::size_t count = closed_ ? points_.size() : points_.size() - 1;
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

double Centerline::within(double s) const {
  if (closed_) {
    s = std::fmod(s, length());
    if (s < 0.0) s += length();
  }
  return std::clamp(s, 0.0, length());
}

std::size_t Centerline::segment_at(double s) const {
  const auto after = std::upper_bound(start_.begin(), start_.end() - 1, s);
  const auto i = static_cast<std::size_t>(std::max<std::ptrdiff_t>(after - start_.begin() - 1, 0));
  return std::min(i, static_cast<std::size_t>(segments()) - 1);
}

Point Centerline::at(double s) const {
  s = within(s);
  const std::size_t segment = segment_at(s);
  const Point& a = points_[segment];
  const Point& b = points_[(segment + 1) % points_.size()];
  const double share = (s - start_[segment]) / (start_[segment + 1] - start_[segment]);
  return {a.x + share * (b.x - a.x), a.y + share * (b.y - a.y)};
}

double Centerline::heading_at(double s) const {
  const std::size_t segment = segment_at(within(s));
  const Point& a = points_[segment];
  const Point& b = points_[(segment + 1) % points_.size()];
  return std::atan2(b.y - a.y, b.x - a.x);
}

void Centerline::consider(int i, double x, double y, double& nearest, Progress& best) const {
  const auto segment = static_cast<std::size_t>(i);
  const Point& a = points_[segment];
  const Point& b = points_[segment + 1 == points_.size() ? 0 : segment + 1];
  const double length = start_[segment + 1] - start_[segment];
  const double tx = (b.x - a.x) / length;
  const double ty = (b.y - a.y) / length;
  const double along = std::clamp((x - a.x) * tx + (y - a.y) * ty, 0.0, length);
  const double ox = x - (a.x + along * tx);
  const double oy = y - (a.y + along * ty);
  const double squared = ox * ox + oy * oy;
  if (squared >= nearest) return;
  nearest = squared;
  const double side = tx * (y - a.y) - ty * (x - a.x);
  best.s = start_[segment] + along;
  best.lateral = std::copysign(std::sqrt(squared), side);
  best.segment = i;
}

Progress Centerline::project(double x, double y) const {
  Progress best;
  double nearest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < segments(); ++i) consider(i, x, y, nearest, best);
  best.heading = heading_at(start_[static_cast<std::size_t>(best.segment)]);
  return best;
}

Progress Centerline::project_near(double x, double y, const Progress& before, double reach) const {
  Progress best;
  double nearest = std::numeric_limits<double>::infinity();
  const int count = segments();
  consider(before.segment, x, y, nearest, best);
  for (const int way : {1, -1}) {
    int i = before.segment;
    double gone = 0.0;
    for (int seen = 1; seen < count && gone < reach; ++seen) {
      i += way;
      if (i < 0 || i >= count) {
        if (!closed_) break;
        i += i < 0 ? count : -count;
      }
      consider(i, x, y, nearest, best);
      gone += start_[static_cast<std::size_t>(i) + 1] - start_[static_cast<std::size_t>(i)];
    }
  }
  best.heading = heading_at(start_[static_cast<std::size_t>(best.segment)]);
  return best;
}

}  // namespace slipstream::racing
