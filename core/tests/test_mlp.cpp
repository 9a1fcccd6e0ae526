// Passes of perceptrons against plain loops in float64, and their contract on bits. The same code as it is shipped
// (optimised, with fused multiply-adds) is tested in tests/nets/test_torsos.py.
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <future>
#include <limits>
#include <vector>

#include "allocations.hpp"
#include "check.hpp"
#include "kernels/mlp.hpp"
#include "kernels/share.hpp"
#include "numbers.hpp"

using namespace slipstream;
using namespace slipstream::test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Activation kId = Activation::kIdentity;
constexpr Activation kRelu = Activation::kRelu;
constexpr Activation kTanh = Activation::kTanh;

struct Net {
  MlpShape shape;
  std::vector<Floats> weight, bias;
  std::vector<const float*> weight_at, bias_at;

  Net(std::vector<int> widths, Activation hidden, Activation last, unsigned seed = 1) : shape{widths, hidden, last} {
    for (std::size_t l = 0; l + 1 < widths.size(); ++l) {
      const auto inputs = static_cast<std::size_t>(widths[l]);
      const auto outputs = static_cast<std::size_t>(widths[l + 1]);
      // Sums of about 1, so that tanh is neither a line nor flat.
      const float scale = 2.0F / std::sqrt(static_cast<float>(inputs));
      weight.push_back(numbers(inputs * outputs, seed + 2 * static_cast<unsigned>(l), scale));
      bias.push_back(numbers(outputs, seed + 2 * static_cast<unsigned>(l) + 1));
    }
    for (const Floats& w : weight) weight_at.push_back(w.data());
    for (const Floats& b : bias) bias_at.push_back(b.data());
  }
  [[nodiscard]] MlpWeights view() const { return {weight_at, bias_at, {}, {}}; }
  [[nodiscard]] std::size_t inputs() const { return static_cast<std::size_t>(shape.widths.front()); }
  [[nodiscard]] std::size_t outputs() const { return static_cast<std::size_t>(shape.widths.back()); }
  [[nodiscard]] int rows_of(const Floats& x) const { return static_cast<int>(x.size() / inputs()); }
};

struct Forward {
  Floats hidden, out;
};

Forward forward(const Net& net, const Floats& x) {
  const int rows = net.rows_of(x);
  Forward pass{Floats(net.shape.hidden_floats(static_cast<std::size_t>(rows)), kNan),
               Floats(static_cast<std::size_t>(rows) * net.outputs(), kNan)};
  mlp_forward(net.shape, net.view(), x.data(), rows, pass.hidden.data(), pass.out.data());
  return pass;
}

struct Gradients {
  Floats parameters, x;
};

Gradients backward(const Net& net, const Floats& x, const Forward& pass, const Floats& grad_out, bool of_parameters,
                   bool of_x) {
  Gradients grads{Floats(of_parameters ? net.shape.parameter_floats() : 0, kNan), Floats(of_x ? x.size() : 0, kNan)};
  mlp_backward(net.shape, net.view(), x.data(), net.rows_of(x), pass.hidden.data(), pass.out.data(), grad_out.data(),
               {of_parameters ? grads.parameters.data() : nullptr, of_x ? grads.x.data() : nullptr});
  return grads;
}

// --- the slow reference ---

double slow_activation(Activation activation, double x) {
  return activation == kTanh ? std::tanh(x) : activation == kRelu ? std::max(x, 0.0) : x;
}

double slow_derivative(Activation activation, double y) {
  return activation == kTanh ? 1.0 - y * y : activation == kRelu ? (y > 0.0 ? 1.0 : 0.0) : 1.0;
}

struct SlowForward {
  Doubles hidden, out;
};

