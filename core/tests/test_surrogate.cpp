// The surrogate's gradients against differences of its value; its values against torch in tests/algos.
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "check.hpp"
#include "kernels/surrogate.hpp"

using namespace slipstream;

namespace {

using Floats = std::vector<float>;

Floats numbers(std::size_t size, unsigned seed) {
  std::mt19937 bits(seed);
  Floats out(size);
  for (float& value : out) value = static_cast<float>(bits() >> 8U) / 8388608.0F - 1.0F;
  return out;
}

// d value / d at[i] by a central difference, beside what the kernel said.
template <class Value>
void check_slope(Value&& value, Floats& at, std::size_t i, float said) {
  constexpr float kStep = 1.0F / 512.0F;
  const float kept = at[i];
  at[i] = kept + kStep;
  const double above = value();
  at[i] = kept - kStep;
  const double below = value();
  at[i] = kept;
  CHECK(std::abs((above - below) / (2.0 * kStep) - said) < 2e-4);
}

void gaussian_gradients_are_slopes() {
  constexpr int kRows = 5;
  constexpr int kSize = 2;
  Floats mean = numbers(kRows * kSize, 1);
  Floats log_std = numbers(kSize, 2);
  const Floats old_mean = numbers(kRows * kSize, 3);
  const Floats old_log_std = numbers(kSize, 4);
  const Floats action = numbers(kRows * kSize, 5);
  const Floats advantage = numbers(kRows, 6);
  const Floats logp{-2.1F, -3.5F, -1.2F, -2.8F, -4.0F};
  Floats by_mean(kRows * kSize);
  Floats by_log_std(kSize);
  const auto total = [&] {
    return gaussian_surrogate({kRows, logp.data(), advantage.data()},
                              {kSize, mean.data(), log_std.data(), old_mean.data(), old_log_std.data(), action.data()},
                              {.clip = 0.2, .entropy = 0.3, .kl = 0.7}, by_mean.data(), by_log_std.data())
        .total;
  };
  total();
  const Floats said_mean = by_mean;
  const Floats said_log_std = by_log_std;
  for (std::size_t i = 0; i < mean.size(); ++i) check_slope(total, mean, i, said_mean[i]);
  for (std::size_t i = 0; i < log_std.size(); ++i) check_slope(total, log_std, i, said_log_std[i]);
}

void categorical_gradients_are_slopes() {
  constexpr int kRows = 6;
  constexpr int kSize = 3;
  Floats logits = numbers(kRows * kSize, 1);
  const Floats old_logits = numbers(kRows * kSize, 2);
  const Floats advantage = numbers(kRows, 3);
  const Floats logp{-1.0F, -0.4F, -2.0F, -1.3F, -1.1F, -0.9F};
  const std::vector<int> action{0, 1, 2, 2, 1, 0};
  Floats by_logits(kRows * kSize);
  const auto total = [&] {
    return categorical_surrogate({kRows, logp.data(), advantage.data()},
                                 {kSize, logits.data(), old_logits.data(), action.data()},
                                 {.clip = 0.2, .entropy = 0.3, .kl = 0.7}, by_logits.data())
        .total;
  };
  total();
  const Floats said = by_logits;
  for (std::size_t i = 0; i < logits.size(); ++i) check_slope(total, logits, i, said[i]);
}

void a_forbidden_choice_has_no_gradient() {
  const Floats logits{0.5F, -1e9F, -0.5F};
  const float logp = -0.3F;
  const float advantage = 1.0F;
  const int action = 0;
  Floats grad(3);
  const SurrogateTerms terms = categorical_surrogate({1, &logp, &advantage}, {3, logits.data(), logits.data(), &action},
                                                     {.clip = 10.0, .entropy = 1.0, .kl = 1.0}, grad.data());
  CHECK(grad[1] == 0.0F);
  CHECK(std::abs(terms.kl) < 1e-12);
  const double p = 1.0 / (1.0 + std::exp(-1.0));
  CHECK(std::abs(terms.entropy + p * std::log(p) + (1.0 - p) * std::log(1.0 - p)) < 1e-9);
}

void value_errors_worked_by_hand() {
  const Floats prediction{2.0F, 2.0F, 0.1F};
  const Floats target{2.0F, 0.0F, 0.0F};
  const Floats before{0.0F, 0.0F, 0.0F};
  Floats grad(3);
  CHECK(std::abs(value_error(3, prediction.data(), target.data(), before.data(), 0.0, grad.data()) - 4.01 / 6.0) <
        1e-7);
  CHECK(grad[0] == 0.0F && std::abs(grad[1] - 2.0F / 3.0F) < 1e-6F);
  // Kept within 0.5 of before: errors 1.5 against 0, 0.5 against 2, 0.1 as it is.
  CHECK(std::abs(value_error(3, prediction.data(), target.data(), before.data(), 0.5, grad.data()) -
                 (2.25 + 4.0 + 0.01) / 6.0) < 1e-7);
  CHECK(grad[0] == 0.0F && std::abs(grad[1] - 2.0F / 3.0F) < 1e-6F && std::abs(grad[2] - 0.1F / 3.0F) < 1e-6F);
}

}  // namespace

int main() {
  gaussian_gradients_are_slopes();
  categorical_gradients_are_slopes();
  a_forbidden_choice_has_no_gradient();
  value_errors_worked_by_hand();
  return test::finish();
}
