// Adam against the paper's algorithm in float64; against torch in tests/algos/test_adam.py.
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"
#include "kernels/adam.hpp"
#include "kernels/share.hpp"

using namespace slipstream;

namespace {

using Floats = std::vector<float>;

struct State {
  Floats parameters, first, second;

  explicit State(std::size_t size) : parameters(size, 1.0F), first(size), second(size) {}
  double step(const std::vector<GradientPiece>& pieces, const AdamRates& rates, double number) {
    return adam_step(pieces, rates, number, parameters.data(), first.data(), second.data());
  }
  [[nodiscard]] bool operator==(const State&) const = default;
};

// One after the other, nothing between them.
std::vector<GradientPiece> in_pieces(const Floats& grad, const std::vector<std::size_t>& sizes) {
  std::vector<GradientPiece> pieces;
  const float* at = grad.data();
  for (const std::size_t size : sizes) {
    pieces.push_back({at, size});
    at += size;
  }
  return pieces;
}

Floats gradient(std::size_t size, unsigned seed) {
  std::mt19937 bits(seed);
  Floats out(size);
  for (float& value : out) value = static_cast<float>(bits() >> 8U) / 8388608.0F - 1.0F;
  return out;
}

// Step 1: m = 0.1 g, v = 0.001 g², both corrected to g and g²; so p moves by rate * g / (|g| + eps).
void the_first_step_worked_by_hand() {
  const Floats grad{3.0F, -4.0F, 0.0F};
  State state(3);
  const double norm = state.step({{grad.data(), 3}}, {.learning_rate = 0.5, .eps = 1.0}, 1.0);
  CHECK(norm == 5.0);
  const double expected[] = {1.0 - 0.5 * 3.0 / 4.0, 1.0 + 0.5 * 4.0 / 5.0, 1.0};
  const double first[] = {0.3, -0.4, 0.0};
  const double second[] = {0.009, 0.016, 0.0};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(std::abs(state.parameters[i] - expected[i]) < 1e-6);
    CHECK(std::abs(state.first[i] - first[i]) < 1e-7);
    CHECK(std::abs(state.second[i] - second[i]) < 1e-9);
  }
}

void clipping_scales_a_long_gradient_down_and_leaves_a_short_one() {
  const Floats grad{3.0F, -4.0F};
  for (const double max_norm : {0.5, 4.9, 5.1, 100.0}) {
    State state(2);
    CHECK(state.step({{grad.data(), 2}}, {.max_norm = max_norm}, 1.0) == 5.0);  // the norm before clipping
    const double scale = std::min(1.0, max_norm / 5.0);
    CHECK(std::abs(state.first[0] - 0.1 * 3.0 * scale) < 1e-6);
    CHECK(std::abs(state.first[1] + 0.1 * 4.0 * scale) < 1e-6);
  }
}

void many_steps_are_those_of_the_paper() {
  const std::vector<std::size_t> sizes{1, 7, 8, 9000, 3};  // the fourth is more than one task
  const std::size_t size = 1 + 7 + 8 + 9000 + 3;
  const AdamRates rates{.learning_rate = 0.01, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-4, .max_norm = 20.0};
  State state(size);
  std::vector<double> p(size, 1.0);
  std::vector<double> m(size);
  std::vector<double> v(size);
  for (unsigned t = 1; t <= 20; ++t) {
    const Floats grad = gradient(size, t);
    const double norm = state.step(in_pieces(grad, sizes), rates, t);
    double squares = 0.0;
    for (const float g : grad) squares += static_cast<double>(g) * g;
    CHECK(std::abs(norm - std::sqrt(squares)) < 1e-9);
    for (std::size_t i = 0; i < size; ++i) {
      const double g = grad[i] * rates.max_norm / norm;
      m[i] = rates.beta1 * m[i] + (1.0 - rates.beta1) * g;
      v[i] = rates.beta2 * v[i] + (1.0 - rates.beta2) * g * g;
      const double mean = m[i] / (1.0 - std::pow(rates.beta1, t));
      const double square = v[i] / (1.0 - std::pow(rates.beta2, t));
      p[i] -= rates.learning_rate * mean / (std::sqrt(square) + rates.eps);
    }
  }
  double worst = 0.0;
  for (std::size_t i = 0; i < size; ++i) {
    worst = std::max(worst, std::abs(state.parameters[i] - p[i]));
    worst = std::max(worst, std::abs(state.first[i] - m[i]));
    worst = std::max(worst, std::abs(state.second[i] - v[i]));
  }
  CHECK(worst < 1e-6);
}

void a_gradient_that_is_not_finite_changes_nothing() {
  constexpr float kBad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()};
  State state(20);
  Floats grad = gradient(20, 1);
  const auto pieces = in_pieces(grad, {9, 11});
  CHECK(std::isfinite(state.step(pieces, {}, 1.0)));
  const State before = state;
  for (const float bad : kBad) {
    for (const std::size_t at : {0U, 8U, 9U, 19U}) {
      const float kept = grad[at];
      grad[at] = bad;
      CHECK(!std::isfinite(state.step(pieces, {.max_norm = 1.0}, 2.0)));
      CHECK(state == before);
      grad[at] = kept;
    }
  }
}

void a_gradient_whose_square_float32_cannot_hold_is_clipped_like_any_other() {
  const Floats grad{3e30F, -4e30F};
  State state(2);
  const double norm = state.step({{grad.data(), 2}}, {.max_norm = 1.0}, 1.0);
  CHECK(std::abs(norm / 5e30 - 1.0) < 1e-6);
  CHECK(std::abs(state.first[0] - 0.06) < 1e-6 && std::abs(state.first[1] + 0.08) < 1e-6);
}

void threads_change_no_bit() {
  const std::vector<std::size_t> sizes{50000, 5, 40000};
  const auto steps = [&sizes](int threads) {
    set_kernel_threads(threads);
    State state(90005);
    for (unsigned t = 1; t <= 5; ++t) {
      const Floats grad = gradient(90005, t);
      (void)state.step(in_pieces(grad, sizes), {.max_norm = 1.0}, t);
    }
    set_kernel_threads(1);
    return state;
  };
  const State alone = steps(1);
  CHECK(steps(2) == alone);
  CHECK(steps(3) == alone);
}

}  // namespace

int main() {
  the_first_step_worked_by_hand();
  clipping_scales_a_long_gradient_down_and_leaves_a_short_one();
  many_steps_are_those_of_the_paper();
  a_gradient_that_is_not_finite_changes_nothing();
  a_gradient_whose_square_float32_cannot_hold_is_clipped_like_any_other();
  threads_change_no_bit();
  return test::finish();
}
