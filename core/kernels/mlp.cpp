#include "kernels/mlp.hpp"

#include <algorithm>
#include <array>

#include "kernels/pass.hpp"
#include "kernels/share.hpp"

namespace slipstream {
namespace {

constexpr Index kChunk = 128;  // rows of a backward pass that are done with before the next

template <class T>
using PerLayer = std::array<T, kMaxLayers>;

}  // namespace

std::size_t MlpShape::hidden_floats(std::size_t rows) const {
  std::size_t total = 0;
  for (std::size_t i = 1; i + 1 < widths.size(); ++i) total += static_cast<std::size_t>(widths[i]);
  return total * rows;
}

std::size_t MlpShape::parameter_floats() const {
  std::size_t total = 0;
  for (std::size_t i = 1; i < widths.size(); ++i)
    total += (static_cast<std::size_t>(widths[i - 1]) + 1) * static_cast<std::size_t>(widths[i]);
  return total;
}

std::size_t mlp_cost(const MlpShape& shape, int rows) {
  return shape.parameter_floats() * static_cast<std::size_t>(rows);
}

void mlp_forward(const MlpShape& shape, const MlpWeights& weights, const float* x, int rows, float* hidden,
                 float* out) {
  thread_local Scratch packing;
  const auto layers = static_cast<std::size_t>(shape.layers());
  const auto width = [&](std::size_t i) { return static_cast<Index>(shape.widths[i]); };
  Index total = 0;
  for (std::size_t l = 0; l < layers; ++l) total += packed_floats(width(l), width(l + 1));
  float* const packed = packing.floats(static_cast<std::size_t>(total));
  float* next = packed;
  for (std::size_t l = 0; l < layers; ++l) {
    tiles().pack_transposed(weights.weight[l], width(l + 1), width(l), next);
    next += packed_floats(width(l), width(l + 1));
  }
  const Index widest = *std::max_element(shape.widths.begin(), shape.widths.end());

  share(blocks(rows), mlp_cost(shape, rows), [&](int task) {
    thread_local Scratch between;
    float* const scratch = between.floats(static_cast<std::size_t>(2 * block_rows(rows) * widest));
    const Block block = block_of(task, rows);
    const float* from = x + block.begin * width(0);
    const float* panels = packed;
    float* kept = hidden;
    for (std::size_t l = 0; l < layers; ++l) {
      float* to = out + block.begin * width(l + 1);
      if (l + 1 < layers) {
        to = hidden != nullptr ? kept + block.begin * width(l + 1)
                               : scratch + static_cast<Index>(l % 2) * block_rows(rows) * widest;
      }
      tiles().product({from, width(l), 1}, block.count, panels, width(l), width(l + 1), weights.bias[l],
                      shape.after(static_cast<int>(l)), {to, width(l + 1)});
      panels += packed_floats(width(l), width(l + 1));
      if (hidden != nullptr) kept += static_cast<Index>(rows) * width(l + 1);
      from = to;
    }
  });
}

void mlp_backward(const MlpShape& shape, const MlpWeights& weights, const float* x, int rows, const float* hidden,
                  const float* out, const float* grad_out, const MlpGradients& grads) {
  thread_local Scratch packing;
  thread_local Scratch before;
  const auto layers = static_cast<std::size_t>(shape.layers());
  const auto width = [&](std::size_t i) { return static_cast<Index>(shape.widths[i]); };
  const std::size_t lowest = grads.x != nullptr ? 0 : 1;  // first layer whose input's gradient is wanted
  if (rows == 0) {
    if (grads.parameters != nullptr) std::fill_n(grads.parameters, shape.parameter_floats(), 0.0F);
    return;
  }

  Index total = 0;
  for (std::size_t l = lowest; l < layers; ++l) total += packed_floats(width(l + 1), width(l));
  float* const packed = packing.floats(static_cast<std::size_t>(total));
  const Index most = std::min<Index>(rows, kChunk);
  Index deltas = 0;
  for (std::size_t l = 0; l < layers; ++l) deltas += most * spread(width(l + 1));
  float* place = before.floats(static_cast<std::size_t>(deltas));
  PerLayer<float*> panels{};
  PerLayer<float*> delta{};  // gradient before each layer's activation, [chunk, outputs]
  PerLayer<const float*> input{x};
  PerLayer<const float*> output{};
  output[layers - 1] = out;
  float* next = packed;
  const float* kept = hidden;
  for (std::size_t l = 0; l < layers; ++l) {
    delta[l] = place;
    place += most * spread(width(l + 1));
    if (l >= lowest) {
      panels[l] = next;
      tiles().pack(weights.weight[l], width(l), width(l + 1), next);
      next += packed_floats(width(l + 1), width(l));
    }
    if (l + 1 < layers) {
      output[l] = input[l + 1] = kept;
      kept += static_cast<Index>(rows) * width(l + 1);
    }
  }
  // A few columns of a weight's gradient are one task: sums over all rows, in order. Several panels a task, so that
  // what is read of `delta` is used several times while it is in the cache.
  std::array<int, kMaxLayers + 1> first_task{};
  PerLayer<float*> target{grads.parameters};
  for (std::size_t l = 0; l < layers; ++l) {
    first_task[l + 1] = first_task[l] + static_cast<int>(round_up(width(l), tiles().group) / tiles().group);
    if (l + 1 < layers) target[l + 1] = target[l] + (width(l) + 1) * width(l + 1);
  }

  // A chunk of rows at a time, so that its deltas are still in the cache when the weights' gradients need them.
  for (Index start = 0; start < rows; start += kChunk) {
    const int chunk = static_cast<int>(std::min<Index>(kChunk, rows - start));
    // Rows are independent on the way down.
    share(blocks(chunk), mlp_cost(shape, chunk), [&](int task) {
      const Block block = block_of(task, chunk);
      const Index row = start + block.begin;
      Rows<const float> grad{grad_out + row * width(layers), width(layers)};
      for (std::size_t l = layers; l-- > 0;) {
        const Rows<float> own{delta[l] + block.begin * spread(width(l + 1)), spread(width(l + 1))};
        tiles().derivatives(shape.after(static_cast<int>(l)), block.count, width(l + 1), grad,
                            {output[l] + row * width(l + 1), width(l + 1)}, own);
        if (l < lowest) break;
        // The gradient of this layer's input goes where the next delta will be formed in place.
        const Index stride = l == 0 ? width(0) : spread(width(l));
        const Rows<float> to{l == 0 ? grads.x + row * stride : delta[l - 1] + block.begin * stride, stride};
        tiles().product({own.data, own.stride, 1}, block.count, panels[l], width(l + 1), width(l), nullptr,
                        Activation::kIdentity, to);
        grad = {to.data, to.stride};
      }
    });
    if (grads.parameters == nullptr) continue;

    share(first_task[layers], mlp_cost(shape, chunk), [&](int task) {
      std::size_t l = 0;
      while (task >= first_task[l + 1]) ++l;
      const Index inputs = width(l);
      const Index outputs = width(l + 1);
      const Index first = static_cast<Index>(task - first_task[l]) * tiles().group;
      float* const weight = target[l];
      const Index stride = spread(outputs);
      tiles().gradient({delta[l], 1, stride}, outputs, input[l] + start * inputs, chunk, inputs, first,
                       std::min(first + tiles().group, inputs), start > 0, weight);
      if (first > 0) return;
      float* const bias = weight + outputs * inputs;
      if (start == 0) std::fill(bias, bias + outputs, 0.0F);
      for (Index r = 0; r < chunk; ++r)
        for (Index o = 0; o < outputs; ++o) bias[o] += delta[l][r * stride + o];
    });
  }
}

}  // namespace slipstream
