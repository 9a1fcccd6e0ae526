#include "racing/circuit.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numbers>
#include <stdexcept>
#include <string>

#include "racing/length.hpp"

namespace slipstream::racing {
namespace {

constexpr int kTries = 100;
constexpr int kRounds = 60;          // of relaxing a line
constexpr int kPasses = 20;          // of a round
constexpr std::size_t kPieces = 64;  // of a curve between two corners
constexpr double kLongest = 1.5;     // diameters that a curve between two corners may be long
constexpr double kBulge = 1.1;       // radii that it may reach outward
constexpr std::size_t kSpare = 8;    // numbers that blur() may touch beyond a ring
constexpr double kPi = std::numbers::pi;

void require(bool fine, const std::string& sentence) {
  if (!fine) throw std::invalid_argument(sentence);
}

// Radius of the circle through three points.
double bend_radius(const Point& a, const Point& b, const Point& c) {
  const double cross = (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
  const double sides =
      std::hypot(b.x - a.x, b.y - a.y) * std::hypot(c.x - b.x, c.y - b.y) * std::hypot(c.x - a.x, c.y - a.y);
  return cross == 0.0 ? std::numeric_limits<double>::infinity() : 0.5 * sides / std::abs(cross);
}

// Whether any bend is tighter than this, over a few points so that one crooked point does not count. Squares say so
// without roots; where they are too near to each other, bend_radius() does.
bool has_bend_tighter(const Outline& line, double radius) {
  constexpr std::size_t kReach = 3;
  constexpr std::size_t kBlock = 64;
  constexpr double kSlack = 1e-9;  // far more than rounding
  const std::size_t n = line.size();
  const double surely = 4.0 * radius * radius * (1.0 - kSlack);
  const double perhaps = 4.0 * radius * radius * (1.0 + kSlack);
  const double* x = line.x.data();
  const double* y = line.y.data();
  const auto exactly = [&](std::size_t i) {
    return bend_radius(line.at(i), line.at((i + kReach) % n), line.at((i + 2 * kReach) % n)) < radius;
  };
  const std::size_t seam = n - 2 * kReach;
  for (std::size_t begin = 0; begin < seam; begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, seam);
    std::int64_t tight = 0;
    std::int64_t doubtful = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const double bx = x[i + kReach] - x[i];
      const double by = y[i + kReach] - y[i];
      const double cx = x[i + 2 * kReach] - x[i];
      const double cy = y[i + 2 * kReach] - y[i];
      const double dx = x[i + 2 * kReach] - x[i + kReach];
      const double dy = y[i + 2 * kReach] - y[i + kReach];
      const double cross = bx * cy - by * cx;
      const double sides = (bx * bx + by * by) * (dx * dx + dy * dy) * (cx * cx + cy * cy);
      tight |= sides < surely * (cross * cross) ? 1 : 0;
      doubtful |= sides <= perhaps * (cross * cross) ? 1 : 0;
    }
    if (tight != 0) return true;
    if (doubtful == 0) continue;
    for (std::size_t i = begin; i < end; ++i)
      if (exactly(i)) return true;
  }
  for (std::size_t i = seam; i < n; ++i)
    if (exactly(i)) return true;
  return false;
}

// Parts that are not neighbours along the road must have a wall between them.
bool keeps_apart(const Outline& line, double clear) {
  const std::size_t n = line.size();
  const auto neighbours = static_cast<std::size_t>(std::ceil(0.5 * kPi * clear / kPointSpacing)) + 1;
  for (std::size_t i = 0; i + neighbours < n; ++i) {
    const double x = line.x[i];
    const double y = line.y[i];
    const std::size_t end = std::min(n, n + i - neighbours);
    std::int64_t near = 0;
    for (std::size_t j = i + neighbours; j < end; ++j) {
      const double dx = x - line.x[j];
      const double dy = y - line.y[j];
      near |= dx * dx + dy * dy < clear * clear ? 1 : 0;
    }
    if (near != 0) return false;
  }
  return true;
}

using Four = double __attribute__((vector_size(4 * sizeof(double))));  // understood by GCC and Clang on any processor

Four load(const double* from) {
  Four four;
  std::memcpy(&four, from, sizeof(four));
  return four;
}

// Of n numbers in a ring, each and the two after it: to[i] becomes four times the mean of the three, the one in the
// middle counted twice. Reads and writes some numbers beyond the ring.
void blur(double* from, double* to, std::size_t n) {
  from[n] = from[0];
  from[n + 1] = from[1];
  Four first = load(from);
  for (std::size_t i = 0; i < n; i += 4) {
    const Four next = load(from + i + 4);
    const Four second = __builtin_shufflevector(first, next, 1, 2, 3, 4);
    const Four third = __builtin_shufflevector(first, next, 2, 3, 4, 5);
    const Four sum = (first + third) + (second + second);
    std::memcpy(to + i, &sum, sizeof(sum));
    first = next;
  }
}

// Each coordinate, many times over, becomes half of itself and a quarter of either neighbour. The factors of all passes
// are powers of two and are put in at the end, which changes no bit.
void blur_often(std::vector<double>& line, std::array<std::vector<double>, 2>& rings) {
  const std::size_t n = line.size();
  for (std::vector<double>& ring : rings) ring.resize(std::max(ring.size(), n + kSpare));
  std::copy(line.begin(), line.end(), rings[0].begin());
  static_assert(kPasses % 2 == 0);
  for (int pass = 0; pass < kPasses; pass += 2) {
    blur(rings[0].data(), rings[1].data(), n);
    blur(rings[1].data(), rings[0].data(), n);
  }
  // Every pass has turned the ring by one.
  const double share = std::ldexp(1.0, -2 * kPasses);
  const std::size_t turned = kPasses % n;
  for (std::size_t i = turned; i < n; ++i) line[i] = share * rings[0][i - turned];
  for (std::size_t i = 0; i < turned; ++i) line[i] = share * rings[0][n + i - turned];
}

}  // namespace

