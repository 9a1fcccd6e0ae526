// The loops of cells.hpp for one width of registers; included where the compiler may use them (see mlp_tiles_impl.hpp).
#pragma once

#include "kernels/cells.hpp"
#include "kernels/mlp_tiles_impl.hpp"

namespace slipstream {
namespace {

template <int kLanes>
struct CellKernel {
  using Vec = typename Register<kLanes>::Vec;

  static Vec tanh(Vec x) { return Kernel<kLanes, 1, 1>::tanh(x); }
  static Vec sigmoid(Vec x) { return 0.5F * tanh(0.5F * x) + 0.5F; }

  // A product rounded before it is added to another: which of two a compiler would fuse is its own choice.
  static Vec rounded(Vec product) {
#if defined(__x86_64__)
    asm("" : "+v"(product));
#endif
    return product;
  }

  // Of `count` units, which are all lanes where kWhole. All of them are taken before any is computed with: a compiler
  // fuses products with sums only where nothing branches in between.
  template <bool kWhole>
  static Vec take(const float* from, [[maybe_unused]] Index count) {
    if constexpr (kWhole) {
      return load<Vec>(from);
    } else {
      float lanes[kLanes] = {};
      std::memcpy(lanes, from, sizeof(float) * static_cast<std::size_t>(count));
      return load<Vec>(lanes);
    }
  }
  template <bool kWhole>
  static void put(Vec v, [[maybe_unused]] Index count, float* to) {
    if constexpr (kWhole) {
      store(to, v);
    } else {
      float lanes[kLanes];
      store(lanes, v);
      std::memcpy(to, lanes, sizeof(float) * static_cast<std::size_t>(count));
    }
  }

  // --- gru (Cho et al. 2014), as torch has it: gates reset, update, new ---

  template <bool kWhole>
  static void gru_forward_at(Index i, Index count, Index size, const CellSums& sums, float* hidden, float* kept) {
    const auto of = [&](const float* from, Index gate) { return take<kWhole>(from + gate * size + i, count); };
    const Vec reset_sum = of(sums.input, 0) + of(sums.hidden, 0);
    const Vec update_sum = of(sums.input, 1) + of(sums.hidden, 1);
    const Vec given = of(sums.input, 2);
    const Vec own = of(sums.hidden, 2);
    const Vec before = of(hidden, 0);
    const Vec reset = sigmoid(reset_sum);
    const Vec update = sigmoid(update_sum);
    const Vec fresh = tanh(reset * own + given);
    put<kWhole>(update * (before - fresh) + fresh, count, hidden + i);
    put<kWhole>(reset, count, kept + i);
    put<kWhole>(update, count, kept + size + i);
    put<kWhole>(own, count, kept + 2 * size + i);
    put<kWhole>(fresh, count, kept + 3 * size + i);
  }

  static void gru_forward(Index size, const CellSums& sums, float* hidden, float*, float* kept) {
    Index i = 0;
    for (; i + kLanes <= size; i += kLanes) gru_forward_at<true>(i, kLanes, size, sums, hidden, kept);
    if (i < size) gru_forward_at<false>(i, size - i, size, sums, hidden, kept);
  }

  template <bool kWhole>
  static void gru_backward_at(Index i, Index count, Index size, const float* grad, const float* later, float* carried,
                              const CellKept& kept, const CellDeltas& deltas) {
    const auto of = [&](const float* from, Index gate) { return take<kWhole>(from + gate * size + i, count); };
    const Vec reset = of(kept.activations, 0);
    const Vec update = of(kept.activations, 1);
    const Vec own = of(kept.activations, 2);
    const Vec fresh = of(kept.activations, 3);
    const Vec before = of(kept.hidden, 0);
    const Vec by_hidden = of(grad, 0) + of(later, 0) + of(carried, 0);
    const Vec by_update = by_hidden * (before - fresh) * (update * (1.0F - update));
    const Vec by_fresh = by_hidden * (1.0F - update) * (1.0F - fresh * fresh);
    const Vec by_reset = by_fresh * own * (reset * (1.0F - reset));
    put<kWhole>(by_hidden * update, count, carried + i);
    put<kWhole>(by_reset, count, deltas.input + i);
    put<kWhole>(by_update, count, deltas.input + size + i);
    put<kWhole>(by_fresh, count, deltas.input + 2 * size + i);
    put<kWhole>(by_reset, count, deltas.hidden + i);
    put<kWhole>(by_update, count, deltas.hidden + size + i);
    put<kWhole>(by_fresh * reset, count, deltas.hidden + 2 * size + i);
  }

