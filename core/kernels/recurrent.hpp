// Forward and backward pass of a recurrent cell (GRU, LSTM) in float32, over sequences of any length, one call each.
//
// Rows stand sequence by sequence. All sums of the inputs are one product; then sequences of about the same length go
// through time together, a block of them on each thread, which waits for no other. Bits are a contract as in mlp.hpp: a
// row's outputs depend on its own sequence up to there and on nothing else, so a step gives the bits that the same step
// has within a sequence; gradients of weights are summed over rows in order, whatever the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream {

enum class CellKind { kGru, kLstm };

struct RecurrentShape {
  CellKind kind = CellKind::kGru;
  int inputs = 1;
  int size = 1;

  [[nodiscard]] int gates() const { return kind == CellKind::kGru ? 3 : 4; }
  [[nodiscard]] int memory() const { return kind == CellKind::kGru ? size : 2 * size; }  // hidden, then cell
  // Floats of what a forward pass leaves behind for the backward pass.
  [[nodiscard]] std::size_t kept_floats(std::size_t rows) const;
  // Floats of all parameters, in the order of RecurrentWeights.
  [[nodiscard]] std::size_t parameter_floats() const;
};

// As torch keeps them, one gate below the other: gru reset, update, new; lstm input, forget, new, output.
struct RecurrentWeights {
  const float* input = nullptr;   // [gates * size, inputs]
  const float* hidden = nullptr;  // [gates * size, size]
  const float* input_bias = nullptr;
  const float* hidden_bias = nullptr;
};

// What a pass reads: so many rows, cut into sequences.
struct Sequences {
  const float* x = nullptr;  // [rows, inputs]
  const float* before =
      nullptr;  // [rows, memory], of which the first row of each sequence counts: the state it begins in
  int rows = 0;
  const std::int64_t* lengths = nullptr;  // [count], each at least 1, `rows` together; null: every row is a sequence
  int count = 0;
};

// Features out [rows, size], and the state after each sequence, [count, memory]; null where it is not wanted. `kept`
// (kept_floats) may be null where no backward pass will follow.
void recurrent_forward(const RecurrentShape& shape, const RecurrentWeights& weights, const Sequences& sequences,
                       float* kept, float* out, float* after);

struct RecurrentGradients {
  float* parameters = nullptr;  // parameter_floats, or null where they are not wanted
  float* x = nullptr;           // [rows, inputs], or null
  float* before = nullptr;      // [rows, memory], or null; 0 where no sequence begins
};

// From the gradients of out and after (null: zeros), and what forward read and left behind, to those wanted.
void recurrent_backward(const RecurrentShape& shape, const RecurrentWeights& weights, const Sequences& sequences,
                        const float* kept, const float* grad_out, const float* grad_after,
                        const RecurrentGradients& grads);

// Multiply-adds of a forward pass; a backward pass has twice as many.
[[nodiscard]] std::size_t recurrent_cost(const RecurrentShape& shape, int rows);

}  // namespace slipstream
