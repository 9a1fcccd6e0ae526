// Circuits are drawn quickly, and are the same as if they were drawn slowly: one point, cell and square after another.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

#include "check.hpp"
#include "racing/circuit.hpp"
#include "racing/length.hpp"

using namespace slipstream;
using namespace slipstream::racing;

namespace {

constexpr double kPi = std::numbers::pi;

// --- slowly ---

double distance(const Point& a, const Point& b) { return length_of(b.x - a.x, b.y - a.y); }

double tightest_bend(const std::vector<Point>& line) {
  const std::size_t n = line.size();
  double tightest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < n; ++i) {
    const Point& a = line[i];
    const Point& b = line[(i + 3) % n];
    const Point& c = line[(i + 6) % n];
    const double cross = (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
    const double sides =
        std::hypot(b.x - a.x, b.y - a.y) * std::hypot(c.x - b.x, c.y - b.y) * std::hypot(c.x - a.x, c.y - a.y);
    if (cross != 0.0) tightest = std::min(tightest, 0.5 * sides / std::abs(cross));
  }
  return tightest;
}

std::vector<Point> spaced(const std::vector<Point>& line) {
  const std::size_t n = line.size();
  double length = 0.0;
  for (std::size_t i = 0; i < n; ++i) length += distance(line[i], line[(i + 1) % n]);
  const int count = std::max(16, static_cast<int>(length / 0.2));
  std::vector<Point> even;
  std::size_t segment = 0;
  double begins = 0.0;
  double piece = distance(line[0], line[1]);
  for (int i = 0; i < count; ++i) {
    const double s = length * i / count;
    while (begins + piece <= s && segment + 1 < n) {
      begins += piece;
      ++segment;
      piece = distance(line[segment], line[(segment + 1) % n]);
    }
    const Point& a = line[segment];
    const Point& b = line[(segment + 1) % n];
    const double share = piece > 0.0 ? (s - begins) / piece : 0.0;
    even.push_back({a.x + share * (b.x - a.x), a.y + share * (b.y - a.y)});
  }
  return even;
}

std::vector<Point> through(const std::vector<Point>& corners) {
  std::vector<Point> line;
  const std::size_t n = corners.size();
  for (std::size_t i = 0; i < n; ++i)
    for (int k = 0; k < 64; ++k) {
      const double t = k / 64.0;
      const auto blend = [t](double a, double b, double c, double d) {
        return 0.5 * (2.0 * b + (c - a) * t + (2.0 * a - 5.0 * b + 4.0 * c - d) * t * t +
                      (3.0 * b - a - 3.0 * c + d) * t * t * t);
      };
      const Point& p0 = corners[(i + n - 1) % n];
      const Point& p1 = corners[i];
      const Point& p2 = corners[(i + 1) % n];
      const Point& p3 = corners[(i + 2) % n];
      line.push_back({blend(p0.x, p1.x, p2.x, p3.x), blend(p0.y, p1.y, p2.y, p3.y)});
    }
  return line;
}

std::vector<Point> relaxed(std::vector<Point> line, double least_radius) {
  for (int round = 0; round < 60 && tightest_bend(line) < least_radius; ++round) {
    for (int pass = 0; pass < 20; ++pass) {
      const std::vector<Point> from = line;
      const std::size_t n = line.size();
      for (std::size_t i = 0; i < n; ++i) {
        const Point& a = from[(i + n - 1) % n];
        const Point& b = from[(i + 1) % n];
        line[i] = {0.5 * from[i].x + 0.25 * (a.x + b.x), 0.5 * from[i].y + 0.25 * (a.y + b.y)};
      }
    }
    line = spaced(line);
  }
  return line;
}

bool keeps_apart(const std::vector<Point>& line, double clear) {
  const std::size_t n = line.size();
  const auto neighbours = static_cast<std::size_t>(std::ceil(0.5 * kPi * clear / 0.2)) + 1;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = i + neighbours; j + neighbours < n + i && j < n; ++j) {
      const double dx = line[i].x - line[j].x;
      const double dy = line[i].y - line[j].y;
      if (dx * dx + dy * dy < clear * clear) return false;
    }
  return true;
}

struct Drawn {
  std::vector<Point> line;
  double width = 0.0;
};

Drawn drawn(const CircuitConfig& config, Rng& rng) {
  const double narrowest = config.narrowest_m.value_or(config.width_m);
  Drawn road{{}, narrowest < config.width_m ? rng.uniform(narrowest, config.width_m) : config.width_m};
  const double side = config.mirrored && rng.uniform() < 0.5 ? -1.0 : 1.0;
  const double least_radius = config.tightest_m + 0.5 * road.width;
  for (int attempt = 0;; ++attempt) {
    const double rough = config.roughness * std::clamp(2.0 - 2.0 * attempt / 100, 0.0, 1.0);
    std::vector<Point> corners;
    for (int i = 0; i < config.corners; ++i) {
      const double angle = 2.0 * kPi / config.corners * (i + rough * rng.uniform(-0.4, 0.4));
      const double radius = config.radius_m * (1.0 - rough * rng.uniform());
      corners.push_back({radius * std::cos(angle), side * radius * std::sin(angle)});
    }
    road.line = relaxed(spaced(through(corners)), least_radius);
    if (attempt >= 100) return road;
    if (tightest_bend(road.line) >= least_radius && keeps_apart(road.line, road.width + 0.5)) return road;
  }
}

