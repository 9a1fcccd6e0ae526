#include "kernels/conv.hpp"

#include <algorithm>

#include "kernels/pass.hpp"
#include "kernels/share.hpp"

namespace slipstream {
namespace {

template <class T>
using PerLayer = std::array<T, kMaxConvLayers>;

constexpr Index kImages = 8;     // of a task, or of a backward pass that are done with before the next: what is known
                                 // of them stays in the cache
constexpr Index kTaskRows = 48;  // of a weight's gradient that are one task

// Multiply-adds of a forward pass.
std::size_t cost_of(const ConvShape& shape, Index rows) {
  Index total = 0;
  for (const ConvLayer& layer : shape.layers) total += layer.places() * layer.weights();
  return static_cast<std::size_t>(total * rows);
}

Index largest(const ConvShape& shape, Index (*size)(const ConvLayer&)) {
  Index most = 0;
  for (const ConvLayer& layer : shape.layers) most = std::max(most, size(layer));
  return most;
}

Index lines(Index floats) { return round_up(floats, kLine / sizeof(float)); }

void to_floats(const ConvShape& shape, const std::uint8_t* image, float* out) {
  const auto count = static_cast<Index>(shape.image_bytes());
  const float low = shape.low;
  const float scale = shape.scale;
  for (Index i = 0; i < count; ++i) out[i] = (static_cast<float>(image[i]) - low) * scale;
}

// Where the outputs of each layer but the last stand: [rows, places, outputs], layer after layer.
struct Hidden {
  PerLayer<Index> at{};

  Hidden(const ConvShape& shape, Index rows) {
    for (std::size_t l = 1; l < shape.layers.size(); ++l) at[l] = at[l - 1] + rows * shape.layers[l - 1].out_floats();
  }
};

ConvLayer layer_of(const std::array<int, 3>& planes, bool channels_first, const ConvStep& step) {
  const auto [channels, height, width] = planes;
  ConvLayer layer{channels, height, width, step.kernel, step.stride, step.outputs, {}, {}};
  const auto at = [&](int channel, int y, int x) {
    const Index place = static_cast<Index>(y) * width + x;
    return channels_first ? channel * static_cast<Index>(height) * width + place : place * channels + channel;
  };
  for (int y = 0; y < layer.out_height(); ++y)
    for (int x = 0; x < layer.out_width(); ++x) layer.place_at.push_back(at(0, y * step.stride, x * step.stride));
  for (int channel = 0; channel < channels; ++channel)
    for (int y = 0; y < step.kernel; ++y)
      for (int x = 0; x < step.kernel; ++x) layer.patch_at.push_back(at(channel, y, x));
  return layer;
}

}  // namespace

ConvShape::ConvShape(std::array<int, 3> image, bool channels_first, float lowest, float by,
                     std::span<const ConvStep> steps)
    : low(lowest), scale(by) {
  for (const ConvStep& step : steps) {
    layers.push_back(layer_of(image, channels_first && layers.empty(), step));
    image = {step.outputs, layers.back().out_height(), layers.back().out_width()};
  }
}

std::size_t ConvShape::image_bytes() const { return static_cast<std::size_t>(layers.front().in_floats()); }

std::size_t ConvShape::features() const { return static_cast<std::size_t>(layers.back().out_floats()); }

std::size_t ConvShape::hidden_floats(std::size_t rows) const {
  Index total = 0;
  for (std::size_t l = 0; l + 1 < layers.size(); ++l) total += layers[l].out_floats();
  return static_cast<std::size_t>(total) * rows;
}

std::size_t ConvShape::parameter_floats() const {
  Index total = 0;
  for (const ConvLayer& layer : layers) total += layer.weights() + layer.outputs;
  return static_cast<std::size_t>(total);
}

void conv_forward(const ConvShape& shape, const ConvWeights& weights, const std::uint8_t* images, int rows,
                  float* hidden, float* out) {
  thread_local Scratch packing;
  const std::size_t layers = shape.layers.size();
  Index total = 0;
  for (const ConvLayer& layer : shape.layers) total += packed_floats(layer.patch(), layer.outputs);
  PerLayer<float*> panels{packing.floats(total)};
  for (std::size_t l = 0; l < layers; ++l) {
    const ConvLayer& layer = shape.layers[l];
    tiles().pack_transposed(weights.weight[l], layer.outputs, layer.patch(), panels[l]);
    if (l + 1 < layers) panels[l + 1] = panels[l] + packed_floats(layer.patch(), layer.outputs);
  }
  const Hidden kept(shape, rows);
  const Index image_floats = shape.layers.front().in_floats();
  const Index most = largest(shape, [](const ConvLayer& layer) { return layer.out_floats(); });

  share(static_cast<int>((rows + kImages - 1) / kImages), cost_of(shape, rows), [&](int task) {
    thread_local Scratch between;
    float* const image = between.floats(image_floats + 2 * most);
    const Index end = std::min<Index>(rows, (task + 1) * kImages);
    for (Index row = task * kImages; row < end; ++row) {
      to_floats(shape, images + row * image_floats, image);
      const float* from = image;
      for (std::size_t l = 0; l < layers; ++l) {
        const ConvLayer& layer = shape.layers[l];
        float* to = image + image_floats + static_cast<Index>(l % 2) * most;
        if (hidden != nullptr && l + 1 < layers) to = hidden + kept.at[l] + row * layer.out_floats();
        tiles().gathered({from, layer.place_at.data(), layer.patch_at.data()}, layer.places(), panels[l], layer.patch(),
                         layer.outputs, weights.bias[l], Activation::kRelu, false,
                         {to, static_cast<Index>(layer.outputs)});
        from = to;
      }
      const ConvLayer& last = shape.layers.back();
      float* const features = out + row * last.out_floats();
      for (Index c = 0; c < last.outputs; ++c)
        for (Index p = 0; p < last.places(); ++p) features[c * last.places() + p] = from[p * last.outputs + c];
    }
  });
}

namespace {

// A backward pass, a few images at a time.
class Backward {
 public:
  Backward(const ConvShape& shape, const ConvWeights& weights, const std::uint8_t* images, Index rows,
           const float* hidden, const float* out, const float* grad_out, float* grads)
      : shape_(shape),
        weights_(weights),
        images_(images),
        rows_(rows),
        hidden_(hidden),
        kept_(shape, rows),
        out_(out),
        grad_out_(grad_out) {
    for (std::size_t l = 0; l < layers(); ++l) {
      target_[l] = grads;
      grads += layer(l).weights() + layer(l).outputs;
    }
    lay_out();
  }

