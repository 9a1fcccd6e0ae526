// One step of Adam (Kingma & Ba 2015) over a whole learner, gradient clipping included, in one call.
#pragma once

#include <cstddef>
#include <span>

namespace slipstream {

struct AdamRates {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double max_norm = 0.0;  // gradients are scaled down to this norm; 0: never
};

// A piece of the gradient: where it stands and how many numbers it has. Pieces follow each other as the parameters do.
struct GradientPiece {
  const float* data;
  std::size_t size;
};

// Euclidean norm of all pieces, summed in float64 in an order that does not depend on threads.
[[nodiscard]] double gradient_norm(std::span<const GradientPiece> pieces);

// Moves parameters and moments (each as long as all pieces together) by step number `step` (1, 2, ...), and returns
// the norm before clipping. Where the norm is not finite nothing is changed: a step on NaN would poison the weights.
double adam_step(std::span<const GradientPiece> pieces, const AdamRates& rates, double step, float* parameters,
                 float* first_moment, float* second_moment);

}  // namespace slipstream
