#include "racing/paving.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "racing/length.hpp"

namespace slipstream::racing {
namespace {

// Rounding of floats, as a share of a disc's radius: what is surely within it is so much within.
constexpr double kSlack = 1e-5;
constexpr int kNone = 1 << 28;
constexpr std::size_t kLanes = 16;  // rows that are looked at together
constexpr float kFarAside = -1e6F;  // half a chord of no length: nothing is within

}  // namespace

// Where the road is drawn, in cells, with the middle of cell (0, 0) at (0, 0).
struct Paver::Grid {
  Pose origin;
  int rows = 0;
  int columns = 0;
  double resolution = 0.0;
  double half = 0.0;     // of the road's width, in metres
  bool closed = true;    // an open road ends square, where its line does
  double surely = 0.0;   // within so many cells of a point the road surely is
  double perhaps = 0.0;  // farther from a segment's ends and its middle it surely is not
  int step = 0;          // rows that a segment may reach beyond a disc at its end
};

// A piece of the line, and what its end looks like from its beginning.
struct Paver::Segment {
  Point from;
  Point to;
  double length = 0.0;
  double tx = 0.0;
  double ty = 0.0;

  [[nodiscard]] bool covers(const Grid& grid, int row, int column) const {
    const double x = grid.origin.x + (column + 0.5) * grid.resolution - from.x;
    const double y = grid.origin.y + (row + 0.5) * grid.resolution - from.y;
    const double along = x * tx + y * ty;
    if (!grid.closed && (along < 0.0 || along > length)) return false;
    const double nearest = std::clamp(along, 0.0, length);
    const double dx = x - nearest * tx;
    const double dy = y - nearest * ty;
    return dx * dx + dy * dy <= grid.half * grid.half;
  }
};

Paver::Segment Paver::segment_of(std::span<const Point> points, std::size_t i) {
  const Point& a = points[i];
  const Point& b = points[i + 1 == points.size() ? 0 : i + 1];
  const double length = length_of(b.x - a.x, b.y - a.y);
  return {a, b, length, (b.x - a.x) / length, (b.y - a.y) / length};
}

void Paver::reserve(std::size_t rows) {
  rows += kLanes;
  for (Disc& disc : discs_)
    for (Columns* columns : {&disc.surely, &disc.perhaps, &paved_}) {
      columns->first.reserve(rows);
      columns->last.reserve(rows);
    }
}

// In floats, which are eight at a time: nearly all cells are well within a disc or well without.
void Paver::cover(const Grid& grid, const Point& middle, Disc& disc) {
  const double u = (middle.x - grid.origin.x) / grid.resolution - 0.5;
  const double v = (middle.y - grid.origin.y) / grid.resolution - 0.5;
  const int column = static_cast<int>(std::floor(u));
  const int row = static_cast<int>(std::floor(v));
  const auto within_u = static_cast<float>(u - column);
  const auto within_v = static_cast<float>(v - row);
  const int low = std::max(0, static_cast<int>(v - grid.perhaps) - grid.step);
  const int high = std::min(grid.rows - 1, static_cast<int>(v + grid.perhaps) + 1 + grid.step);
  const int end = high + static_cast<int>(kLanes);  // rows are looked at together
  disc.low = low;
  disc.high = high;
  const auto fill = [&](Columns& columns, double radius) {
    const auto squared = static_cast<float>(radius * radius);
    int* first = columns.first.data();
    int* last = columns.last.data();
    for (int r = low; r < end; ++r) {
      const float y = static_cast<float>(r - row) - within_v;
      const float left = squared - y * y;
      const float root = std::sqrt(std::max(left, 0.0F));
      const float chord = left > 0.0F ? root : kFarAside;
      first[r] = column + static_cast<int>(std::ceil(within_u - chord));
      last[r] = column + static_cast<int>(std::floor(within_u + chord));
    }
  };
  fill(disc.surely, grid.surely);
  fill(disc.perhaps, grid.perhaps);
}

// Many rows at a time: nearly all of their cells are surely on the road, drawn already or surely beside it.
template <class Free>
void Paver::pave_segment(const Grid& grid, const Segment& segment, Free&& free) {
  const int low = std::max({discs_[0].low, discs_[1].low, discs_[2].low});
  const int high = std::min({discs_[0].high, discs_[1].high, discs_[2].high});
  const auto hull = [&](Columns Disc::* part, std::size_t r) {
    const Columns &a = discs_[0].*part, &b = discs_[1].*part, &c = discs_[2].*part;
    return Stretch{std::min(std::min(a.first[r], b.first[r]), c.first[r]),
                   std::max(std::max(a.last[r], b.last[r]), c.last[r])};
  };
  for (int row = low; row <= high; row += kLanes) {
    const auto r = static_cast<std::size_t>(row);
    std::array<int, kLanes> first, last, look;
    int any = 0;
    for (std::size_t k = 0; k < kLanes; ++k) {
      const Stretch surely = hull(&Disc::surely, r + k);
      const Stretch perhaps = hull(&Disc::perhaps, r + k);
      const int f = paved_.first[r + k];
      const int l = paved_.last[r + k];
      const bool joined = (surely.first <= surely.last) & (surely.first <= l + 1) & (surely.last >= f - 1);
      first[k] = joined ? std::min(f, surely.first) : f;
      last[k] = joined ? std::max(l, surely.last) : l;
      look[k] = (perhaps.first <= perhaps.last) & ((perhaps.first < first[k]) | (perhaps.last > last[k])) ? 1 : 0;
      any |= look[k];
    }
    std::copy_n(first.begin(), kLanes, paved_.first.begin() + row);
    std::copy_n(last.begin(), kLanes, paved_.last.begin() + row);
    for (std::size_t k = 0; any != 0 && k < kLanes; ++k)
      if (look[k] != 0)
        pave_row(grid, segment, row + static_cast<int>(k), hull(&Disc::surely, r + k), hull(&Disc::perhaps, r + k),
                 free);
  }
}

// The cells that only the exact test tells, and stretches apart from what was paved in this row before.
template <class Free>
void Paver::pave_row(const Grid& grid, const Segment& segment, int row, Stretch surely, Stretch perhaps, Free&& free) {
  const auto r = static_cast<std::size_t>(row);
  int first = paved_.first[r];
  int last = paved_.last[r];
  if (surely.first <= surely.last && (surely.first < first || surely.last > last)) {
    if (first <= last) free(row, first, last);
    first = surely.first;
    last = surely.last;
  }
  const int end = std::min(grid.columns - 1, perhaps.last);
  for (int column = std::max(0, perhaps.first); column <= end; ++column) {
    if (column >= first && column <= last) {
      column = last;
    } else if (segment.covers(grid, row, column)) {
      if (column == last + 1) {
        last = column;
      } else if (column == first - 1) {
        first = column;
      } else {
        free(row, column, column);
      }
    }
  }
  paved_.first[r] = first;
  paved_.last[r] = last;
}

void Paver::pave(Track& track, double width, double resolution) {
  const Centerline& line = track.line;
  const auto points = line.points();
  double left = std::numeric_limits<double>::infinity();
  double low = left;
  double right = -left;
  double high = -left;
  for (const Point& p : points) {
    left = std::min(left, p.x);
    right = std::max(right, p.x);
    low = std::min(low, p.y);
    high = std::max(high, p.y);
  }
  const auto segments = static_cast<std::size_t>(line.segments());
  double longest = 0.0;
  for (std::size_t i = 0; i < segments; ++i) longest = std::max(longest, segment_of(points, i).length);
  longest /= resolution;
  Grid grid;
  grid.closed = line.closed();
  grid.resolution = resolution;
  grid.half = 0.5 * width;
  const double aside = grid.half + kWallMargin;
  const double border = grid.closed ? aside : kWallMargin;  // an open road ends where its line does
  grid.origin = {left - border, low - aside, 0.0};
  grid.columns = static_cast<int>(std::ceil((right - left + 2.0 * border) / resolution));
  grid.rows = static_cast<int>(std::ceil((high - low + 2.0 * aside) / resolution));
  const double radius = grid.half / resolution;
  grid.surely = grid.closed ? radius * (1.0 - kSlack) : 0.0;
  grid.perhaps = std::hypot(radius, 0.25 * longest) * (1.0 + kSlack);
  grid.step = static_cast<int>(longest) + 1;
  const auto rows = static_cast<std::size_t>(grid.rows);
  for (Disc& disc : discs_)
    for (Columns* columns : {&disc.surely, &disc.perhaps}) columns->resize(rows + kLanes);
  paved_.first.assign(rows + kLanes, kNone);
  paved_.last.assign(rows + kLanes, -kNone);
  track.map.redraw(grid.rows, grid.columns, grid.origin, [&](auto&& free) {
    cover(grid, points[0], discs_[0]);
    for (std::size_t i = 0; i < segments; ++i) {
      const Segment segment = segment_of(points, i);
      const Point middle{0.5 * (segment.from.x + segment.to.x), 0.5 * (segment.from.y + segment.to.y)};
      cover(grid, middle, discs_[1]);
      cover(grid, segment.to, discs_[2]);
      pave_segment(grid, segment, free);
      std::swap(discs_[0], discs_[2]);
    }
    for (std::size_t r = 0; r < rows; ++r)
      if (paved_.first[r] <= paved_.last[r]) free(static_cast<int>(r), paved_.first[r], paved_.last[r]);
  });
}

}  // namespace slipstream::racing
