#include "racing/track.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

#include "racing/paving.hpp"

namespace slipstream::racing {
namespace {

constexpr double kPi = std::numbers::pi;

void require(bool fine, const std::string& sentence) {
  if (!fine) throw std::invalid_argument(sentence);
}

Track paved(std::vector<Point> points, bool closed, double width, double resolution) {
  Track track{GridMap(1, resolution), Centerline(std::move(points), closed)};
  Paver().pave(track, width, resolution);
  return track;
}

}  // namespace

void check_road(double width, double resolution) {
  require(resolution > 0.0,
          "a track's resolution is metres per cell and must be above 0, not " + std::to_string(resolution));
  require(width >= 2.0 * resolution, "a road of " + std::to_string(width) + " m is narrower than two cells of " +
                                         std::to_string(resolution) + " m");
}

Track corridor(double length, double width, double resolution) {
  check_road(width, resolution);
  require(length >= 1.0, "a corridor must be at least 1 m long, not " + std::to_string(length));
  const int count = std::max(2, static_cast<int>(length / 1.0) + 1);
  std::vector<Point> points;
  for (int i = 0; i < count; ++i) points.push_back({length * i / (count - 1), 0.0});
  return paved(std::move(points), false, width, resolution);
}

Track oval(double straight, double radius, double width, double resolution) {
  check_road(width, resolution);
  require(straight >= 0.0, "an oval's straights cannot be shorter than 0 m, not " + std::to_string(straight));
  require(radius > 0.5 * width, "an oval's bends of " + std::to_string(radius) +
                                    " m have no inner wall with a road of " + std::to_string(width) + " m");
  const int along = static_cast<int>(std::ceil(straight / kPointSpacing));
  const int around = std::max(8, static_cast<int>(std::ceil(kPi * radius / kPointSpacing)));
  std::vector<Point> half;  // from the middle of the lower straight to the middle of the upper one
  for (int i = 0; i < (along + 1) / 2; ++i) half.push_back({0.5 * straight * i / ((along + 1) / 2), -radius});
  for (int i = 0; i < around; ++i) {
    const double angle = kPi * i / around - 0.5 * kPi;
    half.push_back({0.5 * straight + radius * std::cos(angle), radius * std::sin(angle)});
  }
  for (int i = 0; i < (along + 1) / 2; ++i)
    half.push_back({0.5 * straight - 0.5 * straight * i / ((along + 1) / 2), radius});
  std::vector<Point> points = half;
  for (const Point& p : half) points.push_back({-p.x, -p.y});
  return paved(std::move(points), true, width, resolution);
}

}  // namespace slipstream::racing
