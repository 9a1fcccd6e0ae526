// Convolutions against plain loops in float64 and their differences, and their contract on bits. The same code as it is
// shipped is tested against torch's layers in tests/nets/test_conv_pass.py.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"
#include "kernels/conv.hpp"
#include "kernels/share.hpp"

using namespace slipstream;

namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Bytes = std::vector<std::uint8_t>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Floats numbers(std::size_t count, unsigned seed, float scale = 1.0F) {
  std::mt19937 bits(seed);
  Floats out(count);
  for (float& value : out) value = scale * (static_cast<float>(bits() >> 8U) / 8388608.0F - 1.0F);
  return out;
}

bool same_bits(const Floats& a, const Floats& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

bool close(const Floats& fast, const Doubles& slow) {
  double largest = 1e-30;
  for (const double value : slow) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < fast.size(); ++i)
    if (!(std::abs(fast[i] - slow[i]) <= 5e-6 * largest)) return false;
  return fast.size() == slow.size();
}

ConvShape shape_of(int channels, int height, int width, bool channels_first, const std::vector<ConvStep>& steps) {
  return {{channels, height, width}, channels_first, 3.0F, 1.0F / 100.0F, steps};
}

// Convolutions, and images for them.
struct Case {
  ConvShape shape;
  bool channels_first;
  int rows;
  Floats parameters;
  Bytes images;

  Case(ConvShape of, int count, bool first = true)
      : shape(std::move(of)),
        channels_first(first),
        rows(count),
        parameters(numbers(shape.parameter_floats(), 1, 0.5F)),
        images(shape.image_bytes() * static_cast<std::size_t>(count)) {
    std::mt19937 bits(2);
    for (std::uint8_t& pixel : images) pixel = static_cast<std::uint8_t>(bits() >> 24U);
  }
};

struct Pointers {
  std::vector<const float*> weight, bias;

  explicit Pointers(const Case& c) {
    const float* next = c.parameters.data();
    for (const ConvLayer& layer : c.shape.layers) {
      weight.push_back(next);
      bias.push_back(next += layer.patch() * layer.outputs);
      next += layer.outputs;
    }
  }
  [[nodiscard]] ConvWeights view() const { return {weight, bias}; }
};

struct Forward {
  Floats hidden, out;
};

Forward forward(const Case& c) {
  const auto rows = static_cast<std::size_t>(c.rows);
  Forward pass{Floats(c.shape.hidden_floats(rows), kNan), Floats(rows * c.shape.features(), kNan)};
  conv_forward(c.shape, Pointers(c).view(), c.images.data(), c.rows, pass.hidden.data(), pass.out.data());
  return pass;
}

Floats backward(const Case& c, const Forward& pass, const Floats& grad_out) {
  Floats grads(c.parameters.size(), kNan);
  conv_backward(c.shape, Pointers(c).view(), c.images.data(), c.rows, pass.hidden.data(), pass.out.data(),
                grad_out.data(), grads.data());
  return grads;
}

// --- the slow reference: planes [channel, y, x], and their way back ---

struct Slow {
  Doubles out;    // [rows, features]
  Doubles grads;  // of the parameters
};

