#include "kernels/mlp.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>

#include "kernels/share.hpp"

namespace slipstream {
namespace {

using Index = std::ptrdiff_t;

// A tile of kTileRows x kPanel sums stays in registers (12 of 16) while the inner index runs.
constexpr int kTileRows = 6;
constexpr int kPanel = 16;
constexpr int kDepth = 256;         // inner indices per pass over a tile: a packed panel of them fits the L1 cache
constexpr int kChunk = 512;         // rows of a backward pass that are done with before the next; a multiple of kDepth
constexpr int kGroup = 2 * kPanel;  // columns of one task of a backward pass

typedef float Vec __attribute__((vector_size(32)));           // NOLINT(modernize-use-using)
typedef std::uint32_t Bits __attribute__((vector_size(32)));  // NOLINT(modernize-use-using)

Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
void store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }
Vec splat(float x) { return Vec{x, x, x, x, x, x, x, x}; }

constexpr Index round_up(Index n, Index to) { return (n + to - 1) / to * to; }

// Memory that grows to the largest size asked of it and is then reused: no allocation in a steady state.
class Scratch {
 public:
  float* floats(std::size_t count) {
    if (count > size_) {
      memory_ = std::make_unique<float[]>(count);
      size_ = count;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<float[]> memory_;
  std::size_t size_ = 0;
};

// --- elementwise ---

// tanh = e / (e + 2) with e = expm1(2|x|): accurate to a few ulp also near 0, because expm1 is.
Vec tanh(Vec x) {
  const Bits sign = reinterpret_cast<Bits>(x) & 0x80000000U;
  Vec y = 2.0F * reinterpret_cast<Vec>(reinterpret_cast<Bits>(x) ^ sign);
  y = y < 20.0F ? y : (y == y ? splat(20.0F) : y);  // beyond, tanh is 1 in float32; NaN stays NaN
  // y = n ln 2 + r, |r| <= ln 2 / 2; adding and taking away 1.5 * 2^23 rounds to the nearest integer.
  const Vec magic = splat(12582912.0F);
  const Vec shifted = y * 1.44269504088896341F + magic;
  const Vec n = shifted - magic;
  const Vec r = (y - n * 0.693359375F) - n * -2.12194440e-4F;  // ln 2 in two parts: the first is exact times n
  // expm1(r) by its series; the first term left out is r^8 / 8!, below half an ulp of r.
  Vec p = splat(1.0F / 5040.0F);
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * (r * r) + r;
  const Bits exponent = (reinterpret_cast<Bits>(shifted) << 23U) + (127U << 23U);  // low bits of `shifted` hold n
  const Vec scale = reinterpret_cast<Vec>(exponent);
  const Vec e = p * scale + (scale - 1.0F);
  const Vec t = e / (e + 2.0F);
  return reinterpret_cast<Vec>(reinterpret_cast<Bits>(t) | sign);
}

Vec activate(Activation activation, Vec x) {
  switch (activation) {
    case Activation::kIdentity:
      return x;
    case Activation::kRelu:
      return x > 0.0F ? x : (x == x ? Vec{} : x);
    case Activation::kTanh:
      return tanh(x);
  }
  return x;
}

// Gradient before an activation, from the gradient after it and its output.
Vec derivative(Activation activation, Vec grad, Vec y) {
  switch (activation) {
    case Activation::kIdentity:
      return grad;
    case Activation::kRelu:
      return y > 0.0F ? grad : Vec{};
    case Activation::kTanh:
      return grad * (1.0F - y * y);
  }
  return grad;
}

void derivatives(Activation activation, const float* grad, const float* y, Index count, float* out) {
  Index i = 0;
  for (; i + 8 <= count; i += 8) store(out + i, derivative(activation, load(grad + i), load(y + i)));
  if (i == count) return;
  float tail[3][8] = {};
  std::copy(grad + i, grad + count, tail[0]);
  std::copy(y + i, y + count, tail[1]);
  store(tail[2], derivative(activation, load(tail[0]), load(tail[1])));
  std::copy(tail[2], tail[2] + (count - i), out + i);
}

// --- products ---

// Packed panels: [panel][inner][kPanel], columns beyond the last filled with zeros.
Index packed_floats(Index inner, Index columns) { return inner * round_up(columns, kPanel); }

// rows[i][j] -> columns[j][i].
void transpose(const Vec (&row)[8], Vec (&column)[8]) {
  Vec pairs[8];
  Vec quads[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = __builtin_shufflevector(row[2 * i], row[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[2 * i + 1] = __builtin_shufflevector(row[2 * i], row[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Vec& upper = pairs[i / 2 * 4 + i % 2];
    const Vec& lower = pairs[i / 2 * 4 + i % 2 + 2];
    quads[i / 2 * 4 + i % 2 * 2] = __builtin_shufflevector(upper, lower, 0, 1, 8, 9, 4, 5, 12, 13);
    quads[i / 2 * 4 + i % 2 * 2 + 1] = __builtin_shufflevector(upper, lower, 2, 3, 10, 11, 6, 7, 14, 15);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    column[i] = __builtin_shufflevector(quads[i], quads[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    column[i + 4] = __builtin_shufflevector(quads[i], quads[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// Columns of B are rows of `w` [columns, inner]: what a forward pass multiplies by.
void pack_transposed(const float* w, Index columns, Index inner, float* out) {
  for (Index c = 0; c < columns; c += kPanel, out += inner * kPanel) {
    const Index width = std::min<Index>(kPanel, columns - c);
    const Index whole = width == kPanel ? inner / 8 * 8 : 0;
    for (Index k = 0; k < whole; k += 8) {
      for (Index half = 0; half < kPanel; half += 8) {
        Vec row[8];
        Vec column[8];
        for (Index j = 0; j < 8; ++j) row[j] = load(w + (c + half + j) * inner + k);
        transpose(row, column);
        for (Index j = 0; j < 8; ++j) store(out + (k + j) * kPanel + half, column[j]);
      }
    }
    for (Index k = whole; k < inner; ++k)
      for (Index j = 0; j < kPanel; ++j) out[k * kPanel + j] = j < width ? w[(c + j) * inner + k] : 0.0F;
  }
}

// One panel: columns [c, c + kPanel) of b [inner, columns].
void pack_panel(const float* b, Index columns, Index inner, Index c, float* out) {
  const Index width = std::min<Index>(kPanel, columns - c);
  for (Index k = 0; k < inner; ++k, out += kPanel) {
    const float* from = b + k * columns + c;
    if (width == kPanel) {
      std::memcpy(out, from, sizeof(float) * kPanel);
    } else {
      std::copy(from, from + width, out);
      std::fill(out + width, out + kPanel, 0.0F);
    }
  }
}

void pack(const float* b, Index columns, Index inner, float* out) {
  for (Index c = 0; c < columns; c += kPanel, out += inner * kPanel) pack_panel(b, columns, inner, c, out);
}

// A(i, k) = data[i * row + k * inner].
struct Strided {
  const float* data;
  Index row;
  Index inner;
};

struct Tile {
  Vec sum[kTileRows][2];
};

// sum += A B over `depth` inner indices; rows beyond the last repeat it, their sums are not stored.
// Not inlined: among other code the compiler does not keep all sums in registers, at half the speed.
[[gnu::noinline]] void multiply(const Strided& a, Index rows, const float* __restrict b, Index depth, Tile& tile) {
  const float* at[kTileRows];
  for (Index i = 0; i < kTileRows; ++i) at[i] = a.data + std::min(i, rows - 1) * a.row;
  Vec sum[kTileRows][2];
  for (int i = 0; i < kTileRows; ++i) {
    sum[i][0] = tile.sum[i][0];
    sum[i][1] = tile.sum[i][1];
  }
  const Index inner = a.inner;
  Index offset = 0;
  for (Index k = 0; k < depth; ++k, b += kPanel, offset += inner) {
    const Vec left = load(b);
    const Vec right = load(b + 8);
#pragma GCC unroll 6
    for (int i = 0; i < kTileRows; ++i) {
      const Vec x = splat(at[i][offset]);
      sum[i][0] += x * left;
      sum[i][1] += x * right;
    }
  }
  for (int i = 0; i < kTileRows; ++i) {
    tile.sum[i][0] = sum[i][0];
    tile.sum[i][1] = sum[i][1];
  }
}

void store_tile(const Tile& tile, Index rows, Index width, float* out, Index stride) {
  for (Index i = 0; i < rows; ++i, out += stride) {
    if (width == kPanel) {
      store(out, tile.sum[i][0]);
      store(out + 8, tile.sum[i][1]);
    } else {
      float row[kPanel];
      store(row, tile.sum[i][0]);
      store(row + 8, tile.sum[i][1]);
      std::copy(row, row + width, out);
    }
  }
}

void load_tile(const float* from, Index rows, Index width, Index stride, Tile& tile) {
  for (Index i = 0; i < kTileRows; ++i) {
    float row[kPanel] = {};
    if (i < rows) std::copy(from + i * stride, from + i * stride + width, row);
    tile.sum[i][0] = load(row);
    tile.sum[i][1] = load(row + 8);
  }
}

// out [rows, columns] = activation(A [rows, inner] B + bias), with B packed.
void product(const Strided& a, Index rows, const float* packed, Index inner, Index columns, const float* bias,
             Activation activation, float* out) {
  for (Index c = 0; c < columns; c += kPanel, packed += inner * kPanel) {
    const Index width = std::min<Index>(kPanel, columns - c);
    float start[kPanel] = {};
    if (bias != nullptr) std::copy(bias + c, bias + c + width, start);
    for (Index r = 0; r < rows; r += kTileRows) {
      const Index height = std::min<Index>(kTileRows, rows - r);
      Tile tile;
      for (auto& sum : tile.sum) {
        sum[0] = load(start);
        sum[1] = load(start + 8);
      }
      multiply({a.data + r * a.row, a.row, a.inner}, height, packed, inner, tile);
      for (Index i = 0; i < height; ++i) {
        tile.sum[i][0] = activate(activation, tile.sum[i][0]);
        tile.sum[i][1] = activate(activation, tile.sum[i][1]);
      }
      store_tile(tile, height, width, out + r * columns + c, columns);
    }
  }
}

// --- sharing out ---

std::size_t multiply_adds(const MlpShape& shape, int rows) {
  return shape.parameter_floats() * static_cast<std::size_t>(rows);
}

struct Block {
  Index begin;
  Index count;
};

// Rows of one task: many use a packed panel often, few let two threads finish together. A row's bits are the same.
Index block_rows(int rows) { return std::clamp<Index>(round_up(rows / 16, kTileRows), 3 * kTileRows, 8 * kTileRows); }

Block block_of(int task, int rows) {
  const Index size = block_rows(rows);
  const Index begin = static_cast<Index>(task) * size;
  return {begin, std::min<Index>(size, rows - begin)};
}

int blocks(int rows) { return static_cast<int>(round_up(rows, block_rows(rows)) / block_rows(rows)); }

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
    pack_transposed(weights.weight[l], width(l + 1), width(l), next);
    next += packed_floats(width(l), width(l + 1));
  }
  const Index widest = *std::max_element(shape.widths.begin(), shape.widths.end());

  share(blocks(rows), multiply_adds(shape, rows), [&](int task) {
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
      product({from, width(l), 1}, block.count, panels, width(l), width(l + 1), weights.bias[l],
              shape.after(static_cast<int>(l)), to);
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
  for (std::size_t l = 0; l < layers; ++l) deltas += most * width(l + 1);
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
    place += most * width(l + 1);
    if (l >= lowest) {
      panels[l] = next;
      pack(weights.weight[l], width(l), width(l + 1), next);
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
    first_task[l + 1] = first_task[l] + static_cast<int>(round_up(width(l), kGroup) / kGroup);
    if (l + 1 < layers) target[l + 1] = target[l] + (width(l) + 1) * width(l + 1);
  }

  // A chunk of rows at a time, so that its deltas are still in the cache when the weights' gradients need them.
  for (Index start = 0; start < rows; start += kChunk) {
    const int chunk = static_cast<int>(std::min<Index>(kChunk, rows - start));
    // Rows are independent on the way down.
    share(blocks(chunk), multiply_adds(shape, chunk), [&](int task) {
      const Block block = block_of(task, chunk);
      const Index row = start + block.begin;
      const float* grad = grad_out + row * width(layers);
      for (std::size_t l = layers; l-- > 0;) {
        float* const own = delta[l] + block.begin * width(l + 1);
        derivatives(shape.after(static_cast<int>(l)), grad, output[l] + row * width(l + 1), block.count * width(l + 1),
                    own);
        if (l < lowest) break;
        // The gradient of this layer's input goes where the next delta will be formed in place.
        float* const to = l == 0 ? grads.x + row * width(0) : delta[l - 1] + block.begin * width(l);
        product({own, width(l + 1), 1}, block.count, panels[l], width(l + 1), width(l), nullptr, Activation::kIdentity,
                to);
        grad = to;
      }
    });
    if (grads.parameters == nullptr) continue;

    share(first_task[layers], multiply_adds(shape, chunk), [&](int task) {
      thread_local Scratch panel;
      float* const b = panel.floats(static_cast<std::size_t>(kDepth) * kGroup);
      std::size_t l = 0;
      while (task >= first_task[l + 1]) ++l;
      const Index inputs = width(l);
      const Index outputs = width(l + 1);
      const Index first = static_cast<Index>(task - first_task[l]) * kGroup;
      const Index end = std::min(first + kGroup, inputs);
      float* const weight = target[l];
      for (Index begin = 0; begin < chunk; begin += kDepth) {
        const Index depth = std::min<Index>(kDepth, chunk - begin);
        for (Index c = first; c < end; c += kPanel)
          pack_panel(input[l] + (start + begin) * inputs, inputs, depth, c, b + (c - first) * kDepth);
        for (Index o = 0; o < outputs; o += kTileRows) {
          const Index height = std::min<Index>(kTileRows, outputs - o);
          for (Index c = first; c < end; c += kPanel) {
            const Index columns = std::min<Index>(kPanel, end - c);
            Tile tile{};
            if (start + begin > 0) load_tile(weight + o * inputs + c, height, columns, inputs, tile);
            multiply({delta[l] + begin * outputs + o, 1, outputs}, height, b + (c - first) * kDepth, depth, tile);
            store_tile(tile, height, columns, weight + o * inputs + c, inputs);
          }
        }
      }
      if (first > 0) return;
      float* const bias = weight + outputs * inputs;
      if (start == 0) std::fill(bias, bias + outputs, 0.0F);
      for (Index r = 0; r < chunk; ++r)
        for (Index o = 0; o < outputs; ++o) bias[o] += delta[l][r * outputs + o];
    });
  }
}

}  // namespace slipstream
