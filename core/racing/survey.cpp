// How a grid is drawn and its free squares are found: the parts of GridMap that every new circuit goes through. Walls
// are most of its cells, so all of this passes over them.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "racing/map.hpp"

namespace slipstream::racing {
namespace {

constexpr int kWord = 64;   // cells
constexpr int kBlock = 16;  // cells that are worked on together
constexpr std::uint8_t kFarthest = 255;

using Block = std::uint8_t __attribute__((vector_size(kBlock)));  // understood by GCC and Clang on any processor
constexpr Block kBits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
constexpr Block kFromLow = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
constexpr Block kFromHigh = {16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1};

Block load(const std::uint8_t* from) {
  Block block;
  std::memcpy(&block, from, kBlock);
  return block;
}

Block least(Block a, Block b) { return a < b ? a : b; }

// Each square and how far it is: no square may be larger.
Block grown(Block squares, Block by) { return least(squares, kFarthest - by) + by; }

Block grown(Block squares, std::uint8_t by) { return grown(squares, Block{} + by); }

// All ones where a cell is free.
Block mask_of(std::uint64_t bits) {
  const auto low = static_cast<std::uint8_t>(bits);
  const auto high = static_cast<std::uint8_t>(bits >> 8U);
  const Block both = {low, low, low, low, low, low, low, low, high, high, high, high, high, high, high, high};
  return reinterpret_cast<Block>((both & kBits) != 0);
}

// One larger than the least of the squares that the row before has here and beside; 0 in walls.
Block begun(Block here, Block beside, std::uint64_t bits) {
  return (grown(least(here, beside), std::uint8_t{1})) & mask_of(bits);
}

// No square is larger than that of any cell before it in the row and the way to there. `before` is the block before.
Block from_low(Block own, Block before) {
  constexpr Block kAny = Block{} + kFarthest;
  own = least(own,
              grown(__builtin_shufflevector(kAny, own, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30),
                    std::uint8_t{1}));
  own = least(own,
              grown(__builtin_shufflevector(kAny, own, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29),
                    std::uint8_t{2}));
  own = least(own,
              grown(__builtin_shufflevector(kAny, own, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27),
                    std::uint8_t{4}));
  own =
      least(own, grown(__builtin_shufflevector(kAny, own, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23),
                       std::uint8_t{8}));
  const Block last =
      __builtin_shufflevector(before, before, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15);
  return least(own, grown(last, kFromLow));
}

Block from_high(Block own, Block before) {
  constexpr Block kAny = Block{} + kFarthest;
  own = least(own, grown(__builtin_shufflevector(own, kAny, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16),
                         std::uint8_t{1}));
  own = least(own, grown(__builtin_shufflevector(own, kAny, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17),
                         std::uint8_t{2}));
  own = least(own, grown(__builtin_shufflevector(own, kAny, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19),
                         std::uint8_t{4}));
  own =
      least(own, grown(__builtin_shufflevector(own, kAny, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23),
                       std::uint8_t{8}));
  const Block first = __builtin_shufflevector(before, before, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  return least(own, grown(first, kFromHigh));
}

// Writes the squares of a block, a byte for each quadrant.
void write(std::uint32_t* squares, Block low_down, Block high_down, Block low_up, Block high_up) {
  static_assert(std::endian::native == std::endian::little);
  const auto pair = [](Block a, Block b) {
    return std::array{__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
                      __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)};
  };
  const auto down = pair(low_down, high_down);
  const auto up = pair(low_up, high_up);
  for (std::size_t half = 0; half < 2; ++half) {
    const Block a = down[half];
    const Block b = up[half];
    const Block four[] = {__builtin_shufflevector(a, b, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23),
                          __builtin_shufflevector(a, b, 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31)};
    std::memcpy(squares + 8 * half, four, sizeof(four));
  }
}

std::uint64_t bits_of(std::uint64_t word, int part) { return (word >> (kBlock * part)) & 0xFFFFU; }

}  // namespace

void GridMap::reserve(int rows, int columns) {
  const auto words = static_cast<std::size_t>((columns + kWord - 1) / kWord);
  const std::size_t padded = static_cast<std::size_t>(rows + 2) * static_cast<std::size_t>(columns + 2) + kWord;
  free_.reserve(static_cast<std::size_t>(rows) * words);
  if (squares_.size() < padded) squares_.resize(padded);  // what is beyond the grid stays 0
  shelf_.reserve(4 * (words * kWord + 2 * kBlock));
  blocks_.reserve(words * (kWord / kBlock));
  upward_.reserve(static_cast<std::size_t>(rows) * words * (kWord / kBlock));
}

// Makes walls of all cells.
void GridMap::clear() {
  for (int row = 0; row < rows_; ++row) {
    const std::uint64_t* free = words(row);
    for (int word = 0; word < words_; ++word)
      for (int part = 0; free[word] != 0 && part < kWord / kBlock; ++part)
        if (bits_of(free[word], part) != 0)
          std::fill_n(squares_.data() + padded(row, word * kWord + part * kBlock), kBlock, 0U);
  }
}

void GridMap::place(int rows, int columns, const Pose& origin) {
  rows_ = rows;
  columns_ = columns;
  words_ = (columns + kWord - 1) / kWord;
  origin_ = origin;
  cosine_ = std::cos(origin.yaw);
  sine_ = std::sin(origin.yaw);
  reserve(rows, columns);
  free_.assign(static_cast<std::size_t>(rows) * static_cast<std::size_t>(words_), 0);
}

void GridMap::open(int row, int first, int last) {
  std::uint64_t* free = words(row);
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  for (int word = first / kWord; word <= last / kWord; ++word) {
    const int from = std::max(first - word * kWord, 0);
    const int to = std::min(last - word * kWord, kWord - 1);
    free[word] |= (kAll >> (kWord - 1 - to)) & (kAll << from);
  }
}

// Finds the squares toward higher rows and lays them by, finds those toward lower rows, and writes all.
void GridMap::survey() {
  static_assert(sizeof(Pair) == 2 * kBlock);
  upward_.clear();
  sweep(true, [&](int, int, const std::uint8_t* low, const std::uint8_t* high) {
    Pair pair;
    std::memcpy(pair.data(), low, kBlock);
    std::memcpy(pair.data() + kBlock, high, kBlock);
    upward_.push_back(pair);
  });
  // The other way around. What a block has beyond its row is written again with the next one.
  sweep(false, [&](int row, int column, const std::uint8_t* low, const std::uint8_t* high) {
    const std::uint8_t* up = upward_.back().data();
    write(squares_.data() + padded(row, column), load(low), load(high), load(up), load(up + kBlock));
    upward_.pop_back();
  });
}

// Finds the squares toward higher rows or lower ones, row after row, and hands over each block that has a free cell.
// Each square is one larger than the least of the three next to it; what is outside the grid is wall.
template <class Take>
void GridMap::sweep(bool up, Take&& take) {
  const int along = up ? 1 : -1;
  const std::size_t width = static_cast<std::size_t>(words_ * kWord) + 2 * kBlock;
  shelf_.assign(4 * width, 0);
  // Toward lower and higher columns, of the row before and of this one.
  std::array<std::uint8_t*, 2> low = {shelf_.data() + kBlock, shelf_.data() + width + kBlock};
  std::array<std::uint8_t*, 2> high = {shelf_.data() + 2 * width + kBlock, shelf_.data() + 3 * width + kBlock};
  for (int i = 0; i < rows_; ++i) {
    const int row = up ? rows_ - 1 - i : i;
    find_blocks(words(row), i < 2 ? words(row) : words(row + 2 * along));
    Block own{};
    int before = -kWord;
    for (const auto& [c, bits] : blocks_) {
      if (c != before + kBlock) own = Block{};
      own = from_low(begun(load(low[0] + c), load(low[0] + c - 1), bits), own);
      std::memcpy(low[1] + c, &own, kBlock);
      before = c;
    }
    before = -kWord;
    for (auto at = blocks_.rbegin(); at != blocks_.rend(); ++at) {
      const auto [c, bits] = *at;
      if (c + kBlock != before) own = Block{};
      own = from_high(begun(load(high[0] + c), load(high[0] + c + 1), bits), own);
      std::memcpy(high[1] + c, &own, kBlock);
      before = c;
    }
    if (up)
      for (auto at = blocks_.begin(); at != blocks_.end(); ++at)
        if (at->bits != 0) take(row, at->column, low[1] + at->column, high[1] + at->column);
    if (!up)
      for (auto at = blocks_.rbegin(); at != blocks_.rend(); ++at)
        if (at->bits != 0) take(row, at->column, low[1] + at->column, high[1] + at->column);
    std::swap(low[0], low[1]);
    std::swap(high[0], high[1]);
  }
}

// The blocks of a row that have a free cell or had one two rows ago, when the same place was worked on: the others are
// walls, and what was worked on there was too.
void GridMap::find_blocks(const std::uint64_t* free, const std::uint64_t* stale) {
  blocks_.clear();
  for (int word = 0; word < words_; ++word) {
    const std::uint64_t used = free[word] | stale[word];
    for (int part = 0; used != 0 && part < kWord / kBlock; ++part)
      if (bits_of(used, part) != 0)
        blocks_.push_back({word * kWord + part * kBlock, static_cast<std::uint32_t>(bits_of(free[word], part))});
  }
}

}  // namespace slipstream::racing