Slow slowly(const Case& c, const Floats& grad_out) {
  Slow made{{}, Doubles(c.parameters.size(), 0.0)};
  for (int row = 0; row < c.rows; ++row) {
    const ConvLayer& first = c.shape.layers.front();
    std::vector<Doubles> planes(1, Doubles(c.shape.image_bytes()));
    for (int ch = 0; ch < first.channels; ++ch)
      for (int y = 0; y < first.height; ++y)
        for (int x = 0; x < first.width; ++x) {
          const int place = c.channels_first ? (ch * first.height + y) * first.width + x
                                             : (y * first.width + x) * first.channels + ch;
          const double pixel =
              c.images[static_cast<std::size_t>(row) * c.shape.image_bytes() + static_cast<std::size_t>(place)];
          planes[0][static_cast<std::size_t>((ch * first.height + y) * first.width + x)] =
              (pixel - static_cast<double>(c.shape.low)) * static_cast<double>(c.shape.scale);
        }
    // Calls each(layer, output, weight, input) for every multiply-add; output and input within their planes.
    const auto for_products = [&](std::size_t l, const auto& each) {
      const ConvLayer& layer = c.shape.layers[l];
      for (int o = 0; o < layer.outputs; ++o)
        for (int y = 0; y < layer.out_height(); ++y)
          for (int x = 0; x < layer.out_width(); ++x)
            for (int ch = 0; ch < layer.channels; ++ch)
              for (int i = 0; i < layer.kernel; ++i)
                for (int j = 0; j < layer.kernel; ++j)
                  each(static_cast<std::size_t>((o * layer.out_height() + y) * layer.out_width() + x),
                       static_cast<std::size_t>(((o * layer.channels + ch) * layer.kernel + i) * layer.kernel + j),
                       static_cast<std::size_t>((ch * layer.height + y * layer.stride + i) * layer.width +
                                                x * layer.stride + j));
    };
    const Pointers at(c);
    for (std::size_t l = 0; l < c.shape.layers.size(); ++l) {
      const ConvLayer& layer = c.shape.layers[l];
      Doubles sums(static_cast<std::size_t>(layer.places() * layer.outputs));
      for (std::size_t k = 0; k < sums.size(); ++k) sums[k] = at.bias[l][k / static_cast<std::size_t>(layer.places())];
      for_products(l, [&](std::size_t to, std::size_t w, std::size_t from) {
        sums[to] += static_cast<double>(at.weight[l][w]) * planes[l][from];
      });
      for (double& sum : sums) sum = std::max(sum, 0.0);
      planes.push_back(sums);
    }
    made.out.insert(made.out.end(), planes.back().begin(), planes.back().end());
    Doubles grad(grad_out.begin() + static_cast<std::ptrdiff_t>(c.shape.features()) * row,
                 grad_out.begin() + static_cast<std::ptrdiff_t>(c.shape.features()) * (row + 1));
    for (std::size_t l = c.shape.layers.size(); l-- > 0;) {
      const ConvLayer& layer = c.shape.layers[l];
      const auto begin = static_cast<std::size_t>(at.weight[l] - c.parameters.data());
      const auto bias = static_cast<std::size_t>(at.bias[l] - c.parameters.data());
      for (std::size_t k = 0; k < grad.size(); ++k) {
        if (planes[l + 1][k] <= 0.0) grad[k] = 0.0;
        made.grads[bias + k / static_cast<std::size_t>(layer.places())] += grad[k];
      }
      Doubles before(planes[l].size(), 0.0);
      for_products(l, [&](std::size_t to, std::size_t w, std::size_t from) {
        made.grads[begin + w] += grad[to] * planes[l][from];
        before[from] += grad[to] * static_cast<double>(at.weight[l][w]);
      });
      grad = before;
    }
  }
  return made;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool channels_first : {true, false}) {
    all.emplace_back(shape_of(4, 10, 10, channels_first, {{3, 1, 16}}), 3, channels_first);
    all.emplace_back(shape_of(3, 19, 23, channels_first, {{8, 4, 5}, {2, 1, 7}, {2, 1, 18}}), 2, channels_first);
    all.emplace_back(shape_of(1, 7, 5, channels_first, {{3, 2, 2}, {2, 1, 3}}), 37, channels_first);
    all.emplace_back(shape_of(2, 5, 5, channels_first, {{5, 1, 1}}), 1, channels_first);
  }
  return all;
}

// --- the tests ---

void passes_are_those_of_plain_loops() {
  for (const Case& c : cases()) {
    const Forward pass = forward(c);
    const Floats grad_out = numbers(pass.out.size(), 3);
    const Slow slow = slowly(c, grad_out);
    CHECK(close(pass.out, slow.out));
    CHECK(close(backward(c, pass, grad_out), slow.grads));
  }
}

void a_pass_that_keeps_nothing_has_the_same_bits() {
  for (const Case& c : cases()) {
    const Forward pass = forward(c);
    Floats out(pass.out.size(), kNan);
    conv_forward(c.shape, Pointers(c).view(), c.images.data(), c.rows, nullptr, out.data());
    CHECK(same_bits(out, pass.out));
  }
}

void an_image_has_the_same_bits_alone_and_among_others() {
  for (const Case& c : cases()) {
    const Forward pass = forward(c);
    const auto features = static_cast<std::ptrdiff_t>(c.shape.features());
    for (int row = 0; row < c.rows; ++row) {
      Floats alone(c.shape.features(), kNan);
      const std::uint8_t* const image = c.images.data() + c.shape.image_bytes() * static_cast<std::size_t>(row);
      conv_forward(c.shape, Pointers(c).view(), image, 1, nullptr, alone.data());
      CHECK(same_bits(alone, Floats(pass.out.begin() + row * features, pass.out.begin() + (row + 1) * features)));
    }
  }
}

void threads_change_no_bit() {
  const Case c(shape_of(4, 40, 40, true, {{8, 4, 32}, {4, 2, 64}, {3, 1, 64}}), 21);
  const Forward one = forward(c);
  const Floats grads = backward(c, one, one.out);
  set_kernel_threads(3);
  const Forward three = forward(c);
  CHECK(same_bits(one.out, three.out));
  CHECK(same_bits(one.hidden, three.hidden));
  CHECK(same_bits(grads, backward(c, three, one.out)));
  set_kernel_threads(1);
}

void no_rows_give_zero_gradients() {
  const Case c(shape_of(4, 10, 10, true, {{3, 1, 16}}), 0);
  CHECK(same_bits(backward(c, forward(c), {}), Floats(c.parameters.size(), 0.0F)));
}

void what_is_not_a_number_shows() {
  Case c(shape_of(1, 7, 5, true, {{3, 2, 2}, {2, 1, 3}}), 2);
  c.parameters[0] = kNan;
  const Forward pass = forward(c);
  CHECK(std::all_of(pass.out.begin(), pass.out.end(), [](float x) { return std::isnan(x); }));
}

}  // namespace

int main() {
  passes_are_those_of_plain_loops();
  a_pass_that_keeps_nothing_has_the_same_bits();
  an_image_has_the_same_bits_alone_and_among_others();
  threads_change_no_bit();
  no_rows_give_zero_gradients();
  what_is_not_a_number_shows();
  return test::finish();
}
