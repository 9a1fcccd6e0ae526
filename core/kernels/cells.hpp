// Elementwise loops of recurrent cells, once for each width of vector registers; the tables differ in no bit.
#pragma once

#include "kernels/mlp_tiles.hpp"

namespace slipstream {

// Sums before the gates of one row, [gates, size] each: of its input and of its state, biases included.
struct CellSums {
  const float* input;
  const float* hidden;
};

// What a row's forward pass leaves for the way back.
struct CellKept {
  const float* hidden;       // [size], before the step
  const float* cell;         // [size], before the step; an LSTM's
  const float* activations;  // [kept, size]
};

// Gradients of one row's sums, [gates, size] each; an LSTM's are the same, and both point to one place.
struct CellDeltas {
  float* input;
  float* hidden;
};

struct CellLoops {
  Index gates;   // sums of each unit
  Index states;  // numbers that each unit remembers
  Index kept;    // numbers of each unit that the way back needs

  // One row's state, before -> after. `activations` [kept, size].
  void (*forward)(Index size, const CellSums& sums, float* hidden, float* cell, float* activations);
  // From the gradient of what the row showed and of its state after the step: `later` by its hidden part, as far as
  // the next step's sums reach it, `carried` by what is carried past the sums. `carried` becomes that before the step.
  void (*backward)(Index size, const float* grad, const float* later, float* carried, const CellKept& kept,
                   const CellDeltas& deltas);
};

struct Cells {
  CellLoops gru;
  CellLoops lstm;
};

// By the width of registers, as for tiles.
[[nodiscard]] const Cells& cells_of_8();
[[nodiscard]] const Cells* cells_of_16();
[[nodiscard]] const Cells& fastest_cells();

extern const Cells* const kCellsOf16;  // whatever processor this is; null where it was not built

}  // namespace slipstream
