// A track as a grid of free and occupied cells, with what makes rays and contact cheap. Shared by all worlds, read
// only.
#pragma once

#include <algorithm>
#include <array>
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
  // A grid of one free cell with memory for `side` rows of as many cells, to be drawn on.
  GridMap(std::size_t side, double resolution);

  // Draws another grid into the same memory: `paint` is handed free(row, first, last), which frees the cells of a row
  // from one column to another. Allocates only beyond the cells there is memory for.
  template <class Paint>
  void redraw(int rows, int columns, const Pose& origin, Paint&& paint) {
    clear();
    place(rows, columns, origin);
    paint([this](int row, int first, int last) { open(row, first, last); });
    survey();
  }

  [[nodiscard]] int rows() const { return rows_; }
  [[nodiscard]] int columns() const { return columns_; }
  [[nodiscard]] double resolution() const { return resolution_; }
  [[nodiscard]] const Pose& origin() const { return origin_; }
  [[nodiscard]] std::vector<std::uint8_t> occupied() const;  // [rows * columns]: 0 where a cell is free
  [[nodiscard]] CellPoint to_cells(double x, double y) const;

  // Side of the largest free square, in cells, that has this cell at its corner and reaches toward a quadrant. 0 in a
  // wall, at most 255. Quadrants: bit 0 toward higher columns, bit 1 toward higher rows.
  [[nodiscard]] std::uint32_t free_square(int row, int column, std::uint32_t quadrant) const {
    return (squares_[padded(row, column)] >> (8 * quadrant)) & 0xFFU;
  }

  // How far the nearest wall is, counted in cells of a king's move: 0 in a wall; with k, the square of 2k - 1 cells
  // around this one is free. At most 255.
  [[nodiscard]] int king_distance(int row, int column) const {
    const std::uint32_t all = squares_[padded(row, column)];
    return static_cast<int>(std::min({all & 0xFFU, (all >> 8U) & 0xFFU, (all >> 16U) & 0xFFU, all >> 24U}));
  }

  // Metres from (x, y) along the unit directions (dx[i], dy[i]) to the first occupied cell's square, at most `range`.
  // Exact, and the same whatever rays are asked for together.
  void rays(double x, double y, std::span<const double> dx, std::span<const double> dy, double range,
            std::span<float> out) const;
  // One of them.
  [[nodiscard]] double ray(double x, double y, double dx, double dy, double range) const;

  // f1tenth_gym's ray: steps as long as the distance between centres of cells allows, until that is <= 1e-4.
  // `distance` is euclidean_distance(). The last cell of the grid stands for everything outside it.
  [[nodiscard]] double march(std::span<const double> distance, double x, double y, double dx, double dy,
                             double range) const;

  // Whether a rectangle touches an occupied cell's square, or leaves the grid. Exact up to rounding.
  [[nodiscard]] bool touches(const Box& box) const;

 private:
  // With a border of walls one cell wide, so that no ray has to be asked whether it is still on the grid.
  [[nodiscard]] std::size_t padded(int row, int column) const {
    return static_cast<std::size_t>((row + 1) * (columns_ + 2) + column + 1);
  }
  [[nodiscard]] std::uint64_t* words(int row) {
    return free_.data() + static_cast<std::size_t>(row) * static_cast<std::size_t>(words_);
  }
  void reserve(int rows, int columns);
  void clear();
  void place(int rows, int columns, const Pose& origin);
  void open(int row, int first, int last);
  void survey();
  template <class Take>
  void sweep(bool up, Take&& take);
  void find_blocks(const std::uint64_t* free, const std::uint64_t* stale);

  int rows_ = 0;
  int columns_ = 0;
  double resolution_;
  Pose origin_;
  double cosine_ = 1.0;
  double sine_ = 0.0;
  int words_ = 0;                    // of a row of free_
  std::vector<std::uint64_t> free_;  // [rows, words], a bit for each cell
  // [rows + 2, columns + 2], and some to spare: a byte for each quadrant, because cars need all four. 0 in walls.
  std::vector<std::uint32_t> squares_;
  // What survey() works with: rows of squares, where in a row there are any, and those of both upper quadrants.
  struct CellBlock {
    int column = 0;
    std::uint32_t bits = 0;  // of its free cells
  };
  using Pair = std::array<std::uint8_t, 32>;
  std::vector<std::uint8_t> shelf_;
  std::vector<CellBlock> blocks_;
  std::vector<Pair> upward_;
};

// Metres from the centre of each cell to the centre of the nearest occupied one [rows * columns], as a Euclidean
// distance transform gives it; infinity where nothing is occupied.
[[nodiscard]] std::vector<double> euclidean_distance(const GridMap& map);

}  // namespace slipstream::racing
