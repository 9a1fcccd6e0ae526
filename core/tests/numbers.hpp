// Numbers to test kernels with, and how results compare with those of a slow reference.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace slipstream::test {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline Floats numbers(std::size_t count, unsigned seed, float scale = 1.0F) {
  std::mt19937 bits(seed);
  Floats out(count);
  for (float& value : out) value = scale * (static_cast<float>(bits() >> 8U) / 8388608.0F - 1.0F);
  return out;
}

inline Doubles widened(const Floats& values) { return {values.begin(), values.end()}; }

// Equal bits: unlike ==, tells -0 from 0 and knows a NaN again.
inline bool same_bits(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) return false;
  return true;
}

// Of one size and, beside the largest number in there, everywhere the same but for rounding.
inline bool close(const Floats& fast, const Doubles& slow) {
  double largest = 1e-30;
  for (const double value : slow) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < fast.size(); ++i)
    if (!(std::abs(fast[i] - slow[i]) <= 5e-6 * largest)) return false;
  return fast.size() == slow.size();
}

}  // namespace slipstream::test
