#include "kernels/adam.hpp"

#include <algorithm>
#include <cmath>

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

}  // namespace

double gradient_norm(std::span<const GradientPiece> pieces) {
  double total = 0.0;
  for (const GradientPiece& piece : pieces)
    for (std::size_t at = 0; at < piece.size; at += kChunk)
      total += sum_of_squares(piece.data + at, std::min(kChunk, piece.size - at));
  return std::sqrt(total);
}

double adam_step(std::span<const GradientPiece> pieces, const AdamRates& rates, double step, float* parameters,
                 float* first_moment, float* second_moment) {
  const double norm = gradient_norm(pieces);
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
  std::size_t offset = 0;
  for (const GradientPiece& piece : pieces) {
    const auto chunks = static_cast<int>((piece.size + kChunk - 1) / kChunk);
    share(chunks, piece.size * 8, [&](int chunk) {
      const std::size_t begin = static_cast<std::size_t>(chunk) * kChunk;
      const std::size_t end = std::min(begin + kChunk, piece.size);
      float* const p = parameters + offset;
      float* const m = first_moment + offset;
      float* const v = second_moment + offset;
      const float* const grad = piece.data;
#pragma GCC ivdep
      for (std::size_t i = begin; i < end; ++i) {
        const float g = grad[i] * scale;
        m[i] = keep1 * m[i] + take1 * g;
        v[i] = keep2 * v[i] + take2 * g * g;
        p[i] -= step_size * m[i] / (std::sqrt(v[i]) * root + eps);
      }
    });
    offset += piece.size;
  }
  return norm;
}

}  // namespace slipstream
