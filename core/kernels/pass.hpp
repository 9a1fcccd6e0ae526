// What the passes of native networks share: memory that stays, packed weights, and rows shared out over threads.
#pragma once

#include <algorithm>
#include <memory>
#include <new>

#include "kernels/mlp_tiles.hpp"

namespace slipstream {

constexpr Index round_up(Index n, Index to) { return (n + to - 1) / to * to; }

// Memory that grows to the largest size asked of it and is then reused: no allocation in a steady state.
class Scratch {
 public:
  float* floats(std::size_t count) {
    if (count > size_) {
      memory_.reset(new (std::align_val_t{kLine}) float[count]);
      size_ = count;
    }
    return memory_.get();
  }
  float* floats(Index count) { return floats(static_cast<std::size_t>(count)); }

 private:
  struct Free {
    void operator()(float* memory) const { ::operator delete[](memory, std::align_val_t{kLine}); }
  };

  std::unique_ptr<float[], Free> memory_;
  std::size_t size_ = 0;
};

inline const Tiles& tiles() {
  static const Tiles& fastest = fastest_tiles();
  return fastest;
}

inline Index packed_floats(Index inner, Index columns) { return inner * round_up(columns, tiles().lanes); }

// Floats from row to row of a matrix that is also read column by column. An odd number of cache lines: at a power of
// two the numbers of a column would share a few places of the cache.
constexpr Index spread(Index columns) {
  constexpr Index kFloats = kLine / sizeof(float);
  return (round_up(columns, kFloats) / kFloats | 1) * kFloats;
}

// --- sharing out ---

struct Block {
  Index begin;
  Index count;
};

constexpr Index kFewestRows = 36;
constexpr Index kMostRows = 96;

// Rows of one task: many use a packed panel often, few let two threads finish together. A row's bits are the same.
inline Index block_rows(int rows) {
  const Index tile = tiles().rows;
  return std::clamp<Index>(round_up(rows / 16, tile), round_up(kFewestRows, tile), round_up(kMostRows, tile));
}

inline Block block_of(int task, int rows) {
  const Index size = block_rows(rows);
  const Index begin = static_cast<Index>(task) * size;
  return {begin, std::min<Index>(size, rows - begin)};
}

inline int blocks(int rows) { return static_cast<int>(round_up(rows, block_rows(rows)) / block_rows(rows)); }

}  // namespace slipstream