SlowForward slow_forward(const Net& net, const Floats& x) {
  const auto rows = static_cast<std::size_t>(net.rows_of(x));
  SlowForward pass;
  Doubles from = widened(x);
  for (std::size_t l = 0; l < net.weight.size(); ++l) {
    const std::size_t inputs = net.weight[l].size() / net.bias[l].size();
    const std::size_t outputs = net.bias[l].size();
    Doubles to;
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < outputs; ++o) {
        const float* const w = &net.weight[l][o * inputs];
        const double* const row = &from[r * inputs];
        double sum = net.bias[l][o];
        for (std::size_t i = 0; i < inputs; ++i) sum += w[i] * row[i];
        to.push_back(slow_activation(net.shape.after(static_cast<int>(l)), sum));
      }
    }
    if (l + 1 < net.weight.size()) pass.hidden.insert(pass.hidden.end(), to.begin(), to.end());
    from = to;
  }
  pass.out = from;
  return pass;
}

struct SlowGradients {
  Doubles parameters, x;
};

SlowGradients slow_backward(const Net& net, const Floats& x, const Forward& pass, const Floats& grad_out) {
  const auto rows = static_cast<std::size_t>(net.rows_of(x));
  SlowGradients grads;
  Doubles grad = widened(grad_out);
  Doubles output = widened(pass.out);
  Doubles hidden = widened(pass.hidden);
  for (std::size_t l = net.weight.size(); l-- > 0;) {
    const std::size_t inputs = net.weight[l].size() / net.bias[l].size();
    const std::size_t outputs = net.bias[l].size();
    Doubles input = widened(x);
    if (l > 0) {
      input.assign(hidden.end() - static_cast<std::ptrdiff_t>(rows * inputs), hidden.end());
      hidden.resize(hidden.size() - rows * inputs);
    }
    Doubles parameters(outputs * (inputs + 1));  // weights, then biases
    Doubles below(rows * inputs);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < outputs; ++o) {
        const std::size_t at = r * outputs + o;
        const double delta = grad[at] * slow_derivative(net.shape.after(static_cast<int>(l)), output[at]);
        const float* const w = &net.weight[l][o * inputs];
        double* const of_w = &parameters[o * inputs];
        for (std::size_t i = 0; i < inputs; ++i) {
          of_w[i] += delta * input[r * inputs + i];
          below[r * inputs + i] += delta * w[i];
        }
        parameters[outputs * inputs + o] += delta;
      }
    }
    grads.parameters.insert(grads.parameters.begin(), parameters.begin(), parameters.end());
    grad = below;
    output = input;
  }
  grads.x = grad;
  return grads;
}

// --- right ---

void check_passes(const Net& net, int rows) {
  const Floats x = numbers(static_cast<std::size_t>(rows) * net.inputs(), 77, 2.0F);
  const Floats grad_out = numbers(static_cast<std::size_t>(rows) * net.outputs(), 78);
  const Forward pass = forward(net, x);
  const SlowForward slow_pass = slow_forward(net, x);
  CHECK(close(pass.out, slow_pass.out));
  CHECK(close(pass.hidden, slow_pass.hidden));
  Floats out(pass.out.size(), kNan);
  mlp_forward(net.shape, net.view(), x.data(), rows, nullptr, out.data());
  CHECK(same_bits(out, pass.out));

  const SlowGradients slow = slow_backward(net, x, pass, grad_out);
  const Gradients both = backward(net, x, pass, grad_out, true, true);
  CHECK(close(both.parameters, slow.parameters));
  CHECK(close(both.x, slow.x));
  CHECK(same_bits(backward(net, x, pass, grad_out, true, false).parameters, both.parameters));
  CHECK(same_bits(backward(net, x, pass, grad_out, false, true).x, both.x));
}

void passes_are_those_of_plain_loops_for_awkward_shapes() {
  const std::vector<std::vector<int>> shapes{{1, 1},      {1, 5},   {13, 1},     {5, 13, 16},     {16, 17, 5},
                                             {17, 16, 1}, {2, 255}, {3, 300, 2}, {1, 5, 1, 6, 13}};
  const std::vector<std::pair<Activation, Activation>> activations{{kTanh, kId},   {kRelu, kId}, {kTanh, kTanh},
                                                                   {kRelu, kRelu}, {kId, kId},   {kId, kTanh}};
  std::size_t turn = 0;
  for (const auto& widths : shapes) {
    for (const int rows : {1, 5, 6, 7, 47, 48, 49, 256, 600}) {
      for (int i = 0; i < 2; ++i) {  // each shape meets all of them, at some number of rows
        const auto& [hidden, last] = activations[turn++ % activations.size()];
        check_passes(Net(widths, hidden, last), rows);
      }
    }
  }
}