  void run() {
    for (Index start = 0; start < rows_; start += kImages) {
      const Index count = std::min(kImages, rows_ - start);
      const std::size_t cost = cost_of(shape_, count);
      share(static_cast<int>(count), cost, [&](int i) { begin(start, i); });
      for (std::size_t l = layers(); l-- > 0;) {
        const auto tasks = static_cast<int>((layer(l).patch() + kTaskRows - 1) / kTaskRows);
        share(tasks, cost, [&](int task) { sum(l, start, count, task); });
        if (l > 0) share(static_cast<int>(count), cost, [&](int i) { go_down(l, start, i); });
      }
    }
    for (std::size_t l = 0; l < layers(); ++l) {
      const Index outputs = layer(l).outputs;
      for (Index o = 0; o < outputs; ++o)
        for (Index k = 0; k < layer(l).patch(); ++k) target_[l][o * layer(l).patch() + k] = sums_[l][k * outputs + o];
    }
  }

 private:
  [[nodiscard]] std::size_t layers() const { return shape_.layers.size(); }
  [[nodiscard]] const ConvLayer& layer(std::size_t l) const { return shape_.layers[l]; }
  // The gradient of a layer's sums, [places, outputs], of an image among those at a time.
  [[nodiscard]] float* delta(std::size_t l, Index i) const { return delta_[l % 2] + i * layer(l).out_floats(); }
  // The same as a product reads it.
  [[nodiscard]] float* packed_delta(std::size_t l, Index i) const {
    return packed_delta_ + i * packed_floats(layer(l).places(), layer(l).outputs);
  }
  // What a layer read of an image.
  [[nodiscard]] const float* planes(std::size_t l, Index start, Index i) const {
    if (l == 0) return floats_ + i * layer(0).in_floats();
    return hidden_ + kept_.at[l - 1] + (start + i) * layer(l - 1).out_floats();
  }

  void lay_out() {
    thread_local Scratch memory;
    const Index image = lines(kImages * layer(0).in_floats());
    const Index delta = lines(kImages * largest(shape_, [](const ConvLayer& each) { return each.out_floats(); }));
    const Index packed =
        kImages * largest(shape_, [](const ConvLayer& each) { return packed_floats(each.places(), each.outputs); });
    const Index moved = lines(largest(shape_, [](const ConvLayer& each) { return each.weights(); }));
    Index total = image + 2 * delta + packed + moved;
    for (const ConvLayer& each : shape_.layers)
      total += lines(each.weights()) + packed_floats(each.outputs, each.patch());
    float* place = memory.floats(total);
    const auto take = [&](Index count) {
      float* const here = place;
      place += count;
      return here;
    };
    floats_ = take(image);
    for (float*& each : delta_) each = take(delta);
    packed_delta_ = take(packed);
    float* const weight = take(moved);
    for (std::size_t l = 0; l < layers(); ++l) {
      sums_[l] = take(lines(layer(l).weights()));
      if (l == 0) continue;
      panels_[l] = take(packed_floats(layer(l).outputs, layer(l).patch()));
      move_channels_last(layer(l), weights_.weight[l], weight);
      tiles().pack(weight, layer(l).patch(), layer(l).outputs, panels_[l]);
    }
  }

