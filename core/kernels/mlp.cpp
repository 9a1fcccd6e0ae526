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

bool MlpShape::skips(int layer) const {
  const auto at = static_cast<std::size_t>(layer);
  return residual && layer > 0 && is_hidden(layer) && widths[at] == widths[at + 1];
}

bool MlpShape::keeps_sums(int layer) const { return normed(layer) || skips(layer) || after(layer) > Activation::kTanh; }

std::size_t MlpShape::hidden_floats(std::size_t rows) const {
  std::size_t total = 0;
  for (int l = 0; l < layers(); ++l) {
    const auto width = static_cast<std::size_t>(widths[static_cast<std::size_t>(l) + 1]);
    total += ((l + 1 < layers() ? 1 : 0) + (keeps_sums(l) ? 1 : 0)) * width;
  }
  return total * rows;
}

std::size_t MlpShape::parameter_floats() const {
  std::size_t total = 0;
  for (std::size_t i = 1; i < widths.size(); ++i) {
    const std::size_t vectors = normed(static_cast<int>(i) - 1) ? 3 : 1;
    total += (static_cast<std::size_t>(widths[i - 1]) + vectors) * static_cast<std::size_t>(widths[i]);
  }
  return total;
}

int MlpShape::tensors() const {
  int count = 0;
  for (int l = 0; l < layers(); ++l) count += normed(l) ? 4 : 2;
  return count;
}

std::size_t mlp_cost(const MlpShape& shape, int rows) {
  return shape.parameter_floats() * static_cast<std::size_t>(rows);
}

namespace {

Finish finish_of(const MlpShape& shape, const MlpWeights& weights, std::size_t layer) {
  const bool normed = shape.normed(static_cast<int>(layer));
  return {shape.after(static_cast<int>(layer)), normed ? weights.gain[layer] : nullptr,
          normed ? weights.shift[layer] : nullptr};
}

// Where a pass keeps what its backward pass needs.
struct Kept {
  PerLayer<float*> output{};  // of hidden layers, [rows, outputs]; the last layer's is the caller's
  PerLayer<float*> sums{};    // of layers that keep them

  Kept(const MlpShape& shape, int rows, float* hidden) {
    const auto layers = static_cast<std::size_t>(shape.layers());
    const auto take = [&](std::size_t l) {
      float* const place = hidden;
      hidden += static_cast<Index>(rows) * shape.widths[l + 1];
      return place;
    };
    if (hidden == nullptr) return;
    for (std::size_t l = 0; l + 1 < layers; ++l) output[l] = take(l);
    for (std::size_t l = 0; l < layers; ++l)
      if (shape.keeps_sums(static_cast<int>(l))) sums[l] = take(l);
  }
};

}  // namespace

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
  const Kept kept(shape, rows, hidden);

  share(blocks(rows), mlp_cost(shape, rows), [&](int task) {
    thread_local Scratch between;
    float* const scratch = between.floats(static_cast<std::size_t>(2 * block_rows(rows) * widest));
    const Block block = block_of(task, rows);
    const float* from = x + block.begin * width(0);
    const float* panels = packed;
    for (std::size_t l = 0; l < layers; ++l) {
      const Index columns = width(l + 1);
      const Index begin = block.begin * columns;
      float* to = out + begin;
      if (l + 1 < layers)
        to = hidden != nullptr ? kept.output[l] + begin
                               : scratch + static_cast<Index>(l % 2) * block_rows(rows) * widest;
      const Strided read{from, width(l), 1};
      if (!shape.keeps_sums(static_cast<int>(l))) {
        tiles().product(read, block.count, panels, width(l), columns, weights.bias[l], shape.after(static_cast<int>(l)),
                        {to, columns});
      } else {
        float* const sums = kept.sums[l] != nullptr ? kept.sums[l] + begin : to;
        tiles().product(read, block.count, panels, width(l), columns, weights.bias[l], Activation::kIdentity,
                        {sums, columns});
        const float* const skip = shape.skips(static_cast<int>(l)) ? from : nullptr;
        tiles().finish(finish_of(shape, weights, l), block.count, columns, {sums, columns}, {skip, columns},
                       {to, columns});
      }
      panels += packed_floats(width(l), columns);
      from = to;
    }
  });
}

