// Recurrent cells against plain loops in float64 and their differences, and their contract on bits. The same code as it
// is shipped (optimised, with fused multiply-adds) is tested in tests/nets/test_cell.py.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

#include "allocations.hpp"
#include "check.hpp"
#include "kernels/cells.hpp"
#include "kernels/recurrent.hpp"
#include "kernels/share.hpp"
#include "numbers.hpp"

using namespace slipstream;
using namespace slipstream::test;

namespace {

using Lengths = std::vector<std::int64_t>;

constexpr CellKind kBoth[] = {CellKind::kGru, CellKind::kLstm};

// A cell, and rows for it.
struct Case {
  RecurrentShape shape;
  Floats parameters;
  Lengths lengths;
  Floats x, before;

  Case(CellKind kind, int inputs, int size, Lengths of, unsigned seed = 1)
      : shape{kind, inputs, size},
        parameters(numbers(shape.parameter_floats(), seed, 1.5F / std::sqrt(static_cast<float>(size)))),
        lengths(std::move(of)),
        x(numbers(rows() * static_cast<std::size_t>(inputs), seed + 1, 2.0F)),
        before(numbers(rows() * memory(), seed + 2)) {}

  [[nodiscard]] std::size_t rows() const {
    return static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
  }
  [[nodiscard]] std::size_t memory() const { return static_cast<std::size_t>(shape.memory()); }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(shape.size); }
  [[nodiscard]] RecurrentWeights weights() const {
    const auto gates = static_cast<std::size_t>(shape.gates()) * size();
    const float* const input = parameters.data();
    const float* const hidden = input + gates * static_cast<std::size_t>(shape.inputs);
    const float* const bias = hidden + gates * size();
    return {input, hidden, bias, bias + gates};
  }
  [[nodiscard]] Sequences sequences() const {
    return {x.data(), before.data(), static_cast<int>(rows()), lengths.data(), static_cast<int>(lengths.size())};
  }
};

struct Forward {
  Floats kept, out, after;
};

Forward forward(const Case& c) {
  Forward pass{Floats(c.shape.kept_floats(c.rows()), kNan), Floats(c.rows() * c.size(), kNan),
               Floats(c.lengths.size() * c.memory(), kNan)};
  recurrent_forward(c.shape, c.weights(), c.sequences(), pass.kept.data(), pass.out.data(), pass.after.data());
  return pass;
}

struct Gradients {
  Floats parameters, x, before;
};

Gradients backward(const Case& c, const Forward& pass, const Floats& grad_out, const Floats& grad_after) {
  Gradients grads{Floats(c.parameters.size(), kNan), Floats(c.x.size(), kNan), Floats(c.before.size(), kNan)};
  recurrent_backward(c.shape, c.weights(), c.sequences(), pass.kept.data(), grad_out.data(), grad_after.data(),
                     {grads.parameters.data(), grads.x.data(), grads.before.data()});
  return grads;
}

// --- the slow reference ---

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

struct Slow {
  Doubles out, after;
};

// torch's equations, one number at a time.
Slow slow_forward(const RecurrentShape& shape, const Lengths& lengths, const Doubles& parameters, const Doubles& x,
                  const Doubles& before) {
  const auto size = static_cast<std::size_t>(shape.size);
  const auto inputs = static_cast<std::size_t>(shape.inputs);
  const auto gates = static_cast<std::size_t>(shape.gates()) * size;
  const auto memory = static_cast<std::size_t>(shape.memory());
  const double* const input = parameters.data();
  const double* const hidden = input + gates * inputs;
  const double* const input_bias = hidden + gates * size;
  const double* const hidden_bias = input_bias + gates;
  Slow slow;
  std::size_t row = 0;
  for (const std::int64_t length : lengths) {
    const auto at = static_cast<std::ptrdiff_t>(row * memory);
    Doubles state(before.begin() + at, before.begin() + at + static_cast<std::ptrdiff_t>(memory));
    for (std::int64_t t = 0; t < length; ++t, ++row) {
      Doubles of_x(input_bias, input_bias + gates);
      Doubles of_h(hidden_bias, hidden_bias + gates);
      for (std::size_t g = 0; g < gates; ++g) {
        for (std::size_t i = 0; i < inputs; ++i) of_x[g] += input[g * inputs + i] * x[row * inputs + i];
        for (std::size_t i = 0; i < size; ++i) of_h[g] += hidden[g * size + i] * state[i];
      }
      for (std::size_t i = 0; i < size; ++i) {
        const auto sum = [&](std::size_t gate) { return of_x[gate * size + i] + of_h[gate * size + i]; };
        if (shape.kind == CellKind::kGru) {
          const double update = sigmoid(sum(1));
          const double fresh = std::tanh(of_x[2 * size + i] + sigmoid(sum(0)) * of_h[2 * size + i]);
          state[i] = (1.0 - update) * fresh + update * state[i];
        } else {
          state[size + i] = sigmoid(sum(1)) * state[size + i] + sigmoid(sum(0)) * std::tanh(sum(2));
          state[i] = sigmoid(sum(3)) * std::tanh(state[size + i]);
        }
      }
      slow.out.insert(slow.out.end(), state.begin(), state.begin() + shape.size);
    }
    slow.after.insert(slow.after.end(), state.begin(), state.end());
  }
  return slow;
}

