// Forward and backward pass of convolutions with ReLU over images of bytes, one call each.
//
// An image is read as a matrix with a row for each place of a kernel, the patch that the kernel covers there. Its
// convolution is the product of that matrix and the kernels: that of a perceptron's layer (mlp.hpp), with the same
// promises. A row's features do not depend on the batch it came in; every weight's gradient is summed over rows in
// order, whatever the number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/mlp_tiles.hpp"

namespace slipstream {

constexpr int kMaxConvLayers = 8;

// One convolution without padding, followed by ReLU.
struct ConvLayer {
  int channels, height, width;  // of what it reads
  int kernel, stride;
  int outputs;
  // The number that stands at row `place` and column `k` of the matrix is number place_at[place] + patch_at[k] of the
  // planes that it reads; a patch is [channel, y, x], as torch keeps weights.
  std::vector<Index> place_at, patch_at;

  [[nodiscard]] int out_height() const { return (height - kernel) / stride + 1; }
  [[nodiscard]] int out_width() const { return (width - kernel) / stride + 1; }
  [[nodiscard]] Index places() const { return static_cast<Index>(place_at.size()); }
  [[nodiscard]] Index patch() const { return static_cast<Index>(patch_at.size()); }
  [[nodiscard]] Index weights() const { return patch() * outputs; }
  [[nodiscard]] Index in_floats() const { return static_cast<Index>(channels) * height * width; }
  [[nodiscard]] Index out_floats() const { return places() * outputs; }
};

struct ConvStep {
  int kernel, stride, outputs;
};

// Shapes only; weights are the caller's. Weights are [outputs, channels, kernel, kernel], as torch keeps them.
struct ConvShape {
  std::vector<ConvLayer> layers;
  float low = 0.0F;  // a byte b counts (b - low) * scale
  float scale = 1.0F;

  // Of images [channels, height, width], or with their channels last; every kernel must fit into what it reads.
  ConvShape(std::array<int, 3> image, bool channels_first, float low, float scale, std::span<const ConvStep> steps);

  [[nodiscard]] std::size_t image_bytes() const;
  // Features of a row: the last layer's outputs, channel by channel.
  [[nodiscard]] std::size_t features() const;
  // Floats of what a forward pass leaves behind for the backward pass: the outputs of all layers but the last.
  [[nodiscard]] std::size_t hidden_floats(std::size_t rows) const;
  // Floats of all weights and biases: w0, b0, w1, b1, ...
  [[nodiscard]] std::size_t parameter_floats() const;
};

struct ConvWeights {
  std::span<const float* const> weight;  // [layers]
  std::span<const float* const> bias;    // [layers]
};

// images [rows, image_bytes] -> out [rows, features]. `hidden` (hidden_floats) may be null where no backward pass will
// follow.
void conv_forward(const ConvShape& shape, const ConvWeights& weights, const std::uint8_t* images, int rows,
                  float* hidden, float* out);

// From the gradient of out, and what forward read and left behind, to those of the parameters (parameter_floats). Of
// no rows they are zeros.
void conv_backward(const ConvShape& shape, const ConvWeights& weights, const std::uint8_t* images, int rows,
                   const float* hidden, const float* out, const float* grad_out, float* grads);

}  // namespace slipstream
