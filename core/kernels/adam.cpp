#include "kernels/adam.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/share.hpp"

namespace slipstream {
namespace {

constexpr std::size_t kChunk = 8192;  // numbers per task

double sum_of_squares(const float* data, std::size_t size) {
  // Eight sums side by side, so that they can be vectorised without changing their order.
  double sums[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) {
      const double x = data[i + j];
      sums[j] += x * x;
    }
  }
  double total = 0.0;
  for (; i < size; ++i) total += static_cast<double>(data[i]) * data[i];
  for (const double sum : sums) total += sum;
  return total;
}

// A stretch of one piece, and where it stands in the whole vector.
struct Stretch {
  const float* gradient;
  std::size_t size;
  std::size_t offset;
};

// Pieces as tasks. They are shared out over all pieces at once, so that a thread has the same part of the vector each
// time: that of the network whose passes it runs, where there are two (share_jobs).
const std::vector<Stretch>& stretches(std::span<const GradientPiece> pieces) {
  thread_local std::vector<Stretch> found;  // grows to the largest number asked for
  found.clear();
  std::size_t offset = 0;
  for (const GradientPiece& piece : pieces)
    for (std::size_t at = 0; at < piece.size; at += kChunk) {
      found.push_back({piece.data + at, std::min(kChunk, piece.size - at), offset});
      offset += found.back().size;
    }
  return found;
}

double norm_of(const std::vector<Stretch>& parts) {
  thread_local std::vector<double> squares;
  squares.resize(parts.size());
  share(static_cast<int>(parts.size()), parts.size() * kChunk, [&, out = squares.data()](int i) {
    const Stretch& part = parts[static_cast<std::size_t>(i)];
    out[i] = sum_of_squares(part.gradient, part.size);
  });
  return std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));  // in order
}

}  // namespace

double gradient_norm(std::span<const GradientPiece> pieces) { return norm_of(stretches(pieces)); }

double adam_step(std::span<const GradientPiece> pieces, const AdamRates& rates, double step, float* parameters,
                 float* first_moment, float* second_moment) {
  const std::vector<Stretch>& parts = stretches(pieces);
  const double norm = norm_of(parts);
  if (!std::isfinite(norm)) return norm;
  const double clip = rates.max_norm > 0.0 ? std::min(1.0, rates.max_norm / (norm + 1e-6)) : 1.0;
  const auto scale = static_cast<float>(clip);
  const auto step_size = static_cast<float>(rates.learning_rate / (1.0 - std::pow(rates.beta1, step)));
  const auto root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(rates.beta2, step)));
  const auto eps = static_cast<float>(rates.eps);
  const auto keep1 = static_cast<float>(rates.beta1);
  const auto take1 = static_cast<float>(1.0 - rates.beta1);
  const auto keep2 = static_cast<float>(rates.beta2);
  const auto take2 = static_cast<float>(1.0 - rates.beta2);
  share(static_cast<int>(parts.size()), parts.size() * kChunk * 8, [&](int task) {
    const Stretch& part = parts[static_cast<std::size_t>(task)];
    float* const p = parameters + part.offset;
    float* const m = first_moment + part.offset;
    float* const v = second_moment + part.offset;
    const float* const grad = part.gradient;
#pragma GCC ivdep
    for (std::size_t i = 0; i < part.size; ++i) {
      const float g = grad[i] * scale;
      m[i] = keep1 * m[i] + take1 * g;
      v[i] = keep2 * v[i] + take2 * g * g;
      p[i] -= step_size * m[i] / (std::sqrt(v[i]) * root + eps);
    }
  });
  return norm;
}

}  // namespace slipstream
