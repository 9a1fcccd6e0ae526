// What mlp_tiles.cpp and mlp_tiles_16.cpp compile, each for its own processors: products and plain activations.
//
// All of it is local to the file that includes it, and it calls nothing of the standard library but memcpy: of two
// inline functions of one name the linker keeps one, and that must not be the one other processors cannot run.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/mlp_tiles.hpp"

namespace slipstream {
namespace {

constexpr Index lesser(Index a, Index b) { return a < b ? a : b; }

template <int kLanes>
struct Register;

template <>
struct Register<8> {
  typedef float Vec __attribute__((vector_size(32)));           // NOLINT(modernize-use-using)
  typedef std::uint32_t Bits __attribute__((vector_size(32)));  // NOLINT(modernize-use-using)
};

template <>
struct Register<16> {
  typedef float Vec __attribute__((vector_size(64)));           // NOLINT(modernize-use-using)
  typedef std::uint32_t Bits __attribute__((vector_size(64)));  // NOLINT(modernize-use-using)
};

template <class V>
V load(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
template <class V>
void store(float* p, V v) {
  std::memcpy(p, &v, sizeof(v));
}

// rows[i][j] -> columns[j][i].
using Vec8 = Register<8>::Vec;

void transpose(const Vec8 (&row)[8], Vec8 (&column)[8]) {
  Vec8 pairs[8];
  Vec8 quads[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = __builtin_shufflevector(row[2 * i], row[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[2 * i + 1] = __builtin_shufflevector(row[2 * i], row[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Vec8& upper = pairs[i / 2 * 4 + i % 2];
    const Vec8& lower = pairs[i / 2 * 4 + i % 2 + 2];
    quads[i / 2 * 4 + i % 2 * 2] = __builtin_shufflevector(upper, lower, 0, 1, 8, 9, 4, 5, 12, 13);
    quads[i / 2 * 4 + i % 2 * 2 + 1] = __builtin_shufflevector(upper, lower, 2, 3, 10, 11, 6, 7, 14, 15);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    column[i] = __builtin_shufflevector(quads[i], quads[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    column[i + 4] = __builtin_shufflevector(quads[i], quads[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// Tiles of kRows rows and at most kMost registers of kLanes columns.
template <int kLanes, int kRows, int kMost>
struct Kernel {
  using Vec = typename Register<kLanes>::Vec;
  using Bits = typename Register<kLanes>::Bits;
  static constexpr Index kHeight = kRows;
  static constexpr Index kWidth = kLanes;
  static constexpr Index kPanel = kMost * kLanes;
  static constexpr Index kDepth = 256;  // inner indices at a time
  // And rows of a weight's gradient: beside a panel the cache must hold a line for each of them.
  static constexpr Index kFewer = 128;
  static constexpr Index kGroup = 64;

  static Vec splat(float x) { return x - Vec{}; }

  // In a register: AVX-512 can spread a number while it multiplies, at half the rate.
  static void keep([[maybe_unused]] Vec& x) {
#if defined(__AVX512F__)
    asm("" : "+v"(x));
#endif
  }

  // --- elementwise ---

  // For |y| below 87.
  static Vec expm1(Vec y) {
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
    return p * scale + (scale - 1.0F);
  }

  // tanh = e / (e + 2) with e = expm1(2|x|): accurate to a few ulp also near 0, because expm1 is.
  static Vec tanh(Vec x) {
    const Bits sign = reinterpret_cast<Bits>(x) & 0x80000000U;
    Vec y = 2.0F * reinterpret_cast<Vec>(reinterpret_cast<Bits>(x) ^ sign);
    y = y < 20.0F ? y : (y == y ? splat(20.0F) : y);  // beyond, tanh is 1 in float32; NaN stays NaN
    const Vec e = expm1(y);
    const Vec t = e / (e + 2.0F);
    return reinterpret_cast<Vec>(reinterpret_cast<Bits>(t) | sign);
  }

  static Vec activate(Activation activation, Vec x) {
    switch (activation) {
      case Activation::kIdentity:
        return x;
      case Activation::kRelu:
        return x > 0.0F ? x : (x == x ? Vec{} : x);
      case Activation::kTanh:
        return tanh(x);
      default:  // Finisher's
        return x;
    }
  }

  static Vec derivative(Activation activation, Vec grad, Vec y) {
    switch (activation) {
      case Activation::kIdentity:
        return grad;
      case Activation::kRelu:
        return y > 0.0F ? grad : Vec{};
      case Activation::kTanh:
        return grad * (1.0F - y * y);
      default:
        return grad;
    }
  }

  static void derivatives(Activation activation, Index rows, Index columns, const Rows<const float>& grad,
                          const Rows<const float>& y, const Rows<float>& out) {
    for (Index r = 0; r < rows; ++r)
      row_derivatives(activation, columns, grad.data + r * grad.stride, y.data + r * y.stride,
                      out.data + r * out.stride);
  }

  static void row_derivatives(Activation activation, Index columns, const float* grad, const float* y, float* out) {
    Index i = 0;
    for (; i + kLanes <= columns; i += kLanes)
      store(out + i, derivative(activation, load<Vec>(grad + i), load<Vec>(y + i)));
    if (i == columns) return;
    float tail[3][kLanes] = {};
    copy(grad + i, columns - i, tail[0]);
    copy(y + i, columns - i, tail[1]);
    store(tail[2], derivative(activation, load<Vec>(tail[0]), load<Vec>(tail[1])));
    copy(tail[2], columns - i, out + i);
  }

  // --- packing ---

  static void copy(const float* from, Index count, float* to) {
    std::memcpy(to, from, sizeof(float) * static_cast<std::size_t>(count));
  }

  // Columns of a panel: as many as a tile has, or fewer where that is all that is left.
  static constexpr Index panel_of(Index left) {
    return left <= 8 ? 8 : lesser(kPanel, (left + kLanes - 1) / kLanes * kLanes);
  }

  static void pack_transposed(const float* w, Index columns, Index inner, float* out) {
    for (Index c = 0; c < columns; c += kPanel) {
      const Index panel = panel_of(columns - c);
      const Index width = lesser(panel, columns - c);
      const Index whole = width == panel ? inner / 8 * 8 : 0;
      for (Index k = 0; k < whole; k += 8) {
        for (Index part = 0; part < panel; part += 8) {
          Vec8 row[8];
          Vec8 column[8];
          for (Index j = 0; j < 8; ++j) row[j] = load<Vec8>(w + (c + part + j) * inner + k);
          transpose(row, column);
          for (Index j = 0; j < 8; ++j) store(out + (k + j) * panel + part, column[j]);
        }
      }
      for (Index k = whole; k < inner; ++k)
        for (Index j = 0; j < panel; ++j) out[k * panel + j] = j < width ? w[(c + j) * inner + k] : 0.0F;
      out += inner * panel;
    }
  }

  // Columns [c, c + panel) of b [inner, columns], of which `width` are there.
  static void pack_panel(const float* b, Index columns, Index inner, Index c, Index width, Index panel, float* out) {
    for (Index k = 0; k < inner; ++k, out += panel) {
      const float* from = b + k * columns + c;
      if (width == kPanel) {
        copy(from, kPanel, out);
      } else {
        copy(from, width, out);
        for (Index j = width; j < panel; ++j) out[j] = 0.0F;
      }
    }
  }

  static void pack(const float* b, Index columns, Index inner, float* out) {
    for (Index c = 0; c < columns; c += kPanel) {
      const Index panel = panel_of(columns - c);
      pack_panel(b, columns, inner, c, lesser(panel, columns - c), panel, out);
      out += inner * panel;
    }
  }

  // --- products ---

  static const float* row_of(const Strided& a, Index i) { return a.data + i * a.row; }
  static const float* row_of(const Gathered& a, Index i) { return a.data + a.row[i]; }
  static Index step(const Strided& a, Index k) { return k * a.inner; }
  static Index step(const Gathered& a, Index k) { return a.inner[k]; }
  static Strided from(const Strided& a, Index i, Index k) { return {row_of(a, i) + step(a, k), a.row, a.inner}; }
  static Gathered from(const Gathered& a, Index i, Index k) { return {a.data, a.row + i, a.inner + k}; }

  // out [kRows, kWide registers] = start + A B over `depth` inner indices; rows of A beyond `rows` repeat the last.
  // Not inlined: among other code the compiler does not keep all sums in registers, at half the speed.
  template <int kWide, class A>
  [[gnu::noinline]] static void multiply(const A& a, Index rows, const float* __restrict b, Index depth,
                                         const Rows<const float>& start, const Rows<float>& out) {
    const A local = a;
    const float* at[kRows];
    for (Index i = 0; i < kRows; ++i) at[i] = row_of(local, lesser(i, rows - 1));
    Vec sum[kRows][kWide];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kWide; ++j) sum[i][j] = load<Vec>(start.data + i * start.stride + j * kLanes);
    for (Index k = 0; k < depth; ++k, b += kWide * kLanes) {
      const Index offset = step(local, k);
      Vec column[kWide];
      for (int j = 0; j < kWide; ++j) column[j] = load<Vec>(b + j * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        Vec x = splat(at[i][offset]);
        keep(x);
        for (int j = 0; j < kWide; ++j) sum[i][j] += x * column[j];
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kWide; ++j) store(out.data + i * out.stride + j * kLanes, sum[i][j]);
  }

  // The same where only `rows` and `width` columns of the tile are there; of `start` as well, unless its stride is 0.
  template <int kWide, class A>
  static void multiply_part(const A& a, Index rows, Index width, const float* b, Index depth, Rows<const float> start,
                            const Rows<float>& out) {
    if (rows == kRows && width == kWide * kLanes) return multiply<kWide>(a, rows, b, depth, start, out);
    alignas(kLine) float whole[kRows * kWide * kLanes] = {};
    const Rows<float> sums{whole, kWide * kLanes};
    if (start.stride > 0) {
      for (Index i = 0; i < rows; ++i) copy(start.data + i * start.stride, width, whole + i * sums.stride);
      start = {whole, sums.stride};
    }
    multiply<kWide>(a, rows, b, depth, start, sums);
    for (Index i = 0; i < rows; ++i) copy(whole + i * sums.stride, width, out.data + i * out.stride);
  }

  static void activate_rows(Activation activation, Index rows, Index width, const Rows<float>& out) {
    if (activation == Activation::kIdentity) return;
    for (Index i = 0; i < rows; ++i) {
      float* const row = out.data + i * out.stride;
      Index j = 0;
      for (; j + kLanes <= width; j += kLanes) store(row + j, activate(activation, load<Vec>(row + j)));
      if (j == width) continue;
      float tail[kLanes] = {};
      copy(row + j, width - j, tail);
      store(tail, activate(activation, load<Vec>(tail)));
      copy(tail, width - j, row + j);
    }
  }

  // One panel of a product, of which `width` columns are wanted.
  template <int kWide = kMost, class A>
  static void product_panel(const A& a, Index rows, const float* b, Index inner, Index width, const float* bias,
                            Activation activation, bool add, const Rows<float>& out) {
    if constexpr (kWide > 1) {
      if (width <= (kWide - 1) * kLanes)
        return product_panel<kWide - 1>(a, rows, b, inner, width, bias, activation, add, out);
    } else if constexpr (kLanes > 8) {
      if (width <= 8) return Kernel<8, kRows, 1>::product_panel(a, rows, b, inner, width, bias, activation, add, out);
    }
    alignas(kLine) float first[kWide * kLanes] = {};
    if (bias != nullptr) copy(bias, width, first);
    for (Index k = 0; k < inner; k += kDepth) {
      const Index depth = lesser(kDepth, inner - k);
      for (Index r = 0; r < rows; r += kRows) {
        const Index height = lesser(kRows, rows - r);
        const Rows<float> to{out.data + r * out.stride, out.stride};
        multiply_part<kWide>(from(a, r, k), height, width, b + k * kWide * kLanes, depth,
                             sums_so_far(add || k > 0, to, first), to);
        if (k + depth == inner) activate_rows(activation, height, width, to);
      }
    }
  }

  static Rows<const float> sums_so_far(bool are_there, const Rows<float>& sums, const float* first) {
    return are_there ? Rows<const float>{sums.data, sums.stride} : Rows<const float>{first, 0};
  }

  static void product(const Strided& a, Index rows, const float* packed, Index inner, Index columns, const float* bias,
                      Activation activation, const Rows<float>& out) {
    any_product(a, rows, packed, inner, columns, bias, activation, false, out);
  }

  static void gathered(const Gathered& a, Index rows, const float* packed, Index inner, Index columns,
                       const float* bias, Activation activation, bool add, const Rows<float>& out) {
    any_product(a, rows, packed, inner, columns, bias, activation, add, out);
  }

  template <class A>
  static void any_product(const A& a, Index rows, const float* packed, Index inner, Index columns, const float* bias,
                          Activation activation, bool add, const Rows<float>& out) {
    for (Index c = 0; c < columns; c += kPanel, packed += inner * kPanel)
      product_panel(a, rows, packed, inner, lesser(kPanel, columns - c), bias == nullptr ? nullptr : bias + c,
                    activation, add, {out.data + c, out.stride});
  }

  template <int kWide = kMost>
  static void gradient_tile(const Strided& a, Index rows, Index width, const float* b, Index depth, bool add,
                            const Rows<float>& out) {
    if constexpr (kWide > 1) {
      if (width <= (kWide - 1) * kLanes) return gradient_tile<kWide - 1>(a, rows, width, b, depth, add, out);
    } else if constexpr (kLanes > 8) {
      if (width <= 8) return Kernel<8, kRows, 1>::gradient_tile(a, rows, width, b, depth, add, out);
    }
    alignas(kLine) static constexpr float kNothing[kWide * kLanes] = {};
    multiply_part<kWide>(a, rows, width, b, depth, sums_so_far(add, out, kNothing), out);
  }

  static void gradient(const Strided& a, Index rows, const float* b, Index inner, Index columns, Index begin, Index end,
                       bool add, float* out) {
    alignas(kLine) float packed[kFewer * kPanel];
    for (Index k = 0; k < inner; k += kFewer) {
      const Index depth = lesser(kFewer, inner - k);
      for (Index c = begin; c < end; c += kPanel) {
        const Index panel = panel_of(end - c);
        pack_panel(b + k * columns, columns, depth, c, lesser(panel, end - c), panel, packed);
        for (Index r = 0; r < rows; r += kRows)
          gradient_tile(from(a, r, k), lesser(kRows, rows - r), lesser(kPanel, end - c), packed, depth, add || k > 0,
                        {out + r * columns + c, columns});
      }
    }
  }
};

}  // namespace
}  // namespace slipstream
