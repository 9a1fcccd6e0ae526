#include "racing/track.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <stdexcept>
#include <string>

namespace slipstream::racing {
namespace {

constexpr double kSpacing = 0.2;  // metres between points of a line, about
constexpr int kTries = 100;
constexpr int kRounds = 60;          // of relaxing a line
constexpr std::size_t kPieces = 64;  // of a curve between two corners
constexpr double kLongest = 1.5;     // diameters that a curve between two corners may be long
constexpr double kBulge = 1.1;       // radii that it may reach outward
constexpr double kPi = std::numbers::pi;

void require(bool fine, const std::string& sentence) {
  if (!fine) throw std::invalid_argument(sentence);
}

void check_road(double width, double resolution) {
  require(resolution > 0.0,
          "a track's resolution is metres per cell and must be above 0, not " + std::to_string(resolution));
  require(width >= 2.0 * resolution, "a road of " + std::to_string(width) + " m is narrower than two cells of " +
                                         std::to_string(resolution) + " m");
}

// Draws the road along track.line: free where a cell's centre is within half the width of it.
void pave(Track& track, double width, double resolution) {
  const Centerline& line = track.line;
  const bool closed = line.closed();
  double left = std::numeric_limits<double>::infinity();
  double low = left;
  double right = -left;
  double high = -left;
  for (const Point& p : line.points()) {
    left = std::min(left, p.x);
    right = std::max(right, p.x);
    low = std::min(low, p.y);
    high = std::max(high, p.y);
  }
  const double half = 0.5 * width;
  const double aside = half + kWallMargin;
  const double border = closed ? aside : kWallMargin;  // an open road ends where its line does
  const Pose origin{left - border, low - aside, 0.0};
  const int columns = static_cast<int>(std::ceil((right - left + 2.0 * border) / resolution));
  const int rows = static_cast<int>(std::ceil((high - low + 2.0 * aside) / resolution));
  track.map.redraw(rows, columns, origin, [&](std::span<std::uint8_t> occupied) {
    const auto corners = line.points();
    const auto cell = [&](double at, double from, int most) {
      return std::clamp(static_cast<int>(std::floor((at - from) / resolution)), 0, most - 1);
    };
    for (std::size_t i = 0; i < static_cast<std::size_t>(line.segments()); ++i) {
      const Point& a = corners[i];
      const Point& b = corners[(i + 1) % corners.size()];
      const double length = std::hypot(b.x - a.x, b.y - a.y);
      const double tx = (b.x - a.x) / length;
      const double ty = (b.y - a.y) / length;
      const int top = cell(std::max(a.y, b.y) + half, origin.y, rows);
      const int first = cell(std::min(a.x, b.x) - half, origin.x, columns);
      const int last = cell(std::max(a.x, b.x) + half, origin.x, columns);
      for (int r = cell(std::min(a.y, b.y) - half, origin.y, rows); r <= top; ++r)
        for (int c = first; c <= last; ++c) {
          const double x = origin.x + (c + 0.5) * resolution - a.x;
          const double y = origin.y + (r + 0.5) * resolution - a.y;
          const double along = x * tx + y * ty;
          if (!closed && (along < 0.0 || along > length)) continue;
          const double nearest = std::clamp(along, 0.0, length);
          const double dx = x - nearest * tx;
          const double dy = y - nearest * ty;
          if (dx * dx + dy * dy <= half * half)
            occupied[static_cast<std::size_t>(r) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(c)] = 0;
        }
    }
  });
}

Track paved(std::vector<Point> points, bool closed, double width, double resolution) {
  Track track{GridMap(1, resolution), Centerline(std::move(points), closed)};
  pave(track, width, resolution);
  return track;
}

double distance(const Point& a, const Point& b) { return std::hypot(b.x - a.x, b.y - a.y); }

// Radius of the circle through three points.
double bend_radius(const Point& a, const Point& b, const Point& c) {
  const double cross = (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
  const double sides =
      std::hypot(b.x - a.x, b.y - a.y) * std::hypot(c.x - b.x, c.y - b.y) * std::hypot(c.x - a.x, c.y - a.y);
  return cross == 0.0 ? std::numeric_limits<double>::infinity() : 0.5 * sides / std::abs(cross);
}

// The tightest bend, over a few points so that one crooked point does not count.
double tightest_bend(const std::vector<Point>& line) {
  constexpr std::size_t kReach = 3;
  const std::size_t n = line.size();
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < n; ++i)
    least = std::min(least, bend_radius(line[i], line[(i + kReach) % n], line[(i + 2 * kReach) % n]));
  return least;
}

bool is_road(const std::vector<Point>& line, double width, double tightest) {
  const std::size_t n = line.size();
  if (tightest_bend(line) < tightest + 0.5 * width) return false;
  // Parts that are not neighbours along the road must have a wall between them.
  const double clear = width + kWallMargin;
  const auto neighbours = static_cast<std::size_t>(std::ceil(0.5 * kPi * clear / kSpacing)) + 1;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = i + neighbours; j + neighbours < n + i && j < n; ++j) {
      const double dx = line[i].x - line[j].x;
      const double dy = line[i].y - line[j].y;
      if (dx * dx + dy * dy < clear * clear) return false;
    }
  return true;
}

}  // namespace

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
  const int along = static_cast<int>(std::ceil(straight / kSpacing));
  const int around = std::max(8, static_cast<int>(std::ceil(kPi * radius / kSpacing)));
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

