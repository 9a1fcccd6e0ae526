#include "racing/map.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace slipstream::racing {
namespace {

constexpr int kFarthest = 255;

// Chessboard distance to the nearest wall, outside included, in two sweeps.
std::vector<std::uint8_t> king_moves(const std::vector<std::uint8_t>& occupied, int rows, int columns) {
  std::vector<std::uint8_t> moves(occupied.size());
  const auto at = [&](int r, int c) -> int {
    if (r < 0 || r >= rows || c < 0 || c >= columns) return 0;
    return moves[static_cast<std::size_t>(r) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(c)];
  };
  const auto index = [&](int r, int c) {
    return static_cast<std::size_t>(r) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(c);
  };
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) {
      if (occupied[index(r, c)] != 0) continue;
      const int nearest = std::min({at(r - 1, c - 1), at(r - 1, c), at(r - 1, c + 1), at(r, c - 1), kFarthest - 1});
      moves[index(r, c)] = static_cast<std::uint8_t>(nearest + 1);
    }
  for (int r = rows - 1; r >= 0; --r)
    for (int c = columns - 1; c >= 0; --c) {
      const int nearest = std::min({at(r + 1, c - 1), at(r + 1, c), at(r + 1, c + 1), at(r, c + 1), kFarthest - 1});
      moves[index(r, c)] = static_cast<std::uint8_t>(std::min<int>(moves[index(r, c)], nearest + 1));
    }
  return moves;
}

// Squared distance to the nearest zero of a parabola envelope along one line (Felzenszwalb & Huttenlocher 2012).
void squared_distance(std::vector<double>& line, std::vector<int>& place, std::vector<double>& edge,
                      std::vector<double>& out) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const int size = static_cast<int>(line.size());
  int last = -1;
  for (int q = 0; q < size; ++q) {
    const double height = line[static_cast<std::size_t>(q)];
    if (height == kNever) continue;
    double begin = -kNever;
    while (last >= 0) {
      const int p = place[static_cast<std::size_t>(last)];
      begin =
          ((height + static_cast<double>(q) * q) - (line[static_cast<std::size_t>(p)] + static_cast<double>(p) * p)) /
          (2.0 * (q - p));
      if (begin > edge[static_cast<std::size_t>(last)]) break;
      --last;
      begin = -kNever;
    }
    ++last;
    place[static_cast<std::size_t>(last)] = q;
    edge[static_cast<std::size_t>(last)] = begin;
  }
  int parabola = 0;
  for (int q = 0; q < size; ++q) {
    if (last < 0) {
      out[static_cast<std::size_t>(q)] = kNever;
      continue;
    }
    while (parabola < last && edge[static_cast<std::size_t>(parabola) + 1] < q) ++parabola;
    const int p = place[static_cast<std::size_t>(parabola)];
    out[static_cast<std::size_t>(q)] = static_cast<double>(q - p) * (q - p) + line[static_cast<std::size_t>(p)];
  }
}

}  // namespace

GridMap::GridMap(std::vector<std::uint8_t> occupied, int rows, int columns, double resolution, const Pose& origin)
    : rows_(rows),
      columns_(columns),
      resolution_(resolution),
      origin_(origin),
      cosine_(std::cos(origin.yaw)),
      sine_(std::sin(origin.yaw)),
      occupied_(std::move(occupied)) {
  if (rows < 1 || columns < 1 || occupied_.size() != static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns))
    throw std::invalid_argument("a map needs at least one row and one column of cells");
  if (!(resolution > 0.0) || !std::isfinite(resolution))
    throw std::invalid_argument("a map's resolution is metres per cell and must be above 0, not " +
                                std::to_string(resolution));
  if (!std::isfinite(origin.x) || !std::isfinite(origin.y) || !std::isfinite(origin.yaw))
    throw std::invalid_argument("a map's origin must be finite");
  if (std::find(occupied_.begin(), occupied_.end(), std::uint8_t{0}) == occupied_.end())
    throw std::invalid_argument("the map has no free cell: nothing could drive there");
  king_ = king_moves(occupied_, rows, columns);
}

CellPoint GridMap::to_cells(double x, double y) const {
  const double dx = x - origin_.x;
  const double dy = y - origin_.y;
  return {(dx * cosine_ + dy * sine_) / resolution_, (dy * cosine_ - dx * sine_) / resolution_};
}

