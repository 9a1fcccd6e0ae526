// What follows a product in hidden layers with a norm, a skip or a smooth activation, for the same two files.
//
// Sums along a row have sixteen partial sums whatever the width of a register, added up in one order.
#pragma once

#include "kernels/mlp_tiles_impl.hpp"

namespace slipstream {
namespace {

template <class Of>
struct Finisher {
  using Vec = typename Of::Vec;
  using Bits = typename Of::Bits;
  static constexpr Index kLanes = Of::kWidth;
  static constexpr Index kPartial = 16;
  static constexpr float kEps = 1e-5F;  // torch's, added to the variance

  static Vec splat(float x) { return Of::splat(x); }

  // Numbers [i, i + kLanes) of a row of `columns`, with `fill` where it has ended.
  static Vec take(const float* row, Index i, Index columns, float fill = 0.0F) {
    if (i + kLanes <= columns) return load<Vec>(row + i);
    float tail[kLanes];
    store(tail, splat(fill));
    Of::copy(row + i, columns - i, tail);
    return load<Vec>(tail);
  }

  static void put(float* row, Index i, Index columns, Vec x) {
    if (i + kLanes <= columns) return store(row + i, x);
    float tail[kLanes];
    store(tail, x);
    Of::copy(tail, columns - i, row + i);
  }

  struct Sum {
    Vec partial[kPartial / kLanes] = {};

    Vec& at(Index i) { return partial[i / kLanes % (kPartial / kLanes)]; }
    [[nodiscard]] float total() const {
      float all[kPartial];
      for (Index j = 0; j < kPartial / kLanes; ++j) store(all + j * kLanes, partial[j]);
      for (Index half = kPartial / 2; half > 0; half /= 2)
        for (Index j = 0; j < half; ++j) all[j] += all[j + half];
      return all[0];
    }
  };

  // --- activations ---

  static Vec clamped(Vec x, float limit) {  // NaN stays NaN
    x = x > limit ? splat(limit) : x;
    return x < -limit ? splat(-limit) : x;
  }

  // 1 / (1 + exp(-x)), without cancellation on either side of 0.
  static Vec sigmoid(Vec x) {
    const Vec size = x < 0.0F ? -x : x;
    const Vec e = Of::expm1(clamped(size, 86.0F));  // exp|x| - 1
    const Vec low = size > 86.0F ? Vec{} : splat(1.0F);
    return (x < 0.0F ? low : e + 1.0F) / (e + 2.0F);
  }

  static constexpr float kGeluLinear = 1.5957691216057308F;  // 2 sqrt(2 / pi)
  static constexpr float kGeluCubic = 0.044715F * kGeluLinear;

  // Beyond 32, x times this is 0 or x.
  static Vec gelu_gate(Vec x) {
    const Vec near = clamped(x, 32.0F);
    return sigmoid(near * (kGeluCubic * (near * near) + kGeluLinear));
  }

  static Vec elu_below(Vec x) { return Of::expm1(x < -40.0F ? splat(-40.0F) : (x > 0.0F ? Vec{} : x)); }

  static Vec activate(Activation activation, Vec x) {
    switch (activation) {
      case Activation::kElu:
        return x > 0.0F ? x : elu_below(x);
      case Activation::kSilu:
        return x * sigmoid(x);
      case Activation::kGelu:
        return x * gelu_gate(x);
      default:
        return Of::activate(activation, x);
    }
  }

  // The derivative at x.
  static Vec slope(Activation activation, Vec x) {
    switch (activation) {
      case Activation::kElu:
        return x > 0.0F ? splat(1.0F) : elu_below(x) + 1.0F;
      case Activation::kSilu: {
        const Vec gate = sigmoid(x);
        return gate * (x * (1.0F - gate) + 1.0F);
      }
      case Activation::kGelu: {
        const Vec gate = gelu_gate(x);
        const Vec near = clamped(x, 32.0F);
        const Vec steep = near * (3.0F * kGeluCubic * (near * near) + kGeluLinear);
        return steep * (gate * (1.0F - gate)) + gate;
      }
      default:
        return Of::derivative(activation, splat(1.0F), Of::activate(activation, x));
    }
  }

  // --- rows ---

  struct Moments {
    float mean;
    float scale;  // 1 / deviation
  };

  static Moments moments(const float* z, Index columns) {
    Sum sum;
    for (Index i = 0; i < columns; i += kLanes) sum.at(i) += take(z, i, columns);
    const float mean = sum.total() / static_cast<float>(columns);
    Sum squares;
    for (Index i = 0; i < columns; i += kLanes) {
      const Vec off = take(z, i, columns, mean) - mean;
      squares.at(i) += off * off;
    }
    return {mean, 1.0F / __builtin_sqrtf(squares.total() / static_cast<float>(columns) + kEps)};
  }