CircuitMaker::CircuitMaker(const CircuitConfig& config)
    : config_(config), narrowest_m_(config.narrowest_m.value_or(config.width_m)) {
  check_fields(config);
  check_road(config.width_m, config.resolution_m);
  require(narrowest_m_ <= config.width_m, "a road of " + std::to_string(config.width_m) + " m cannot be " +
                                              std::to_string(narrowest_m_) + " m at its narrowest");
  check_road(narrowest_m_, config.resolution_m);
  require(config.tightest_m + 0.5 * narrowest_m_ >= kSpacing,
          "a bend of " + std::to_string(config.tightest_m) +
              " m at its inner wall is none at the middle of a road of " + std::to_string(narrowest_m_) + " m");
  require(config.radius_m >= config.width_m + config.tightest_m,
          "a circuit of " + std::to_string(config.radius_m) + " m radius has no room for a road of " +
              std::to_string(config.width_m) + " m around bends of " + std::to_string(config.tightest_m) + " m");
  const auto corners = static_cast<std::size_t>(config.corners);
  corners_.resize(corners);
  // No piece between two corners is longer than kLongest diameters.
  const auto points = static_cast<std::size_t>(kLongest * 2.0 * config.radius_m * config.corners / kSpacing);
  line_.reserve(std::max(points, corners * kPieces));
  other_.reserve(std::max(points, corners * kPieces));
}

Track CircuitMaker::blank() const {
  const double across = 2.0 * (kBulge * config_.radius_m + 0.5 * config_.width_m + kWallMargin);
  const auto cells = static_cast<std::size_t>(std::ceil(across / config_.resolution_m) + 1.0);
  Track track{GridMap(cells * cells, config_.resolution_m), Centerline({{0, 0}, {1, 0}, {0, 1}}, true)};
  track.line.reserve(line_.capacity());
  return track;
}