// A byte for each cell of the grid of a map: 0 where its centre is on the road.
std::vector<std::uint8_t> painted(const GridMap& map, const std::vector<Point>& line, bool closed, double width) {
  const double half = 0.5 * width;
  std::vector<std::uint8_t> occupied(map.occupied().size(), 1);
  const auto cell = [&](double metres, int most) {
    return std::clamp(static_cast<int>(std::floor(metres / map.resolution())), 0, most - 1);
  };
  for (std::size_t i = 0; i + (closed ? 0 : 1) < line.size(); ++i) {
    const Point& a = line[i];
    const Point& b = line[(i + 1) % line.size()];
    const double length = distance(a, b);
    const double tx = (b.x - a.x) / length;
    const double ty = (b.y - a.y) / length;
    const int top = cell(std::max(a.y, b.y) + half - map.origin().y, map.rows());
    const int right = cell(std::max(a.x, b.x) + half - map.origin().x, map.columns());
    for (int r = cell(std::min(a.y, b.y) - half - map.origin().y, map.rows()); r <= top; ++r)
      for (int c = cell(std::min(a.x, b.x) - half - map.origin().x, map.columns()); c <= right; ++c) {
        const double x = map.origin().x + (c + 0.5) * map.resolution() - a.x;
        const double y = map.origin().y + (r + 0.5) * map.resolution() - a.y;
        const double along = x * tx + y * ty;
        if (!closed && (along < 0.0 || along > length)) continue;
        const double nearest = std::clamp(along, 0.0, length);
        const double dx = x - nearest * tx;
        const double dy = y - nearest * ty;
        if (dx * dx + dy * dy <= half * half) occupied[static_cast<std::size_t>(r * map.columns() + c)] = 0;
      }
  }
  return occupied;
}

// Whether all squares are what the cells say, one after the other.
bool surveyed(const GridMap& map) {
  const std::vector<std::uint8_t> occupied = map.occupied();
  const int rows = map.rows();
  const int columns = map.columns();
  const auto square = [&](int row, int column, std::uint32_t quadrant) {
    return row < 0 || row >= rows || column < 0 || column >= columns ? 0U : map.free_square(row, column, quadrant);
  };
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c)
      for (std::uint32_t quadrant = 0; quadrant < 4; ++quadrant) {
        const int across = c + ((quadrant & 1U) != 0 ? 1 : -1);
        const int along = r + ((quadrant & 2U) != 0 ? 1 : -1);
        const std::uint32_t side = 1 + std::min({square(along, c, quadrant), square(r, across, quadrant),
                                                 square(along, across, quadrant), 254U});
        const bool free = occupied[static_cast<std::size_t>(r * columns + c)] == 0;
        if (square(r, c, quadrant) != (free ? side : 0U)) return false;
      }
  return true;
}

// --- and quickly ---

CircuitConfig kind(int corners, double radius, double roughness, double width, double tightest, double resolution) {
  CircuitConfig config;
  config.corners = corners;
  config.radius_m = radius;
  config.roughness = roughness;
  config.width_m = width;
  config.tightest_m = tightest;
  config.resolution_m = resolution;
  return config;
}

std::vector<CircuitConfig> kinds() {
  CircuitConfig hard = kind(20, 18.0, 1.0, 2.3, -0.2, 0.05);
  hard.narrowest_m = 1.4;
  hard.mirrored = true;
  return {{},
          hard,
          kind(3, 6.0, 0.0, 2.2, 0.6, 0.1),     // a circle, nearly
          kind(40, 30.0, 0.5, 3.0, -1.0, 0.2),  // many corners
          kind(16, 5.0, 1.0, 2.0, 0.2, 0.05),   // hardly any room: drawn often
          kind(8, 9.0, 0.7, 4.0, 0.5, 0.02)};   // squares as large as they are counted
}

bool same_as_slow(const CircuitConfig& config, CircuitMaker& maker, Track& track, std::uint32_t episode) {
  Rng quick(7, Domain::kWorld, 0, episode);
  Rng slow = quick;
  maker.draw(quick, track);
  const Drawn road = drawn(config, slow);
  const auto points = track.line.points();
  if (quick.next_u32() != slow.next_u32() || points.size() != road.line.size()) return false;
  for (std::size_t i = 0; i < points.size(); ++i)
    if (points[i].x != road.line[i].x || points[i].y != road.line[i].y) return false;
  return track.map.occupied() == painted(track.map, road.line, true, road.width) && surveyed(track.map);
}

