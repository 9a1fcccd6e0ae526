#include "racing/map.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace slipstream::racing {
namespace {

constexpr std::size_t kLanes = 16;  // rays followed at the same time: each has to wait for memory at every leap

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
    : resolution_(resolution) {
  if (rows < 1 || columns < 1 || occupied.size() != static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns))
    throw std::invalid_argument("a map has rows and columns, and a cell for each of both, not " +
                                std::to_string(occupied.size()) + " cells in " + std::to_string(rows) + " x " +
                                std::to_string(columns));
  if (!(resolution > 0.0) || !std::isfinite(resolution))
    throw std::invalid_argument("a map's resolution is metres per cell and must be above 0, not " +
                                std::to_string(resolution));
  if (!std::isfinite(origin.x) || !std::isfinite(origin.y) || !std::isfinite(origin.yaw))
    throw std::invalid_argument("a map's origin must be finite");
  if (std::find(occupied.begin(), occupied.end(), std::uint8_t{0}) == occupied.end())
    throw std::invalid_argument("none of the map's " + std::to_string(rows) + " x " + std::to_string(columns) +
                                " cells is free: nothing could drive there");
  redraw(rows, columns, origin, [&](auto&& free) {
    std::size_t i = 0;
    for (int row = 0; row < rows; ++row)
      for (int column = 0; column < columns; ++column)
        if (occupied[i++] == 0) free(row, column, column);
  });
}

GridMap::GridMap(std::size_t side, double resolution) : GridMap({0}, 1, 1, resolution, {}) {
  const int most = static_cast<int>(side);
  reserve(most, most);
}

std::vector<std::uint8_t> GridMap::occupied() const {
  std::vector<std::uint8_t> cells;
  cells.reserve(static_cast<std::size_t>(rows_) * static_cast<std::size_t>(columns_));
  for (int row = 0; row < rows_; ++row)
    for (int column = 0; column < columns_; ++column) cells.push_back(squares_[padded(row, column)] == 0 ? 1 : 0);
  return cells;
}

CellPoint GridMap::to_cells(double x, double y) const {
  const double dx = x - origin_.x;
  const double dy = y - origin_.y;
  return {(dx * cosine_ + dy * sine_) / resolution_, (dy * cosine_ - dx * sine_) / resolution_};
}

void GridMap::rays(double x, double y, std::span<const double> dx, std::span<const double> dy, double range,
                   std::span<float> out) const {
  const CellPoint from = to_cells(x, y);
  const int first_column = static_cast<int>(std::floor(from.u));
  const int first_row = static_cast<int>(std::floor(from.v));
  if (first_row < 0 || first_row >= rows_ || first_column < 0 || first_column >= columns_) {
    std::fill(out.begin(), out.end(), 0.0F);
    return;
  }
  const double most = range / resolution_;
  const int stride = columns_ + 2;
  const std::uint32_t* squares = squares_.data() + padded(0, 0);
  for (std::size_t begin = 0; begin < out.size(); begin += kLanes) {
    const std::size_t count = std::min(kLanes, out.size() - begin);
    // Every choice in the loop is a selection, by masks of all ones or none: what compilers turn into vectors.
    std::array<double, kLanes> du, dv, per_u, per_v, travelled;
    std::array<int, kLanes> sign_u, sign_v, near_u, near_v, quadrant, column, row, going;
    for (std::size_t k = 0; k < kLanes; ++k) {
      const std::size_t i = begin + std::min(k, count - 1);  // lanes to spare repeat the last ray
      du[k] = dx[i] * cosine_ + dy[i] * sine_;
      dv[k] = dy[i] * cosine_ - dx[i] * sine_;
      // Where the ray keeps to a column, the column's border is so far that it is never reached.
      per_u[k] = du[k] == 0.0 ? 1e300 : 1.0 / du[k];
      per_v[k] = dv[k] == 0.0 ? 1e300 : 1.0 / dv[k];
      sign_u[k] = du[k] >= 0.0 ? 1 : -1;
      sign_v[k] = dv[k] >= 0.0 ? 1 : -1;
      near_u[k] = du[k] >= 0.0 ? 0 : 1;
      near_v[k] = dv[k] >= 0.0 ? 0 : 1;
      quadrant[k] = 8 * ((1 - near_u[k]) + 2 * (1 - near_v[k]));
      column[k] = first_column;
      row[k] = first_row;
      travelled[k] = 0.0;
      going[k] = -1;
    }
    int any = 1;
    while (any != 0) {
      std::array<int, kLanes> free;
      for (std::size_t k = 0; k < kLanes; ++k) free[k] = static_cast<int>(squares[row[k] * stride + column[k]]);
      any = 0;
      for (std::size_t k = 0; k < kLanes; ++k) {
        // Leap to where the ray leaves the free square ahead of it.
        const int size = (free[k] >> quadrant[k]) & 0xFF;
        const int next_u = column[k] + sign_u[k] * size;  // the first column beyond the square
        const int next_v = row[k] + sign_v[k] * size;
        const double to_side = (next_u + near_u[k] - from.u) * per_u[k];
        const double to_end = (next_v + near_v[k] - from.v) * per_v[k];
        const int sideways = to_side < to_end ? -1 : 0;
        const double leap = to_side < to_end ? to_side : to_end;
        const int u = static_cast<int>(std::floor(from.u + du[k] * leap));
        const int v = static_cast<int>(std::floor(from.v + dv[k] * leap));
        const int last_u = next_u - sign_u[k];  // the last one within
        const int last_v = next_v - sign_v[k];
        const int within_u = std::min(std::max(u, std::min(column[k], last_u)), std::max(column[k], last_u));
        const int within_v = std::min(std::max(v, std::min(row[k], last_v)), std::max(row[k], last_v));
        const int to_u = (next_u & sideways) | (within_u & ~sideways);
        const int to_v = (within_v & sideways) | (next_v & ~sideways);
        const int goes = going[k] & (size != 0 ? -1 : 0);
        const int on = goes & (leap < most ? -1 : 0);
        const double gone = leap < most ? leap : most;
        travelled[k] = goes != 0 ? gone : travelled[k];
        column[k] = (to_u & on) | (column[k] & ~on);
        row[k] = (to_v & on) | (row[k] & ~on);
        going[k] = on;
        any |= on;
      }
    }
    for (std::size_t k = 0; k < count; ++k)
      out[begin + k] = static_cast<float>(std::min(range, travelled[k] * resolution_));
  }
}

double GridMap::ray(double x, double y, double dx, double dy, double range) const {
  float out = 0.0F;
  rays(x, y, {&dx, 1}, {&dy, 1}, range, {&out, 1});
  return out;
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
  const std::vector<std::uint8_t> occupied = map.occupied();
  std::vector<double> squared(rows * columns);
  std::vector<int> place(longest);
  std::vector<double> edge(longest + 1);
  for (std::size_t i = 0; i < squared.size(); ++i)
    squared[i] = occupied[i] != 0 ? 0.0 : std::numeric_limits<double>::infinity();
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