void the_deepest_network_works() {
  std::vector<int> widths{3};
  for (int l = 0; l < kMaxLayers; ++l) widths.push_back(4 + l % 3);
  check_passes(Net(widths, kTanh, kId), 50);
}

void no_rows_give_no_outputs_and_zero_gradients() {
  const Net net({3, 20, 2}, kTanh, kId);
  mlp_forward(net.shape, net.view(), nullptr, 0, nullptr, nullptr);
  Floats parameters(net.shape.parameter_floats(), kNan);
  mlp_backward(net.shape, net.view(), nullptr, 0, nullptr, nullptr, nullptr, {parameters.data(), nullptr});
  CHECK(same_bits(parameters, Floats(parameters.size(), 0.0F)));
  mlp_backward(net.shape, net.view(), nullptr, 0, nullptr, nullptr, nullptr, {nullptr, nullptr});
}

// --- activations: a network of one weight 1 and a bias -0 is its activation ---

Floats activated(Activation activation, const Floats& x) {
  Net net({1, 1}, kId, activation);
  net.weight[0][0] = 1.0F;
  net.bias[0][0] = -0.0F;
  return forward(net, x).out;
}

void tanh_is_right_to_three_units_in_the_last_place_and_odd() {
  Floats x;
  Floats mirrored;
  for (std::uint32_t bits = 0; bits < 0x7f800000U; bits += 20011) {
    x.push_back(std::bit_cast<float>(bits));
    mirrored.push_back(-x.back());
  }
  const Floats y = activated(kTanh, x);
  Floats negative = activated(kTanh, mirrored);
  double worst = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = std::tanh(static_cast<double>(x[i]));
    const auto nearest = static_cast<float>(expected);
    const double unit = static_cast<double>(std::nextafter(nearest, kInfinity)) - nearest;
    worst = std::max(worst, std::abs(y[i] - expected) / unit);
    negative[i] = -negative[i];
    CHECK(y[i] <= 1.0F);
  }
  CHECK(worst <= 3.0);
  CHECK(same_bits(negative, y));
}

void tanh_of_the_ends_of_the_line() {
  const float least = std::numeric_limits<float>::denorm_min();
  CHECK(same_bits(activated(kTanh, {kInfinity, -kInfinity, 1e30F, -1e30F}), {1.0F, -1.0F, 1.0F, -1.0F}));
  CHECK(same_bits(activated(kTanh, {0.0F, -0.0F, least, -least, 1e-20F}), {0.0F, -0.0F, least, -least, 1e-20F}));
  for (const float y : activated(kTanh, {kNan, -kNan, std::bit_cast<float>(0x7fc000ffU)})) CHECK(std::isnan(y));
}

void relu_keeps_what_is_positive_and_what_is_not_a_number() {
  CHECK(same_bits(activated(kRelu, {2.0F, kInfinity, 1e-40F}), {2.0F, kInfinity, 1e-40F}));
  CHECK(same_bits(activated(kRelu, {-2.0F, -kInfinity, 0.0F}), {0.0F, 0.0F, 0.0F}));
  CHECK(std::isnan(activated(kRelu, {kNan})[0]));
}

// --- the same bits ---

void a_row_has_the_same_bits_in_any_batch_and_place() {
  const Net net({13, 37, 5}, kTanh, kTanh);
  const int rows = 110;
  const Floats x = numbers(static_cast<std::size_t>(rows) * 13, 5);
  const Floats grad_out = numbers(static_cast<std::size_t>(rows) * 5, 6);
  const Forward whole = forward(net, x);
  const Gradients grads = backward(net, x, whole, grad_out, false, true);
  const auto cut = [](const Floats& from, int first, int count, int width) {
    return Floats(from.begin() + first * width, from.begin() + (first + count) * width);
  };
  for (const int count : {1, 2, 5, 6, 7, 47, 48, 49}) {
    for (int first = 0; first + count <= rows; first += 5) {
      const Floats part = cut(x, first, count, 13);
      const Forward pass = forward(net, part);
      CHECK(same_bits(pass.out, cut(whole.out, first, count, 5)));
      const Gradients of_part = backward(net, part, pass, cut(grad_out, first, count, 5), false, true);
      CHECK(same_bits(of_part.x, cut(grads.x, first, count, 13)));
    }
  }
}