struct Arguments {
  Doubles parameters, x, before;
};

double loss(const Case& c, const Arguments& at, const Floats& grad_out, const Floats& grad_after) {
  const Slow slow = slow_forward(c.shape, c.lengths, at.parameters, at.x, at.before);
  return std::inner_product(slow.out.begin(), slow.out.end(), grad_out.begin(), 0.0) +
         std::inner_product(slow.after.begin(), slow.after.end(), grad_after.begin(), 0.0);
}

Doubles differences(const Case& c, Doubles Arguments::* of, const Floats& grad_out, const Floats& grad_after) {
  Arguments at{widened(c.parameters), widened(c.x), widened(c.before)};
  constexpr double kStep = 1e-5;
  Doubles grads;
  for (double& number : at.*of) {
    const double value = number;
    number = value + kStep;
    const double above = loss(c, at, grad_out, grad_after);
    number = value - kStep;
    grads.push_back((above - loss(c, at, grad_out, grad_after)) / (2.0 * kStep));
    number = value;
  }
  return grads;
}

// --- right ---

void passes_are_those_of_plain_loops_and_gradients_their_differences() {
  const std::vector<Lengths> some{{1}, {5}, {1, 1, 1}, {3, 1, 4, 2}, {2, 2, 7, 1, 1, 1, 5, 2}};
  for (const CellKind kind : kBoth)
    for (const auto& [inputs, size] : {std::pair{1, 1}, {3, 5}, {9, 8}, {2, 17}})
      for (const Lengths& lengths : some) {
        const Case c(kind, inputs, size, lengths);
        const Forward pass = forward(c);
        const Slow slow = slow_forward(c.shape, lengths, widened(c.parameters), widened(c.x), widened(c.before));
        CHECK(close(pass.out, slow.out));
        CHECK(close(pass.after, slow.after));
        if (size > 8) continue;  // many differences
        const Floats grad_out = numbers(pass.out.size(), 8);
        const Floats grad_after = numbers(pass.after.size(), 9);
        const Gradients grads = backward(c, pass, grad_out, grad_after);
        CHECK(close(grads.parameters, differences(c, &Arguments::parameters, grad_out, grad_after)));
        CHECK(close(grads.x, differences(c, &Arguments::x, grad_out, grad_after)));
        CHECK(close(grads.before, differences(c, &Arguments::before, grad_out, grad_after)));
      }
}

void what_is_not_wanted_changes_no_bit_of_what_is() {
  for (const CellKind kind : kBoth) {
    const Case c(kind, 3, 20, {4, 1, 9, 2});
    const Forward pass = forward(c);
    Floats out(pass.out.size(), kNan);
    recurrent_forward(c.shape, c.weights(), c.sequences(), nullptr, out.data(), nullptr);
    CHECK(same_bits(out, pass.out));
    const Floats grad_out = numbers(pass.out.size(), 8);
    const Gradients all = backward(c, pass, grad_out, Floats(pass.after.size(), 0.0F));
    Gradients each{Floats(all.parameters.size(), kNan), Floats(all.x.size(), kNan), Floats(all.before.size(), kNan)};
    const auto run = [&](const RecurrentGradients& wanted) {
      recurrent_backward(c.shape, c.weights(), c.sequences(), pass.kept.data(), grad_out.data(), nullptr, wanted);
    };
    run({.parameters = each.parameters.data()});
    run({.x = each.x.data()});
    run({.before = each.before.data()});
    CHECK(same_bits(each.parameters, all.parameters));
    CHECK(same_bits(each.x, all.x));
    CHECK(same_bits(each.before, all.before));
  }
}

