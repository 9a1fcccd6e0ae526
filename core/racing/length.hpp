// The length of a vector, inline and without a branch, so that a loop over many becomes vectors.
#pragma once

#include <algorithm>
#include <cmath>

namespace slipstream::racing {

// A square root, corrected for the rounding of the squares (Borges 2019): to within one unit in the last place, and the
// value that glibc's hypot returns. The squares must not overflow or underflow.
[[nodiscard]] inline double length_of(double x, double y) {
  const double a = std::abs(x);
  const double b = std::abs(y);
  const double large = std::max(a, b);
  const double small = std::min(a, b);
  const double root = std::sqrt(large * large + small * small);
  const double to_small = root - small;
  const double to_large = root - large;
  const bool alike = root <= 2.0 * small;
  const double first = alike ? large * (2.0 * to_small - large) : 2.0 * to_large * (large - 2.0 * small);
  const double second =
      alike ? (to_small - 2.0 * (large - small)) * to_small : (4.0 * to_large - small) * small + to_large * to_large;
  return root > 0.0 ? root - (first + second) / (2.0 * root) : 0.0;
}

}  // namespace slipstream::racing