CircuitMaker::CircuitMaker(const CircuitConfig& config)
    : config_(config), narrowest_m_(config.narrowest_m.value_or(config.width_m)) {
  check_fields(config);
  check_road(config.width_m, config.resolution_m);
  require(narrowest_m_ <= config.width_m, "a road of " + std::to_string(config.width_m) + " m cannot be " +
                                              std::to_string(narrowest_m_) + " m at its narrowest");
  check_road(narrowest_m_, config.resolution_m);
  require(config.tightest_m + 0.5 * narrowest_m_ >= kPointSpacing,
          "a bend of " + std::to_string(config.tightest_m) +
              " m at its inner wall is none at the middle of a road of " + std::to_string(narrowest_m_) + " m");
  require(config.radius_m >= config.width_m + config.tightest_m,
          "a circuit of " + std::to_string(config.radius_m) + " m radius has no room for a road of " +
              std::to_string(config.width_m) + " m around bends of " + std::to_string(config.tightest_m) + " m");
  const auto corners = static_cast<std::size_t>(config.corners);
  corners_.resize(corners);
  // No piece between two corners is longer than kLongest diameters.
  const auto points = static_cast<std::size_t>(kLongest * 2.0 * config.radius_m * config.corners / kPointSpacing);
  const std::size_t most = std::max(points, corners * kPieces);
  for (std::vector<double>* part : {&line_.x, &line_.y, &other_.x, &other_.y, &pieces_, &ends_}) part->reserve(most);
  for (std::vector<double>& ring : rings_) ring.resize(most + kSpare);
  points_.reserve(most);
  paver_.reserve(side_cells());
}

// Cells along a side of the largest grid.
std::size_t CircuitMaker::side_cells() const {
  const double across = 2.0 * (kBulge * config_.radius_m + 0.5 * config_.width_m + kWallMargin);
  return static_cast<std::size_t>(std::ceil(across / config_.resolution_m) + 1.0);
}

Track CircuitMaker::blank() const {
  Track track{GridMap(side_cells(), config_.resolution_m), Centerline({{0, 0}, {1, 0}, {0, 1}}, true)};
  track.line.reserve(most_points());
  return track;
}

// A smooth closed line through the corners (Catmull-Rom).
void CircuitMaker::smooth() {
  const std::size_t n = corners_.size();
  line_.resize(n * kPieces);
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
      line_.x[i * kPieces + k] = blend(p0.x, p1.x, p2.x, p3.x);
      line_.y[i * kPieces + k] = blend(p0.y, p1.y, p2.y, p3.y);
    }
  }
}

// The same closed line with points about kPointSpacing apart.
void CircuitMaker::space_evenly() {
  const std::size_t n = line_.size();
  const double* x = line_.x.data();
  const double* y = line_.y.data();
  pieces_.resize(n);
  ends_.resize(n);
  double* pieces = pieces_.data();
  for (std::size_t i = 0; i + 1 < n; ++i) pieces[i] = length_of(x[i + 1] - x[i], y[i + 1] - y[i]);
  pieces[n - 1] = length_of(x[0] - x[n - 1], y[0] - y[n - 1]);
  double length = 0.0;
  for (std::size_t i = 0; i < n; ++i) ends_[i] = length += pieces[i];
  const int count = std::max(16, static_cast<int>(length / kPointSpacing));
  other_.resize(static_cast<std::size_t>(count));
  double* to_x = other_.x.data();
  double* to_y = other_.y.data();
  for (int i = 0; i < count; ++i) to_x[i] = length * i / count;
  const double* ends = ends_.data();
  std::size_t segment = 0;
  double begins = 0.0;
  for (int i = 0; i < count; ++i) {
    const double s = to_x[i];
    for (; ends[segment] <= s && segment + 1 < n; ++segment) begins = ends[segment];
    const double share = pieces[segment] > 0.0 ? (s - begins) / pieces[segment] : 0.0;
    const std::size_t next = segment + 1 == n ? 0 : segment + 1;
    to_x[i] = x[segment] + share * (x[next] - x[segment]);
    to_y[i] = y[segment] + share * (y[next] - y[segment]);
  }
  std::swap(line_, other_);
}

// Draws the line straight where it is bent, the most where it is bent the most, until no bend is tighter than this. A
// line that does not cross itself never comes to do so.
void CircuitMaker::relax(double least_radius) {
  for (int round = 0; round < kRounds && has_bend_tighter(line_, least_radius); ++round) {
    blur_often(line_.x, rings_);
    blur_often(line_.y, rings_);
    space_evenly();
  }
}

bool CircuitMaker::is_road(double width) const {
  return !has_bend_tighter(line_, config_.tightest_m + 0.5 * width) && keeps_apart(line_, width + kWallMargin);
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
    if (attempt >= kTries || is_road(width)) break;
  }
  points_.resize(line_.size());
  for (std::size_t i = 0; i < points_.size(); ++i) points_[i] = line_.at(i);
  track.line.assign(points_, true);
  paver_.pave(track, width, config_.resolution_m);
}

Track circuit(const CircuitConfig& config, Rng& rng) {
  CircuitMaker maker(config);
  Track track = maker.blank();
  maker.draw(rng, track);
  return track;
}

}  // namespace slipstream::racing