namespace {

void add_rows(Index rows, Index columns, const Rows<const float>& from, const Rows<float>& to) {
  for (Index r = 0; r < rows; ++r)
    for (Index i = 0; i < columns; ++i) to.data[r * to.stride + i] += from.data[r * from.stride + i];
}

// A backward pass: what is where, the way down, and the sums over rows.
class Backward {
 public:
  Backward(const MlpShape& shape, const MlpWeights& weights, const float* x, int rows, const float* hidden,
           const float* out, const float* grad_out, const MlpGradients& grads)
      : shape_(shape),
        weights_(weights),
        grad_out_(grad_out),
        grads_(grads),
        rows_(rows),
        layers_(static_cast<std::size_t>(shape.layers())),
        lowest_(grads.x != nullptr ? 0 : 1),
        kept_(shape, rows, const_cast<float*>(hidden)),  // which is only read
        input_{x} {
    for (std::size_t l = 0; l + 1 < layers_; ++l) output_[l] = input_[l + 1] = kept_.output[l];
    output_[layers_ - 1] = out;
    lay_out();
    pack();
    float* target = grads.parameters;
    for (std::size_t l = 0; l < layers_; ++l) {
      first_task_[l + 1] = first_task_[l] + static_cast<int>(round_up(width(l), tiles().group) / tiles().group);
      const Index vectors = normed(l) ? 3 : 1;
      target_[l] = target;
      if (target != nullptr) target += (width(l) + vectors) * width(l + 1);
    }
  }

  void run() {
    // A chunk of rows at a time, so that its deltas are still in the cache when the weights' gradients need them.
    for (Index start = 0; start < rows_; start += kChunk) {
      const int chunk = static_cast<int>(std::min<Index>(kChunk, rows_ - start));
      // Rows are independent on the way down.
      share(blocks(chunk), mlp_cost(shape_, chunk), [&](int task) { go_down(block_of(task, chunk), start); });
      if (grads_.parameters == nullptr) continue;
      share(first_task_[layers_], mlp_cost(shape_, chunk), [&](int task) { sum(task, start, chunk); });
    }
  }

 private:
  [[nodiscard]] Index width(std::size_t i) const { return static_cast<Index>(shape_.widths[i]); }
  [[nodiscard]] bool keeps_sums(std::size_t l) const { return shape_.keeps_sums(static_cast<int>(l)); }
  [[nodiscard]] bool normed(std::size_t l) const { return shape_.normed(static_cast<int>(l)); }

  // Memory for the gradients of a chunk.
  void lay_out() {
    thread_local Scratch before;
    const Index most = std::min<Index>(rows_, kChunk);
    const auto matrices = [&](std::size_t l) -> Index { return keeps_sums(l) ? (normed(l) ? 4 : 2) : 1; };
    Index total = 0;
    for (std::size_t l = 0; l < layers_; ++l) total += matrices(l) * most * spread(width(l + 1));
    float* place = before.floats(static_cast<std::size_t>(total));
    for (std::size_t l = 0; l < layers_; ++l) {
      const Index size = most * spread(width(l + 1));
      delta_[l] = above_[l] = place;
      if (keeps_sums(l)) above_[l] = place + size;
      if (normed(l)) {
        of_gain_[l] = place + 2 * size;
        of_shift_[l] = place + 3 * size;
      }
      place += matrices(l) * size;
    }
  }

  void pack() {
    thread_local Scratch packing;
    Index total = 0;
    for (std::size_t l = lowest_; l < layers_; ++l) total += packed_floats(width(l + 1), width(l));
    float* next = packing.floats(static_cast<std::size_t>(total));
    for (std::size_t l = lowest_; l < layers_; ++l) {
      panels_[l] = next;
      tiles().pack(weights_.weight[l], width(l), width(l + 1), next);
      next += packed_floats(width(l + 1), width(l));
    }
  }

