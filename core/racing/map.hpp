// A track as a grid of free and occupied cells, with what makes rays and contact cheap. Shared by all worlds, read
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "racing/box.hpp"

namespace slipstream::racing {

// A point in units of cells: cell (row, column) covers [column, column + 1) x [row, row + 1); row 0 is the lowest.
struct CellPoint {
  double u = 0.0;
  double v = 0.0;
};

class GridMap {
 public:
  // `origin` is where the grid's lower left corner stands, and how the grid is turned about it. What is not in the grid
  // is wall. Throws std::invalid_argument for an empty grid, a resolution that is not positive, or no free cell.
  GridMap(std::vector<std::uint8_t> occupied, int rows, int columns, double resolution, const Pose& origin);

  [[nodiscard]] int rows() const { return rows_; }
  [[nodiscard]] int columns() const { return columns_; }
  [[nodiscard]] double resolution() const { return resolution_; }
  [[nodiscard]] const Pose& origin() const { return origin_; }
  [[nodiscard]] std::span<const std::uint8_t> occupied() const { return occupied_; }
  [[nodiscard]] CellPoint to_cells(double x, double y) const;

  // How far the nearest wall is, counted in cells of a king's move: 0 in a wall; with k, the square of 2k - 1 cells
  // around this one is free. At most 255.
  [[nodiscard]] int king_distance(int row, int column) const {
    return king_[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns_) + static_cast<std::size_t>(column)];
  }

  // Metres from (x, y) along the unit direction to the first occupied cell's square, at most `range`. Exact.
  [[nodiscard]] double ray(double x, double y, double dx, double dy, double range) const;

  // f1tenth_gym's ray: steps as long as the distance between centres of cells allows, until that is <= 1e-4.
  // `distance` is euclidean_distance(). The last cell of the grid stands for everything outside it.
  [[nodiscard]] double march(std::span<const double> distance, double x, double y, double dx, double dy,
                             double range) const;

  // Whether a rectangle touches an occupied cell's square, or leaves the grid. Exact up to rounding.
  [[nodiscard]] bool touches(const Box& box) const;

 private:
  int rows_;
  int columns_;
  double resolution_;
  Pose origin_;
  double cosine_;
  double sine_;
  std::vector<std::uint8_t> occupied_;
  std::vector<std::uint8_t> king_;
};

// Metres from the centre of each cell to the centre of the nearest occupied one [rows * columns], as a Euclidean
// distance transform gives it; infinity where nothing is occupied.
[[nodiscard]] std::vector<double> euclidean_distance(const GridMap& map);

}  // namespace slipstream::racing