struct Everything {
  Forward pass;
  Floats acted;  // out of a pass that keeps nothing
  Gradients grads;
};

// Enough work for the threads to be woken.
Everything large_passes() {
  const Net net({40, 70, 33, 3}, kTanh, kId);
  const Floats x = numbers(std::size_t{300} * 40, 8);
  Forward pass = forward(net, x);
  Gradients grads = backward(net, x, pass, numbers(std::size_t{300} * 3, 9), true, true);
  Floats acted(pass.out.size(), kNan);
  mlp_forward(net.shape, net.view(), x.data(), 300, nullptr, acted.data());
  return {std::move(pass), std::move(acted), std::move(grads)};
}

bool same(const Everything& a, const Everything& b) {
  return same_bits(a.pass.hidden, b.pass.hidden) && same_bits(a.pass.out, b.pass.out) && same_bits(a.acted, b.acted) &&
         same_bits(a.grads.parameters, b.grads.parameters) && same_bits(a.grads.x, b.grads.x);
}

void threads_change_no_bit() {
  const Everything alone = large_passes();
  for (const int threads : {2, 3}) {
    set_kernel_threads(threads);
    CHECK(kernel_threads() == threads);
    for (int i = 0; i < 20; ++i) CHECK(same(large_passes(), alone));
  }
  set_kernel_threads(1);
  CHECK(kernel_threads() == 1);
}

void a_kernel_that_finds_the_pool_busy_works_alone_and_gives_the_same_bits() {
  const Everything alone = large_passes();
  set_kernel_threads(2);
  std::unique_lock busy(KernelPool::get().mutex);
  auto other = std::async(std::launch::async, large_passes);
  CHECK(other.wait_for(std::chrono::seconds(60)) == std::future_status::ready);  // it does not wait for the pool
  busy.unlock();
  CHECK(same(other.get(), alone));
  set_kernel_threads(1);
}

// --- no allocation ---

void passes_of_sizes_seen_before_allocate_nothing() {
  const Net large({40, 70, 33, 3}, kTanh, kId);
  const Net small({7, 5, 2}, kRelu, kId);
  const Floats x = numbers(std::size_t{300} * 40, 1);
  Forward pass = forward(large, x);
  Gradients grads = backward(large, x, pass, pass.out, true, true);
  const long before = allocations;
  for (const Net* net : {&large, &small}) {
    for (const int rows : {300, 1, 50}) {
      mlp_forward(net->shape, net->view(), x.data(), rows, nullptr, pass.out.data());
      mlp_forward(net->shape, net->view(), x.data(), rows, pass.hidden.data(), pass.out.data());
      mlp_backward(net->shape, net->view(), x.data(), rows, pass.hidden.data(), pass.out.data(), pass.out.data(),
                   {grads.parameters.data(), grads.x.data()});
    }
  }
  CHECK(allocations == before);
}

}  // namespace

int main() {
  CHECK(Floats(3).size() == 3 && allocations > 0);  // the counter counts
  passes_are_those_of_plain_loops_for_awkward_shapes();
  the_deepest_network_works();
  no_rows_give_no_outputs_and_zero_gradients();
  tanh_is_right_to_three_units_in_the_last_place_and_odd();
  tanh_of_the_ends_of_the_line();
  relu_keeps_what_is_positive_and_what_is_not_a_number();
  a_row_has_the_same_bits_in_any_batch_and_place();
  threads_change_no_bit();
  a_kernel_that_finds_the_pool_busy_works_alone_and_gives_the_same_bits();
  passes_of_sizes_seen_before_allocate_nothing();
  return test::finish();
}
