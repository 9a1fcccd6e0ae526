#include "kernels/rows.hpp"

#include <algorithm>
#include <cstring>

#include "slipstream/rng.hpp"

namespace slipstream {
namespace {

constexpr std::size_t kAhead = 8;  // rows between asking for memory and using it
constexpr std::size_t kCacheLine = 64;

}  // namespace

void write_rows(const RowStore& store, std::int64_t first, std::int64_t rows, std::span<const std::byte* const> arrays,
                std::span<const std::size_t> sizes) {
  for (std::int64_t k = 0; k < rows; ++k) {
    std::byte* to = store.data + static_cast<std::size_t>((first + k) % store.capacity) * store.stride;
    for (std::size_t f = 0; f < arrays.size(); ++f) {
      std::memcpy(to, arrays[f] + static_cast<std::size_t>(k) * sizes[f], sizes[f]);
      to += sizes[f];
    }
  }
}

void gather_rows(const RowStore& store, std::span<const std::int64_t> index, std::span<const std::size_t> sizes,
                 std::byte* out) {
  auto record = [&](std::size_t k) { return store.data + static_cast<std::size_t>(index[k]) * store.stride; };
  for (std::size_t k = 0; k < index.size(); ++k) {
    if (k + kAhead < index.size()) {
      const std::byte* later = record(k + kAhead);
      for (std::size_t at = 0; at < store.stride; at += kCacheLine) __builtin_prefetch(later + at);
    }
    const std::byte* from = record(k);
    std::byte* field = out;
    for (const std::size_t size : sizes) {
      std::memcpy(field + k * size, from, size);
      from += size;
      field += index.size() * size;
    }
  }
}

void fill_draw(std::uint64_t seed, std::uint64_t draw, std::span<double> out) {
  // A key of its own: with that of the worlds or of the action noise, counters could meet.
  const std::uint64_t key = seed ^ 0x5EED0F2EB1A75EED;
  for (std::size_t k = 0; k < out.size(); k += 2) {
    const PhiloxBlock bits = philox({static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(k >> 32),
                                     static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(draw >> 32)},
                                    key);
    for (std::size_t half = 0; half < std::min<std::size_t>(2, out.size() - k); ++half) {
      const std::uint64_t high = bits[2 * half] >> 5;
      const std::uint64_t low = bits[2 * half + 1] >> 6;
      out[k + half] = static_cast<double>((high << 26) | low) * 0x1.0p-53;
    }
  }
}

}  // namespace slipstream
