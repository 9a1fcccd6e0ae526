// Forward and backward pass of a multilayer perceptron in float32, one call each.
//
// A network of a few hundred units is too small for a general library: at 256 rows most of its time goes into the calls
// between the products, not into them. Here a pass is one call, shared out over threads, and its bits are a contract:
// every row's outputs are sums in one fixed order, so they do not depend on the batch it came in or on its place there;
// every weight's gradient is summed over rows in order, so it does not depend on the number of threads.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/mlp_tiles.hpp"

namespace slipstream {

constexpr int kMaxLayers = 16;  // a pass keeps its pointers per layer in fixed arrays: no allocation

// Shapes only; weights are the caller's. Weights are [outputs, inputs], row-major, as torch keeps them.
//
// A layer is y = activation(norm(W x + b)), plus x where it has a skip. Layers that end in an activation are hidden
// layers, the last one included; norm and skip are theirs alone.
struct MlpShape {
  std::vector<int> widths;  // inputs, hidden layers, outputs: at least two, at most kMaxLayers + 1
  Activation hidden = Activation::kTanh;
  Activation last = Activation::kIdentity;
  bool norm = false;      // hidden layers normalise their sums (Ba et al. 2016), with a gain and a shift that learn
  bool residual = false;  // a hidden layer as wide as the one before adds what it reads

  [[nodiscard]] int layers() const { return static_cast<int>(widths.size()) - 1; }
  [[nodiscard]] Activation after(int layer) const { return layer + 1 < layers() ? hidden : last; }
  [[nodiscard]] bool is_hidden(int layer) const { return layer + 1 < layers() || last != Activation::kIdentity; }
  [[nodiscard]] bool normed(int layer) const { return norm && is_hidden(layer); }
  [[nodiscard]] bool skips(int layer) const;
  // Whether the backward pass needs the sums of a layer, beside its output.
  [[nodiscard]] bool keeps_sums(int layer) const;
  // Floats of what a forward pass leaves behind for the backward pass: the outputs of all hidden layers but the last,
  // then the sums of the layers that keep them.
  [[nodiscard]] std::size_t hidden_floats(std::size_t rows) const;
  // Floats of all weights and biases: w0, b0, w1, b1, ...; after a normed layer's, its gain and shift.
  [[nodiscard]] std::size_t parameter_floats() const;
  // How many vectors and matrices these are.
  [[nodiscard]] int tensors() const;
};

struct MlpWeights {
  std::span<const float* const> weight;  // [layers]
  std::span<const float* const> bias;    // [layers]
  std::span<const float* const> gain;    // [layers], read where a layer is normed
  std::span<const float* const> shift;   // [layers], the same
};

// x [rows, inputs] -> out [rows, outputs]. `hidden` (hidden_floats) may be null where no backward pass will follow.
void mlp_forward(const MlpShape& shape, const MlpWeights& weights, const float* x, int rows, float* hidden, float* out);

struct MlpGradients {
  float* parameters = nullptr;  // parameter_floats, or null where they are not wanted
  float* x = nullptr;           // [rows, inputs], or null
};

// From the gradient of out, and what forward read and left behind, to the gradients of parameters and x. Of no rows the
// gradients of parameters are zeros.
void mlp_backward(const MlpShape& shape, const MlpWeights& weights, const float* x, int rows, const float* hidden,
                  const float* out, const float* grad_out, const MlpGradients& grads);

// Multiply-adds of a forward pass; a backward pass has twice as many.
[[nodiscard]] std::size_t mlp_cost(const MlpShape& shape, int rows);

}  // namespace slipstream