  template <Activation kOf>
  static void finish_row(const Finish& what, Index columns, const float* z, const float* skip, float* out) {
    const bool normed = what.gain != nullptr;
    const Moments of = normed ? moments(z, columns) : Moments{};
    for (Index i = 0; i < columns; i += kLanes) {
      Vec x = take(z, i, columns);
      if (normed) x = (x - of.mean) * of.scale * take(what.gain, i, columns) + take(what.shift, i, columns);
      x = activate(kOf, x);
      if (skip != nullptr) x += take(skip, i, columns);
      put(out, i, columns, x);
    }
  }

  template <Activation kOf>
  static void unfinish_row(const Finish& what, Index columns, const float* grad, const float* z, float* by_product,
                           float* by_gain, float* by_shift) {
    if (what.gain == nullptr) {
      for (Index i = 0; i < columns; i += kLanes)
        put(by_product, i, columns, slope(kOf, take(z, i, columns)) * take(grad, i, columns));
      return;
    }
    const Moments of = moments(z, columns);
    Sum sum;
    Sum along;
    for (Index i = 0; i < columns; i += kLanes) {
      const Vec x = (take(z, i, columns, of.mean) - of.mean) * of.scale;
      const Vec gain = take(what.gain, i, columns);
      const Vec after = slope(kOf, x * gain + take(what.shift, i, columns)) * take(grad, i, columns);
      if (by_gain != nullptr) {
        put(by_gain, i, columns, after * x);
        put(by_shift, i, columns, after);
      }
      const Vec before = after * gain;
      put(by_product, i, columns, before);
      sum.at(i) += before;
      along.at(i) += before * x;
    }
    const float mean = sum.total() / static_cast<float>(columns);
    const float mean_along = along.total() / static_cast<float>(columns);
    for (Index i = 0; i < columns; i += kLanes) {
      const Vec x = (take(z, i, columns) - of.mean) * of.scale;
      put(by_product, i, columns, (take(by_product, i, columns) - mean - x * mean_along) * of.scale);
    }
  }

  template <class T>
  static T* row_of(const Rows<T>& rows, Index r) {
    return rows.data == nullptr ? nullptr : rows.data + r * rows.stride;
  }

  template <Activation kOf>
  static void finish_by(const Finish& what, Index rows, Index columns, const Rows<const float>& z,
                        const Rows<const float>& skip, const Rows<float>& out) {
    for (Index r = 0; r < rows; ++r) finish_row<kOf>(what, columns, row_of(z, r), row_of(skip, r), row_of(out, r));
  }

  template <Activation kOf>
  static void unfinish_by(const Finish& what, Index rows, Index columns, const Rows<const float>& grad,
                          const Rows<const float>& z, const FinishGradients& out) {
    for (Index r = 0; r < rows; ++r)
      unfinish_row<kOf>(what, columns, row_of(grad, r), row_of(z, r), row_of(out.product, r), row_of(out.gain, r),
                        row_of(out.shift, r));
  }

  // One loop for each activation: a choice within it would be made for every register.
  static void finish(const Finish& what, Index rows, Index columns, const Rows<const float>& z,
                     const Rows<const float>& skip, const Rows<float>& out) {
    constexpr decltype(&finish) kBy[] = {finish_by<Activation::kIdentity>, finish_by<Activation::kRelu>,
                                         finish_by<Activation::kTanh>,     finish_by<Activation::kElu>,
                                         finish_by<Activation::kSilu>,     finish_by<Activation::kGelu>};
    kBy[static_cast<int>(what.activation)](what, rows, columns, z, skip, out);
  }

  static void unfinish(const Finish& what, Index rows, Index columns, const Rows<const float>& grad,
                       const Rows<const float>& z, const FinishGradients& out) {
    constexpr decltype(&unfinish) kBy[] = {unfinish_by<Activation::kIdentity>, unfinish_by<Activation::kRelu>,
                                           unfinish_by<Activation::kTanh>,     unfinish_by<Activation::kElu>,
                                           unfinish_by<Activation::kSilu>,     unfinish_by<Activation::kGelu>};
    kBy[static_cast<int>(what.activation)](what, rows, columns, grad, z, out);
  }
};

template <class Of>
constexpr Tiles tiles_by() {
  return {Of::kHeight,           Of::kWidth,   Of::kGroup,   Of::pack_transposed, Of::pack,
          Of::product,           Of::gathered, Of::gradient, Of::derivatives,     Finisher<Of>::finish,
          Finisher<Of>::unfinish};
}

}  // namespace
}  // namespace slipstream
