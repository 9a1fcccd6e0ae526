// Perceptrons with norms and skips: gradients are the slopes of the outputs, and nothing is read that was not written.
// Beside torch, and with the instructions of the processor, they are tested in tests/nets/test_mlp_options.py.
#include <cmath>
#include <vector>

#include "check.hpp"
#include "kernels/mlp.hpp"
#include "numbers.hpp"

using namespace slipstream;
using namespace slipstream::test;

namespace {

// Where the weights of each layer stand in one vector.
struct View {
  std::vector<const float*> weight, bias, gain, shift;

  View(const MlpShape& shape, const float* at) {
    for (int l = 0; l < shape.layers(); ++l) {
      const auto inputs = static_cast<std::size_t>(shape.widths[static_cast<std::size_t>(l)]);
      const auto outputs = static_cast<std::size_t>(shape.widths[static_cast<std::size_t>(l) + 1]);
      weight.push_back(at);
      bias.push_back(at += inputs * outputs);
      gain.push_back(at += outputs);
      shift.push_back(shape.normed(l) ? at += outputs : at);
      if (shape.normed(l)) at += outputs;
    }
  }
  [[nodiscard]] MlpWeights weights() const { return {weight, bias, gain, shift}; }
};

// The sum of outputs times slopes, in float64.
double value(const MlpShape& shape, const Floats& parameters, const Floats& x, int rows, const Floats& slopes) {
  Floats out(slopes.size(), kNan);
  mlp_forward(shape, View(shape, parameters.data()).weights(), x.data(), rows, nullptr, out.data());
  double sum = 0.0;
  for (std::size_t i = 0; i < out.size(); ++i) sum += static_cast<double>(out[i]) * slopes[i];
  return sum;
}

Floats moved(const Floats& from, const Floats& direction, float step) {
  Floats to = from;
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += step * direction[i];
  return to;
}

double along(const Floats& grads, const Floats& direction) {
  double sum = 0.0;
  for (std::size_t i = 0; i < grads.size(); ++i) sum += static_cast<double>(grads[i]) * direction[i];
  return sum;
}

void check_slopes(const MlpShape& shape, int rows) {
  const auto count = static_cast<std::size_t>(rows);
  const Floats x = numbers(count * static_cast<std::size_t>(shape.widths.front()), 1);
  const Floats slopes = numbers(count * static_cast<std::size_t>(shape.widths.back()), 2);
  const Floats parameters = numbers(shape.parameter_floats(), 3);
  const View view(shape, parameters.data());
  Floats hidden(shape.hidden_floats(count), kNan);
  Floats out(slopes.size(), kNan);
  mlp_forward(shape, view.weights(), x.data(), rows, hidden.data(), out.data());
  Floats of_parameters(parameters.size(), kNan);
  Floats of_x(x.size(), kNan);
  mlp_backward(shape, view.weights(), x.data(), rows, hidden.data(), out.data(), slopes.data(),
               {of_parameters.data(), of_x.data()});

  constexpr float kStep = 1e-3F;
  const auto close = [](double slope, double grad) { return std::abs(slope - grad) <= 1e-2 * (1.0 + std::abs(grad)); };
  const Floats turn = numbers(parameters.size(), 4);
  const double by_parameters = (value(shape, moved(parameters, turn, kStep), x, rows, slopes) -
                                value(shape, moved(parameters, turn, -kStep), x, rows, slopes)) /
                               (2.0 * kStep);
  CHECK(close(by_parameters, along(of_parameters, turn)));
  const Floats way = numbers(x.size(), 5);
  const double by_x = (value(shape, parameters, moved(x, way, kStep), rows, slopes) -
                       value(shape, parameters, moved(x, way, -kStep), rows, slopes)) /
                      (2.0 * kStep);
  CHECK(close(by_x, along(of_x, way)));
}

}  // namespace

int main() {
  for (const Activation activation : {Activation::kTanh, Activation::kElu, Activation::kSilu, Activation::kGelu})
    for (const bool norm : {false, true})
      for (const bool residual : {false, true})
        for (const Activation last : {Activation::kIdentity, activation})
          for (const int rows : {1, 7, 150})
            for (const auto& widths : std::vector<std::vector<int>>{{5, 9}, {9, 17, 17, 3}, {3, 8, 8, 8, 20}})
              check_slopes({widths, activation, last, norm, residual}, rows);
  return test::finish();
}