  // From the gradients of the outputs of a block of rows to those of everything before.
  void go_down(const Block& block, Index start) const {
    const Index row = start + block.begin;
    Rows<const float> grad{grad_out_ + row * width(layers_), width(layers_)};
    for (std::size_t l = layers_; l-- > 0;) {
      const Index columns = width(l + 1);
      const Index offset = block.begin * spread(columns);
      const Rows<float> own{delta_[l] + offset, spread(columns)};
      if (keeps_sums(l)) {
        const bool sums_follow = normed(l) && grads_.parameters != nullptr;
        tiles().unfinish(finish_of(shape_, weights_, l), block.count, columns, grad,
                         {kept_.sums[l] + row * columns, columns},
                         {own,
                          {sums_follow ? of_gain_[l] + offset : nullptr, own.stride},
                          {sums_follow ? of_shift_[l] + offset : nullptr, own.stride}});
      } else {
        tiles().derivatives(shape_.after(static_cast<int>(l)), block.count, columns, grad,
                            {output_[l] + row * columns, columns}, own);
      }
      if (l < lowest_) break;
      // The gradient of this layer's input goes where the next delta will be formed, in place where nothing needs it.
      const Index stride = l == 0 ? width(0) : spread(width(l));
      const Rows<float> to{l == 0 ? grads_.x + row * stride : above_[l - 1] + block.begin * stride, stride};
      tiles().product({own.data, own.stride, 1}, block.count, panels_[l], columns, width(l), nullptr,
                      Activation::kIdentity, to);
      if (shape_.skips(static_cast<int>(l))) add_rows(block.count, columns, grad, to);
      grad = {to.data, to.stride};
    }
  }

  // A few columns of a weight's gradient are one task: sums over all rows, in order. Several panels a task, so that
  // what is read of `delta` is used several times while it is in the cache.
  void sum(int task, Index start, int chunk) const {
    std::size_t l = 0;
    while (task >= first_task_[l + 1]) ++l;
    const Index inputs = width(l);
    const Index outputs = width(l + 1);
    const Index first = static_cast<Index>(task - first_task_[l]) * tiles().group;
    float* const weight = target_[l];
    tiles().gradient({delta_[l], 1, spread(outputs)}, outputs, input_[l] + start * inputs, chunk, inputs, first,
                     std::min(first + tiles().group, inputs), start > 0, weight);
    if (first > 0) return;
    float* const bias = weight + outputs * inputs;
    add_up(delta_[l], start == 0, chunk, outputs, bias);
    if (!normed(l)) return;
    add_up(of_gain_[l], start == 0, chunk, outputs, bias + outputs);
    add_up(of_shift_[l], start == 0, chunk, outputs, bias + 2 * outputs);
  }

  static void add_up(const float* from, bool is_first, Index rows, Index columns, float* total) {
    if (is_first) std::fill(total, total + columns, 0.0F);
    for (Index r = 0; r < rows; ++r)
      for (Index i = 0; i < columns; ++i) total[i] += from[r * spread(columns) + i];
  }

  const MlpShape& shape_;
  const MlpWeights& weights_;
  const float* grad_out_;
  const MlpGradients& grads_;
  int rows_;
  std::size_t layers_;
  std::size_t lowest_;  // first layer whose input's gradient is wanted
  Kept kept_;
  PerLayer<const float*> input_;
  PerLayer<const float*> output_{};
  PerLayer<float*> panels_{};
  PerLayer<float*> delta_{};  // gradient of each layer's sums, [chunk, outputs]
  PerLayer<float*> above_{};  // gradient of its output; where its sums are not kept, in the same place
  PerLayer<float*> of_gain_{};
  PerLayer<float*> of_shift_{};
  std::array<int, kMaxLayers + 1> first_task_{};
  PerLayer<float*> target_{};
};

}  // namespace

void mlp_backward(const MlpShape& shape, const MlpWeights& weights, const float* x, int rows, const float* hidden,
                  const float* out, const float* grad_out, const MlpGradients& grads) {
  if (rows == 0) {
    if (grads.parameters != nullptr) std::fill_n(grads.parameters, shape.parameter_floats(), 0.0F);
    return;
  }
  Backward(shape, weights, x, rows, hidden, out, grad_out, grads).run();
}

}  // namespace slipstream