void a_circuit_drawn_quickly_is_the_one_drawn_slowly() {
  for (const CircuitConfig& config : kinds()) {
    CircuitMaker maker(config);
    Track track = maker.blank();  // all are drawn into the memory of those before
    for (std::uint32_t episode = 0; episode < 3; ++episode) CHECK(same_as_slow(config, maker, track, episode));
  }
}

void lines_of_circuits_drawn_quickly_are_those_drawn_slowly() {
  for (CircuitConfig config : kinds()) {
    config.resolution_m = 0.5 * config.narrowest_m.value_or(config.width_m);  // so that grids cost little
    CircuitMaker maker(config);
    Track track = maker.blank();
    for (std::uint32_t episode = 3; episode < 12; ++episode) CHECK(same_as_slow(config, maker, track, episode));
  }
}

// A line that needs nothing but its bends allowed, and one that is too tight by one rounding.
void the_tightest_bend_allowed_is_told_from_a_tighter_one() {
  for (const int count : {3, 4, 5, 6, 7, 8}) {
    std::vector<Point> corners;
    for (int i = 0; i < count; ++i) {
      const double angle = 2.0 * kPi / count * i;
      corners.push_back({6.0 * std::cos(angle), 6.0 * std::sin(angle)});
    }
    const std::vector<Point> line = spaced(through(corners));
    const double tightest = tightest_bend(line);
    for (const double least : {tightest, std::nextafter(tightest, 9.0)}) {
      const CircuitConfig config = kind(count, 6.0, 0.0, 2.0, least - 1.0, 0.5);
      if (config.tightest_m + 1.0 != least) continue;
      CircuitMaker maker(config);
      Track track = maker.blank();
      CHECK(same_as_slow(config, maker, track, 0));
      CHECK((track.line.points()[1].x == line[1].x) == (least == tightest));
    }
  }
}

void roads_that_do_not_close_end_square() {
  for (const double width : {0.5, 2.0, 3.1}) {
    const Track track = corridor(7.0, width, 0.07);
    const std::vector<Point> line(track.line.points().begin(), track.line.points().end());
    CHECK(track.map.occupied() == painted(track.map, line, false, width) && surveyed(track.map));
  }
}

void roads_along_the_grid_are_as_wide_as_they_say() {
  for (const double resolution : {0.1, 0.25, 0.5}) {  // centres of cells are on the road's border
    const Track track = oval(4.0, 3.0, 2.0, resolution);
    const std::vector<Point> line(track.line.points().begin(), track.line.points().end());
    CHECK(track.map.occupied() == painted(track.map, line, true, 2.0) && surveyed(track.map));
  }
}

// Walls here and there, in grids whose rows end within a word, a block, or at their ends.
void squares_of_any_grid_are_those_of_its_cells() {
  Rng rng(5, Domain::kWorld, 0, 0);
  for (const int columns : {1, 15, 16, 17, 63, 64, 65, 200, 700})
    for (const std::uint32_t every : {3U, 40U, 4000U}) {
      const int rows = columns > 300 ? 300 : 30;
      std::vector<std::uint8_t> cells(static_cast<std::size_t>(rows * columns));
      const int stripes = static_cast<int>(rng.below(6)) * 16;  // every other one is wall, in every other row
      for (int i = 0; i < rows * columns; ++i) {
        const bool striped = stripes > 0 && i % columns / stripes % 2 == 1 && i / columns % 2 == 0;
        cells[static_cast<std::size_t>(i)] = striped || rng.below(every) == 0 ? 1 : 0;
      }
      const GridMap map(cells, rows, columns, 0.1, {});
      CHECK(map.occupied() == cells && surveyed(map));
    }
}

void lengths_are_those_of_hypot() {
  Rng rng(2, Domain::kWorld, 0, 0);
  for (int i = 0; i < 300000; ++i) {
    const double scale = std::pow(10.0, rng.uniform(-9.0, 3.0));
    const double x = rng.uniform(-1.0, 1.0);
    const double y = scale * rng.uniform(-1.0, 1.0);
    const double expected = std::hypot(x, y);
    const double unit = std::nextafter(expected, 1e300) - expected;
    CHECK(std::abs(length_of(x, y) - expected) <= unit);
  }
  CHECK(length_of(3.0, -4.0) == 5.0 && length_of(0.0, 0.0) == 0.0 && length_of(-2.0, 0.0) == 2.0);
}

}  // namespace

int main() {
  a_circuit_drawn_quickly_is_the_one_drawn_slowly();
  lines_of_circuits_drawn_quickly_are_those_drawn_slowly();
  the_tightest_bend_allowed_is_told_from_a_tighter_one();
  roads_that_do_not_close_end_square();
  roads_along_the_grid_are_as_wide_as_they_say();
  squares_of_any_grid_are_those_of_its_cells();
  lengths_are_those_of_hypot();
  return test::finish();
}