  static void gru_backward(Index size, const float* grad, const float* later, float* carried, const CellKept& kept,
                           const CellDeltas& deltas) {
    Index i = 0;
    for (; i + kLanes <= size; i += kLanes) gru_backward_at<true>(i, kLanes, size, grad, later, carried, kept, deltas);
    if (i < size) gru_backward_at<false>(i, size - i, size, grad, later, carried, kept, deltas);
  }

  // --- lstm (Hochreiter and Schmidhuber 1997), as torch has it: gates input, forget, new, output ---

  template <bool kWhole>
  static void lstm_forward_at(Index i, Index count, Index size, const CellSums& sums, float* hidden, float* cell,
                              float* kept) {
    const auto of = [&](const float* from, Index gate) { return take<kWhole>(from + gate * size + i, count); };
    const Vec input_sum = of(sums.input, 0) + of(sums.hidden, 0);
    const Vec forget_sum = of(sums.input, 1) + of(sums.hidden, 1);
    const Vec fresh_sum = of(sums.input, 2) + of(sums.hidden, 2);
    const Vec output_sum = of(sums.input, 3) + of(sums.hidden, 3);
    const Vec before = of(cell, 0);
    const Vec input = sigmoid(input_sum);
    const Vec forget = sigmoid(forget_sum);
    const Vec fresh = tanh(fresh_sum);
    const Vec output = sigmoid(output_sum);
    const Vec after = forget * before + rounded(input * fresh);
    const Vec shown = tanh(after);
    put<kWhole>(after, count, cell + i);
    put<kWhole>(output * shown, count, hidden + i);
    put<kWhole>(input, count, kept + i);
    put<kWhole>(forget, count, kept + size + i);
    put<kWhole>(fresh, count, kept + 2 * size + i);
    put<kWhole>(output, count, kept + 3 * size + i);
    put<kWhole>(shown, count, kept + 4 * size + i);
  }

  static void lstm_forward(Index size, const CellSums& sums, float* hidden, float* cell, float* kept) {
    Index i = 0;
    for (; i + kLanes <= size; i += kLanes) lstm_forward_at<true>(i, kLanes, size, sums, hidden, cell, kept);
    if (i < size) lstm_forward_at<false>(i, size - i, size, sums, hidden, cell, kept);
  }

  template <bool kWhole>
  static void lstm_backward_at(Index i, Index count, Index size, const float* grad, const float* later, float* carried,
                               const CellKept& kept, const CellDeltas& deltas) {
    const auto of = [&](const float* from, Index gate) { return take<kWhole>(from + gate * size + i, count); };
    const Vec input = of(kept.activations, 0);
    const Vec forget = of(kept.activations, 1);
    const Vec fresh = of(kept.activations, 2);
    const Vec output = of(kept.activations, 3);
    const Vec shown = of(kept.activations, 4);
    const Vec before = of(kept.cell, 0);
    const Vec by_later = of(carried, 0);
    const Vec by_hidden = of(grad, 0) + of(later, 0);
    const Vec by_cell = by_hidden * output * (1.0F - shown * shown) + by_later;
    put<kWhole>(by_cell * forget, count, carried + i);
    put<kWhole>(by_cell * fresh * (input * (1.0F - input)), count, deltas.hidden + i);
    put<kWhole>(by_cell * before * (forget * (1.0F - forget)), count, deltas.hidden + size + i);
    put<kWhole>(by_cell * input * (1.0F - fresh * fresh), count, deltas.hidden + 2 * size + i);
    put<kWhole>(by_hidden * shown * (output * (1.0F - output)), count, deltas.hidden + 3 * size + i);
  }

  static void lstm_backward(Index size, const float* grad, const float* later, float* carried, const CellKept& kept,
                            const CellDeltas& deltas) {
    Index i = 0;
    for (; i + kLanes <= size; i += kLanes) lstm_backward_at<true>(i, kLanes, size, grad, later, carried, kept, deltas);
    if (i < size) lstm_backward_at<false>(i, size - i, size, grad, later, carried, kept, deltas);
  }

  static constexpr Cells cells() {
    return {{3, 1, 4, gru_forward, gru_backward}, {4, 2, 5, lstm_forward, lstm_backward}};
  }
};

}  // namespace
}  // namespace slipstream