double GridMap::ray(double x, double y, double dx, double dy, double range) const {
  const CellPoint from = to_cells(x, y);
  const double du = dx * cosine_ + dy * sine_;
  const double dv = dy * cosine_ - dx * sine_;
  const double per_u = 1.0 / du;  // infinite where the ray keeps to a column: then its border is never reached
  const double per_v = 1.0 / dv;
  const double most = range / resolution_;
  int column = static_cast<int>(std::floor(from.u));
  int row = static_cast<int>(std::floor(from.v));
  double travelled = 0.0;
  while (row >= 0 && row < rows_ && column >= 0 && column < columns_) {
    const int free = king_distance(row, column);
    if (free == 0) break;
    // Leap to where the ray leaves the free square around this cell.
    const int left = column - free + 1;
    const int right = column + free;
    const int low = row - free + 1;
    const int high = row + free;
    const double to_side = du == 0.0 ? most : ((du > 0.0 ? right : left) - from.u) * per_u;
    const double to_end = dv == 0.0 ? most : ((dv > 0.0 ? high : low) - from.v) * per_v;
    travelled = std::min(to_side, to_end);
    if (travelled >= most) return range;
    if (to_side < to_end) {
      column = du > 0.0 ? right : left - 1;
      row = std::clamp(static_cast<int>(std::floor(from.v + dv * travelled)), low, high - 1);
    } else {
      row = dv > 0.0 ? high : low - 1;
      column = std::clamp(static_cast<int>(std::floor(from.u + du * travelled)), left, right - 1);
    }
  }
  return std::min(range, travelled * resolution_);
}

double GridMap::march(std::span<const double> distance, double x, double y, double dx, double dy, double range) const {
  constexpr double kNear = 1e-4;
  const auto look = [&] {
    const double u = (x - origin_.x) * cosine_ + (y - origin_.y) * sine_;
    const double v = (y - origin_.y) * cosine_ - (x - origin_.x) * sine_;
    if (u < 0.0 || u >= columns_ * resolution_ || v < 0.0 || v >= rows_ * resolution_) return distance.back();
    const auto column = static_cast<std::size_t>(u / resolution_);
    const auto row = static_cast<std::size_t>(v / resolution_);
    return distance[row * static_cast<std::size_t>(columns_) + column];
  };
  double step = look();
  double total = step;
  while (step > kNear && total <= range) {
    x += step * dx;
    y += step * dy;
    step = look();
    total += step;
  }
  return std::min(total, range);
}

bool GridMap::touches(const Box& box) const {
  // In cells, with the grid's axes.
  const CellPoint centre = to_cells(box.x, box.y);
  const double reach = box.radius() / resolution_;
  const int column = static_cast<int>(std::floor(centre.u));
  const int row = static_cast<int>(std::floor(centre.v));
  if (row < 0 || row >= rows_ || column < 0 || column >= columns_) return true;
  if (king_distance(row, column) > reach + 1.0) return false;
  Box own = box;
  own.x = centre.u;
  own.y = centre.v;
  own.cosine = box.cosine * cosine_ + box.sine * sine_;
  own.sine = box.sine * cosine_ - box.cosine * sine_;
  own.half_length /= resolution_;
  own.half_width /= resolution_;
  const double wide = own.half_length * std::abs(own.cosine) + own.half_width * std::abs(own.sine);
  const double tall = own.half_length * std::abs(own.sine) + own.half_width * std::abs(own.cosine);
  const int left = static_cast<int>(std::floor(centre.u - wide));
  const int right = static_cast<int>(std::floor(centre.u + wide));
  const int low = static_cast<int>(std::floor(centre.v - tall));
  const int high = static_cast<int>(std::floor(centre.v + tall));
  if (left < 0 || right >= columns_ || low < 0 || high >= rows_) return true;
  for (int r = low; r <= high; ++r)
    for (int c = left; c <= right; ++c)
      if (king_distance(r, c) == 0 && overlap(own, Box({c + 0.5, r + 0.5, 0.0}, 1.0, 1.0))) return true;
  return false;
}

std::vector<double> euclidean_distance(const GridMap& map) {
  const auto rows = static_cast<std::size_t>(map.rows());
  const auto columns = static_cast<std::size_t>(map.columns());
  const std::size_t longest = std::max(rows, columns);
  std::vector<double> squared(rows * columns);
  std::vector<int> place(longest);
  std::vector<double> edge(longest + 1);
  for (std::size_t i = 0; i < squared.size(); ++i)
    squared[i] = map.occupied()[i] != 0 ? 0.0 : std::numeric_limits<double>::infinity();
  std::vector<double> line(rows);
  std::vector<double> out(rows);
  for (std::size_t c = 0; c < columns; ++c) {
    for (std::size_t r = 0; r < rows; ++r) line[r] = squared[r * columns + c];
    squared_distance(line, place, edge, out);
    for (std::size_t r = 0; r < rows; ++r) squared[r * columns + c] = out[r];
  }
  line.resize(columns);
  out.resize(columns);
  for (std::size_t r = 0; r < rows; ++r) {
    std::copy_n(squared.begin() + static_cast<std::ptrdiff_t>(r * columns), columns, line.begin());
    squared_distance(line, place, edge, out);
    for (std::size_t c = 0; c < columns; ++c) squared[r * columns + c] = std::sqrt(out[c]) * map.resolution();
  }
  return squared;
}

}  // namespace slipstream::racing