void no_rows_give_zero_gradients() {
  for (const CellKind kind : kBoth) {
    const Case c(kind, 3, 4, {});
    Floats parameters(c.parameters.size(), kNan);
    recurrent_forward(c.shape, c.weights(), c.sequences(), nullptr, nullptr, nullptr);
    recurrent_backward(c.shape, c.weights(), c.sequences(), nullptr, nullptr, nullptr,
                       {.parameters = parameters.data()});
    CHECK(same_bits(parameters, Floats(parameters.size(), 0.0F)));
  }
}

void what_is_not_a_number_stays_in_its_sequence() {
  for (const CellKind kind : kBoth) {
    Case c(kind, 3, 20, {3, 3, 3});
    c.x[4 * 3] = kNan;  // the second row of the second sequence
    const Forward pass = forward(c);
    for (std::size_t i = 0; i < pass.out.size(); ++i) {
      const std::size_t row = i / c.size();
      CHECK(std::isnan(pass.out[i]) == (row == 4 || row == 5));
    }
  }
}

// --- the same bits ---

Floats part(const Floats& from, std::size_t first, std::size_t count, std::size_t width) {
  return {from.begin() + static_cast<std::ptrdiff_t>(first * width),
          from.begin() + static_cast<std::ptrdiff_t>((first + count) * width)};
}

void a_sequence_has_the_same_bits_alone_and_among_others() {
  for (const CellKind kind : kBoth) {
    Lengths lengths;
    for (std::int64_t i = 0; i < 150; ++i) lengths.push_back(1 + i * 7 % 23);  // several chunks and blocks
    const Case all(kind, 5, 37, lengths);
    const Forward whole = forward(all);
    const Floats grad_out = numbers(whole.out.size(), 8);
    const Floats grad_after = numbers(whole.after.size(), 9);
    const Gradients grads = backward(all, whole, grad_out, grad_after);
    std::size_t row = 0;
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      const auto length = static_cast<std::size_t>(lengths[s]);
      Case alone(kind, 5, 37, {lengths[s]});
      alone.x = part(all.x, row, length, 5);
      alone.before = part(all.before, row, length, all.memory());
      const Forward pass = forward(alone);
      CHECK(same_bits(pass.out, part(whole.out, row, length, 37)));
      CHECK(same_bits(pass.after, part(whole.after, s, 1, all.memory())));
      const Gradients own =
          backward(alone, pass, part(grad_out, row, length, 37), part(grad_after, s, 1, all.memory()));
      CHECK(same_bits(own.x, part(grads.x, row, length, 5)));
      CHECK(same_bits(own.before, part(grads.before, row, length, all.memory())));
      row += length;
    }
  }
}

void a_step_has_the_bits_that_it_has_within_a_sequence() {
  for (const CellKind kind : kBoth) {
    Case c(kind, 5, 24, {9, 4});
    const Forward pass = forward(c);
    for (std::size_t t = 0; t + 1 < 9; ++t) {
      Case step(kind, 5, 24, {1});
      step.x = part(c.x, t, 1, 5);
      step.before = part(c.before, 0, 1, c.memory());
      const Forward done = forward(step);
      CHECK(same_bits(done.out, part(pass.out, t, 1, 24)));
      std::copy(done.after.begin(), done.after.end(), c.before.begin());
    }
    Sequences rows = c.sequences();  // without lengths every row is one step
    rows.lengths = nullptr;
    rows.count = rows.rows;
    Floats out(pass.out.size(), kNan);
    recurrent_forward(c.shape, c.weights(), rows, nullptr, out.data(), nullptr);
    c.lengths.assign(13, 1);
    CHECK(same_bits(out, forward(c).out));
  }
}

struct Everything {
  Forward pass;
  Gradients grads;
};

Everything large_passes(CellKind kind) {
  Lengths lengths;
  for (std::int64_t i = 0; i < 90; ++i) lengths.push_back(1 + i * 11 % 31);
  const Case c(kind, 40, 70, lengths);
  Forward pass = forward(c);
  Gradients grads = backward(c, pass, numbers(pass.out.size(), 8), numbers(pass.after.size(), 9));
  return {std::move(pass), std::move(grads)};
}

void threads_change_no_bit() {
  for (const CellKind kind : kBoth) {
    const Everything alone = large_passes(kind);
    for (const int threads : {2, 3}) {
      set_kernel_threads(threads);
      for (int i = 0; i < 5; ++i) {
        const Everything now = large_passes(kind);
        CHECK(same_bits(now.pass.kept, alone.pass.kept));
        CHECK(same_bits(now.pass.out, alone.pass.out));
        CHECK(same_bits(now.grads.parameters, alone.grads.parameters));
        CHECK(same_bits(now.grads.x, alone.grads.x));
        CHECK(same_bits(now.grads.before, alone.grads.before));
      }
    }
    set_kernel_threads(1);
  }
}