// A smooth closed line through the corners (Catmull-Rom).
void CircuitMaker::smooth() {
  line_.clear();
  const std::size_t n = corners_.size();
  for (std::size_t i = 0; i < n; ++i) {
    const Point& p0 = corners_[(i + n - 1) % n];
    const Point& p1 = corners_[i];
    const Point& p2 = corners_[(i + 1) % n];
    const Point& p3 = corners_[(i + 2) % n];
    for (std::size_t k = 0; k < kPieces; ++k) {
      const double t = static_cast<double>(k) / static_cast<double>(kPieces);
      const auto blend = [t](double a, double b, double c, double d) {
        return 0.5 * (2.0 * b + (c - a) * t + (2.0 * a - 5.0 * b + 4.0 * c - d) * t * t +
                      (3.0 * b - a - 3.0 * c + d) * t * t * t);
      };
      line_.push_back({blend(p0.x, p1.x, p2.x, p3.x), blend(p0.y, p1.y, p2.y, p3.y)});
    }
  }
}

// The same closed line with points about kSpacing apart.
void CircuitMaker::space_evenly() {
  const std::size_t n = line_.size();
  double length = 0.0;
  for (std::size_t i = 0; i < n; ++i) length += distance(line_[i], line_[(i + 1) % n]);
  const int count = std::max(16, static_cast<int>(length / kSpacing));
  other_.clear();
  std::size_t segment = 0;
  double begins = 0.0;
  double piece = distance(line_[0], line_[1]);
  for (int i = 0; i < count; ++i) {
    const double s = length * i / count;
    while (begins + piece <= s && segment + 1 < n) {
      begins += piece;
      ++segment;
      piece = distance(line_[segment], line_[(segment + 1) % n]);
    }
    const Point& a = line_[segment];
    const Point& b = line_[(segment + 1) % n];
    const double share = piece > 0.0 ? (s - begins) / piece : 0.0;
    other_.push_back({a.x + share * (b.x - a.x), a.y + share * (b.y - a.y)});
  }
  line_.swap(other_);
}

// Draws the line straight where it is bent, the most where it is bent the most, until no bend is tighter than this. A
// line that does not cross itself never comes to do so.
void CircuitMaker::relax(double least_radius) {
  for (int round = 0; round < kRounds && tightest_bend(line_) < least_radius; ++round) {
    for (int pass = 0; pass < 20; ++pass) {
      const std::size_t n = line_.size();
      other_.resize(n);
      for (std::size_t i = 0; i < n; ++i) {
        const Point& a = line_[i == 0 ? n - 1 : i - 1];
        const Point& b = line_[i + 1 == n ? 0 : i + 1];
        other_[i] = {0.5 * line_[i].x + 0.25 * (a.x + b.x), 0.5 * line_[i].y + 0.25 * (a.y + b.y)};
      }
      line_.swap(other_);
    }
    space_evenly();
  }
}

void CircuitMaker::draw(Rng& rng, Track& track) {
  const double step = 2.0 * kPi / config_.corners;
  const bool drawn = narrowest_m_ < config_.width_m;
  const double width = drawn ? rng.uniform(narrowest_m_, config_.width_m) : config_.width_m;
  const double side = config_.mirrored && rng.uniform() < 0.5 ? -1.0 : 1.0;
  for (int attempt = 0;; ++attempt) {
    // Where half of the tries at this roughness come too near to themselves, smoother ones follow, at last a circle.
    const double rough = config_.roughness * std::clamp(2.0 - 2.0 * attempt / kTries, 0.0, 1.0);
    for (int i = 0; i < config_.corners; ++i) {
      const double angle = step * (i + rough * rng.uniform(-0.4, 0.4));
      const double radius = config_.radius_m * (1.0 - rough * rng.uniform());
      corners_[static_cast<std::size_t>(i)] = {radius * std::cos(angle), side * radius * std::sin(angle)};
    }
    smooth();
    space_evenly();
    relax(config_.tightest_m + 0.5 * width);
    if (attempt >= kTries || is_road(line_, width, config_.tightest_m)) break;
  }
  track.line.assign(line_, true);
  pave(track, width, config_.resolution_m);
}

Track circuit(const CircuitConfig& config, Rng& rng) {
  CircuitMaker maker(config);
  Track track = maker.blank();
  maker.draw(rng, track);
  return track;
}

}  // namespace slipstream::racing