  // [outputs, channel, y, x] -> [outputs, y, x, channel]: then the numbers of a patch stand beside each other in rows.
  static void move_channels_last(const ConvLayer& of, const float* from, float* to) {
    const Index area = static_cast<Index>(of.kernel) * of.kernel;
    for (Index o = 0; o < of.outputs; ++o)
      for (Index c = 0; c < of.channels; ++c)
        for (Index k = 0; k < area; ++k) to[(o * area + k) * of.channels + c] = *from++;
  }

  // The gradient of the last layer's sums, from that of the features, which stand channel by channel.
  void begin(Index start, Index i) const {
    const ConvLayer& last = shape_.layers.back();
    const Index first = (start + i) * last.out_floats();
    float* const to = delta(layers() - 1, i);
    for (Index c = 0; c < last.outputs; ++c)
      for (Index p = 0; p < last.places(); ++p) {
        const Index at = first + c * last.places() + p;
        to[p * last.outputs + c] = out_[at] > 0.0F ? grad_out_[at] : 0.0F;
      }
    tiles().pack(to, last.outputs, last.places(), packed_delta(layers() - 1, i));
    const Index size = layer(0).in_floats();
    to_floats(shape_, images_ + (start + i) * size, floats_ + i * size);
  }

  // Adds the images' part of a layer's gradients: some rows of [patch, outputs] are one task.
  void sum(std::size_t l, Index start, Index count, int task) const {
    const ConvLayer& of = layer(l);
    const Index first = task * kTaskRows;
    const Index rows = std::min(kTaskRows, of.patch() - first);
    for (Index i = 0; i < count; ++i)
      tiles().gathered({planes(l, start, i), of.patch_at.data() + first, of.place_at.data()}, rows, packed_delta(l, i),
                       of.places(), of.outputs, nullptr, Activation::kIdentity, start + i > 0,
                       {sums_[l] + first * of.outputs, static_cast<Index>(of.outputs)});
    if (first > 0) return;
    float* const bias = target_[l] + of.weights();
    if (start == 0) std::fill_n(bias, of.outputs, 0.0F);
    for (Index p = 0; p < count * of.places(); ++p)
      for (Index o = 0; o < of.outputs; ++o) bias[o] += delta(l, 0)[p * of.outputs + o];
  }

  // From the gradient of a layer's sums to that of the sums of the layer before.
  void go_down(std::size_t l, Index start, Index i) const {
    thread_local Scratch memory;
    const ConvLayer& of = layer(l);
    const ConvLayer& before = layer(l - 1);
    float* const patches = memory.floats(of.places() * of.patch() + of.in_floats());
    float* const grad = patches + of.places() * of.patch();
    const Index outputs = of.outputs;
    tiles().product({delta(l, i), outputs, 1}, of.places(), panels_[l], outputs, of.patch(), nullptr,
                    Activation::kIdentity, {patches, of.patch()});
    std::fill_n(grad, of.in_floats(), 0.0F);
    // Patches overlap: what they have at one place is added up.
    const Index run = static_cast<Index>(of.kernel) * of.channels;
    const float* from = patches;
    for (const Index corner : of.place_at)
      for (Index y = 0; y < of.kernel; ++y, from += run) {
        float* const to = grad + corner + y * of.width * of.channels;
        for (Index k = 0; k < run; ++k) to[k] += from[k];
      }
    const Index columns = before.outputs;
    tiles().derivatives(Activation::kRelu, before.places(), columns, {grad, columns}, {planes(l, start, i), columns},
                        {delta(l - 1, i), columns});
    tiles().pack(delta(l - 1, i), columns, before.places(), packed_delta(l - 1, i));
  }

  const ConvShape& shape_;
  const ConvWeights& weights_;
  const std::uint8_t* images_;
  Index rows_;
  const float* hidden_;
  Hidden kept_;
  const float* out_;
  const float* grad_out_;
  float* floats_ = nullptr;        // the images
  std::array<float*, 2> delta_{};  // of a layer and of the one before
  float* packed_delta_ = nullptr;  // of one layer
  PerLayer<float*> sums_{};        // gradients of weights, [patch, outputs]
  PerLayer<float*> panels_{};      // weights, packed for the way down
  PerLayer<float*> target_{};      // where gradients go
};

}  // namespace

void conv_backward(const ConvShape& shape, const ConvWeights& weights, const std::uint8_t* images, int rows,
                   const float* hidden, const float* out, const float* grad_out, float* grads) {
  if (rows == 0) {
    std::fill_n(grads, shape.parameter_floats(), 0.0F);
    return;
  }
  Backward(shape, weights, images, rows, hidden, out, grad_out, grads).run();
}

}  // namespace slipstream