void gradients_of_several_chunks_are_those_of_their_parts_added_up() {
  for (const CellKind kind : kBoth) {
    const Lengths lengths{3, 1300, 40, 2};
    const Case all(kind, 2, 3, lengths);
    const Forward whole = forward(all);
    const Floats grad_out = numbers(whole.out.size(), 8);
    const Floats grad_after = numbers(whole.after.size(), 9);
    Doubles sum(all.parameters.size());
    std::size_t row = 0;
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      const auto length = static_cast<std::size_t>(lengths[s]);
      Case one(kind, 2, 3, {lengths[s]});
      one.x = part(all.x, row, length, 2);
      one.before = part(all.before, row, length, all.memory());
      const Gradients own =
          backward(one, forward(one), part(grad_out, row, length, 3), part(grad_after, s, 1, all.memory()));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own.parameters[i];
      row += length;
    }
    CHECK(close(backward(all, whole, grad_out, grad_after).parameters, sum));
  }
}

void wide_registers_change_no_bit() {
  for (const auto gate : {&Cells::gru, &Cells::lstm})
    for (const Index size : {1, 7, 8, 15, 16, 17, 33, 64}) {
      Floats made[2];
      for (const int wide : {0, 1}) {
        const CellLoops& loops = (wide != 0 ? *cells_of_16() : cells_of_8()).*gate;
        const auto all = static_cast<std::size_t>(size);
        const auto gates = static_cast<std::size_t>(loops.gates) * all;
        const Floats input = numbers(gates, 1, 3.0F);
        const Floats own = numbers(gates, 2, 3.0F);
        const Floats before = numbers(2 * all, 3);
        const Floats grad = numbers(2 * all, 4);
        Floats state = before;
        Floats kept(static_cast<std::size_t>(loops.kept) * all);
        Floats carried = numbers(all, 5);
        Floats deltas(2 * gates);
        loops.forward(size, {input.data(), own.data()}, state.data(), state.data() + size, kept.data());
        float* const of_hidden = loops.states > 1 ? deltas.data() : deltas.data() + gates;
        loops.backward(size, grad.data(), grad.data() + size, carried.data(),
                       {before.data(), before.data() + size, kept.data()}, {deltas.data(), of_hidden});
        for (const Floats& some : {state, kept, carried, deltas})
          made[wide].insert(made[wide].end(), some.begin(), some.end());
      }
      CHECK(same_bits(made[0], made[1]));
    }
}

// --- no allocation ---

void passes_of_sizes_seen_before_allocate_nothing() {
  for (const CellKind kind : kBoth) {
    const Case large(kind, 40, 70, {30, 2, 50, 1, 1});
    const Case small(kind, 7, 5, {4, 1});
    Forward pass = forward(large);
    Gradients grads = backward(large, pass, pass.out, Floats(pass.after.size(), 0.0F));
    const long before = allocations;
    for (const Case* c : {&large, &small}) {
      recurrent_forward(c->shape, c->weights(), c->sequences(), nullptr, pass.out.data(), pass.after.data());
      recurrent_forward(c->shape, c->weights(), c->sequences(), pass.kept.data(), pass.out.data(), nullptr);
      recurrent_backward(c->shape, c->weights(), c->sequences(), pass.kept.data(), pass.out.data(), nullptr,
                         {grads.parameters.data(), grads.x.data(), grads.before.data()});
    }
    CHECK(allocations == before);
  }
}

}  // namespace

int main() {
  CHECK(Floats(3).size() == 3 && allocations > 0);  // the counter counts
  passes_are_those_of_plain_loops_and_gradients_their_differences();
  what_is_not_wanted_changes_no_bit_of_what_is();
  no_rows_give_zero_gradients();
  what_is_not_a_number_stays_in_its_sequence();
  a_sequence_has_the_same_bits_alone_and_among_others();
  a_step_has_the_bits_that_it_has_within_a_sequence();
  threads_change_no_bit();
  gradients_of_several_chunks_are_those_of_their_parts_added_up();
  if (cells_of_16() != nullptr) {
    wide_registers_change_no_bit();
  } else {
    std::printf("this processor has no registers of 16 numbers: nothing to compare\n");
  }
  passes_of_sizes_seen_before_allocate_nothing();
  return test::finish();
}
