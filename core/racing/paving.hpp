// Draws roads on grids.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "racing/track.hpp"

namespace slipstream::racing {

// Draws the road along track.line: free where a cell's centre is within half the width of it. Keeps memory for the next
// road.
class Paver {
 public:
  void reserve(std::size_t rows);  // of the grid; more allocate
  void pave(Track& track, double width, double resolution);

 private:
  // Columns from first to last of every row; none where first is above last.
  struct Columns {
    std::vector<int> first;
    std::vector<int> last;

    void resize(std::size_t rows) {
      first.resize(rows);
      last.resize(rows);
    }
  };
  // What a disc surely covers, and all that it may cover.
  struct Disc {
    Columns surely;
    Columns perhaps;
    int low = 0;  // rows that are filled in
    int high = -1;
  };
  struct Stretch {
    int first = 0;
    int last = -1;
  };
  struct Grid;
  struct Segment;

  static Segment segment_of(std::span<const Point> points, std::size_t i);
  static void cover(const Grid& grid, const Point& middle, Disc& disc);
  template <class Free>
  void pave_segment(const Grid& grid, const Segment& segment, Free&& free);
  template <class Free>
  void pave_row(const Grid& grid, const Segment& segment, int row, Stretch surely, Stretch perhaps, Free&& free);

  std::array<Disc, 3> discs_;  // around a segment's beginning, middle and end
  Columns paved_;              // the latest stretch of every row, which is not drawn yet
};

}  // namespace slipstream::racing
