#include "kernels/recurrent.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "kernels/cells.hpp"
#include "kernels/pass.hpp"
#include "kernels/share.hpp"

namespace slipstream {
namespace {

constexpr Index kChunk = 1024;  // rows after which a chunk of sequences is full: what it needs then fits in the cache

const CellLoops& loops(CellKind kind) {
  static const Cells& cells = fastest_cells();
  return kind == CellKind::kGru ? cells.gru : cells.lstm;
}

std::size_t product_of(int a, int b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); }

void copy(const float* from, Index count, float* to) { std::copy_n(from, count, to); }

// --- sequences ---

struct Run {
  Index row;  // its first
  Index length;
  Index number;
};

// Consecutive sequences, about kChunk rows of them.
struct Chunk {
  std::span<const Run> runs;  // the longest first
  Index row;                  // the first of all
  int rows;
};

template <class Work>
void for_each_chunk(const Sequences& sequences, Work&& work) {
  std::array<Run, kChunk> runs;
  Index row = 0;
  for (Index number = 0; number < sequences.count;) {
    const Index first = row;
    std::size_t count = 0;
    for (; number < sequences.count && row - first < kChunk; ++number, ++count) {
      const Index length = sequences.lengths == nullptr ? 1 : static_cast<Index>(sequences.lengths[number]);
      runs[count] = {row, length, number};
      row += length;
    }
    if (sequences.lengths != nullptr)
      std::sort(runs.begin(), runs.begin() + count, [](const Run& a, const Run& b) {
        return a.length != b.length ? a.length > b.length : a.number < b.number;
      });
    work(Chunk{{runs.data(), count}, first, static_cast<int>(row - first)});
  }
}

// Sequences of one task, few enough that several threads have some.
Index block_runs(std::size_t runs) {
  const Index tile = tiles().rows;
  return std::clamp(round_up(static_cast<Index>(runs) / 4, tile), tile, round_up(kMostRows, tile));
}

int run_blocks(std::size_t runs) {
  return static_cast<int>(round_up(static_cast<Index>(runs), block_runs(runs)) / block_runs(runs));
}

std::span<const Run> runs_of(int task, std::span<const Run> runs) {
  const auto size = static_cast<std::size_t>(block_runs(runs.size()));
  const std::size_t begin = static_cast<std::size_t>(task) * size;
  return runs.subspan(begin, std::min(size, runs.size() - begin));
}

// --- what is kept: the state before each row, then what the gates made of it ---

template <class T>
struct Kept {
  T* hidden;
  T* cell;
  T* activations;

  Kept(const RecurrentShape& shape, Index rows, T* at)
      : hidden(at), cell(at + rows * shape.size), activations(at + rows * shape.memory()) {}
};

struct Sizes {
  Index inputs, size, gates, memory, kept;

  explicit Sizes(const RecurrentShape& shape)
      : inputs(shape.inputs),
        size(shape.size),
        gates(static_cast<Index>(shape.gates()) * shape.size),
        memory(shape.memory()),
        kept(loops(shape.kind).kept * shape.size) {}
};

// --- forward ---

struct Targets {
  float* kept;
  float* out;
  float* after;
};

// One block of sequences through time, from their sums of the inputs [chunk's rows, gates].
void run_forward(const RecurrentShape& shape, const RecurrentWeights& weights, const Sequences& sequences,
                 std::span<const Run> runs, const float* packed, const float* sums, Index first, const Targets& to) {
  thread_local Scratch between;
  const Sizes n(shape);
  const auto width = static_cast<Index>(runs.size());
  float* const hidden = between.floats(width * (n.gates + 2 * n.size) + n.kept);
  float* const cell = hidden + width * n.size;
  float* const own = cell + width * n.size;
  float* const unkept = own + width * n.gates;
  const CellLoops& cells = loops(shape.kind);
  const auto run = [&](Index j) -> const Run& { return runs[static_cast<std::size_t>(j)]; };
  for (Index j = 0; j < width; ++j) {
    const float* const state = sequences.before + run(j).row * n.memory;
    copy(state, n.size, hidden + j * n.size);
    if (cells.states > 1) copy(state + n.size, n.size, cell + j * n.size);
  }
  Index alive = width;
  for (Index t = 0; t < runs[0].length; ++t) {
    while (run(alive - 1).length <= t) --alive;
    tiles().product({hidden, n.size, 1}, alive, packed, n.size, n.gates, weights.hidden_bias, Activation::kIdentity,
                    {own, n.gates});
    for (Index j = 0; j < alive; ++j) {
      const Index row = run(j).row + t;
      float* activations = unkept;
      if (to.kept != nullptr) {
        const Kept<float> kept(shape, sequences.rows, to.kept);
        copy(hidden + j * n.size, n.size, kept.hidden + row * n.size);
        if (cells.states > 1) copy(cell + j * n.size, n.size, kept.cell + row * n.size);
        activations = kept.activations + row * n.kept;
      }
      cells.forward(n.size, {sums + (row - first) * n.gates, own + j * n.gates}, hidden + j * n.size, cell + j * n.size,
                    activations);
      copy(hidden + j * n.size, n.size, to.out + row * n.size);
    }
  }
  for (Index j = 0; to.after != nullptr && j < width; ++j) {
    float* const state = to.after + run(j).number * n.memory;
    copy(hidden + j * n.size, n.size, state);
    if (cells.states > 1) copy(cell + j * n.size, n.size, state + n.size);
  }
}

// --- backward ---

// Gradients of the sums of a chunk's rows, [rows, stride].
struct Deltas {
  float* input;
  float* hidden;
  Index stride;
};

// One block of sequences back through time.
void run_backward(const RecurrentShape& shape, const Sequences& sequences, std::span<const Run> runs,
                  const float* packed, const float* kept_at, const float* grad_out, const float* grad_after,
                  const Deltas& deltas, Index first, float* grad_before) {
  thread_local Scratch between;
  const Sizes n(shape);
  const auto width = static_cast<Index>(runs.size());
  float* const later = between.floats(width * (n.gates + 2 * n.size));
  float* const carried = later + width * n.size;
  float* const own = carried + width * n.size;  // gradients of the sums of one moment, side by side
  const CellLoops& cells = loops(shape.kind);
  const Kept<const float> kept(shape, sequences.rows, kept_at);
  const auto run = [&](Index j) -> const Run& { return runs[static_cast<std::size_t>(j)]; };
  std::fill_n(later, 2 * width * n.size, 0.0F);
  for (Index j = 0; grad_after != nullptr && j < width; ++j) {
    const float* const state = grad_after + run(j).number * n.memory;
    copy(state, n.size, later + j * n.size);
    if (cells.states > 1) copy(state + n.size, n.size, carried + j * n.size);
  }
  Index alive = 0;
  for (Index t = runs[0].length; t-- > 0;) {
    while (alive < width && run(alive).length > t) ++alive;
    for (Index j = 0; j < alive; ++j) {
      const Index row = run(j).row + t;
      const Index place = (row - first) * deltas.stride;
      cells.backward(n.size, grad_out + row * n.size, later + j * n.size, carried + j * n.size,
                     {kept.hidden + row * n.size, kept.cell + row * n.size, kept.activations + row * n.kept},
                     {deltas.input + place, deltas.hidden + place});
      copy(deltas.hidden + place, n.gates, own + j * n.gates);
    }
    if (t == 0 && grad_before == nullptr) return;
    tiles().product({own, n.gates, 1}, alive, packed, n.gates, n.size, nullptr, Activation::kIdentity, {later, n.size});
  }
  for (Index j = 0; j < width; ++j) {
    float* const state = grad_before + run(j).row * n.memory;
    copy(later + j * n.size, n.size, state);
    const float* const rest = carried + j * n.size;
    if (cells.states > 1) {
      copy(rest, n.size, state + n.size);
    } else {
      for (Index i = 0; i < n.size; ++i) state[i] += rest[i];
    }
  }
}

// Gradients of the parameters, to which each chunk adds: sums over rows, in order. A few columns are one task.
void add_gradients(const RecurrentShape& shape, const Sequences& sequences, const Chunk& chunk, const float* kept_at,
                   const Deltas& deltas, float* to) {
  const Sizes n(shape);
  const Kept<const float> kept(shape, sequences.rows, kept_at);
  const bool add = chunk.row > 0;
  float* const hidden_weight = to + n.gates * n.inputs;
  float* const biases = hidden_weight + n.gates * n.size;
  const auto tasks = [](Index columns) { return static_cast<int>(round_up(columns, tiles().group) / tiles().group); };
  const auto columns = [&](int task, const float* delta, const float* b, Index width, float* out) {
    const Index begin = static_cast<Index>(task) * tiles().group;
    tiles().gradient({delta, 1, deltas.stride}, n.gates, b + chunk.row * width, chunk.rows, width, begin,
                     std::min(begin + tiles().group, width), add, out);
  };
  const auto bias = [&](const float* delta, float* out) {
    if (!add) std::fill_n(out, n.gates, 0.0F);
    for (Index r = 0; r < chunk.rows; ++r)
      for (Index i = 0; i < n.gates; ++i) out[i] += delta[r * deltas.stride + i];
  };
  const int of_input = tasks(n.inputs);
  share(of_input + tasks(n.size), recurrent_cost(shape, chunk.rows), [&](int task) {
    if (task < of_input) {
      columns(task, deltas.input, sequences.x, n.inputs, to);
      if (task == 0) bias(deltas.input, biases);
    } else {
      columns(task - of_input, deltas.hidden, kept.hidden, n.size, hidden_weight);
      if (task == of_input) bias(deltas.hidden, biases + n.gates);
    }
  });
}

}  // namespace

std::size_t RecurrentShape::kept_floats(std::size_t rows) const {
  return rows * static_cast<std::size_t>(memory() + loops(kind).kept * size);
}

std::size_t RecurrentShape::parameter_floats() const { return product_of(gates() * size, inputs + size + 2); }

std::size_t recurrent_cost(const RecurrentShape& shape, int rows) {
  return shape.parameter_floats() * static_cast<std::size_t>(rows);
}

void recurrent_forward(const RecurrentShape& shape, const RecurrentWeights& weights, const Sequences& sequences,
                       float* kept, float* out, float* after) {
  thread_local Scratch packing;
  thread_local Scratch projecting;
  const Sizes n(shape);
  const Index of_input = packed_floats(n.inputs, n.gates);
  float* const packed = packing.floats(of_input + packed_floats(n.size, n.gates));
  tiles().pack_transposed(weights.input, n.gates, n.inputs, packed);
  tiles().pack_transposed(weights.hidden, n.gates, n.size, packed + of_input);

  for_each_chunk(sequences, [&](const Chunk& chunk) {
    float* const sums = projecting.floats(chunk.rows * n.gates);
    const std::size_t cost = recurrent_cost(shape, chunk.rows);
    share(blocks(chunk.rows), cost, [&](int task) {
      const Block block = block_of(task, chunk.rows);
      tiles().product({sequences.x + (chunk.row + block.begin) * n.inputs, n.inputs, 1}, block.count, packed, n.inputs,
                      n.gates, weights.input_bias, Activation::kIdentity, {sums + block.begin * n.gates, n.gates});
    });
    share(run_blocks(chunk.runs.size()), cost, [&](int task) {
      run_forward(shape, weights, sequences, runs_of(task, chunk.runs), packed + of_input, sums, chunk.row,
                  {kept, out, after});
    });
  });
}

void recurrent_backward(const RecurrentShape& shape, const RecurrentWeights& weights, const Sequences& sequences,
                        const float* kept, const float* grad_out, const float* grad_after,
                        const RecurrentGradients& grads) {
  thread_local Scratch packing;
  thread_local Scratch before;
  const Sizes n(shape);
  if (grads.before != nullptr) std::fill_n(grads.before, sequences.rows * n.memory, 0.0F);
  if (grads.parameters != nullptr && sequences.rows == 0) std::fill_n(grads.parameters, shape.parameter_floats(), 0.0F);
  const Index of_hidden = packed_floats(n.gates, n.size);
  float* const packed = packing.floats(of_hidden + packed_floats(n.gates, n.inputs));
  tiles().pack(weights.hidden, n.size, n.gates, packed);
  if (grads.x != nullptr) tiles().pack(weights.input, n.inputs, n.gates, packed + of_hidden);

  for_each_chunk(sequences, [&](const Chunk& chunk) {
    const Index stride = spread(n.gates);
    float* const memory = before.floats(2 * chunk.rows * stride);
    const bool apart = shape.kind == CellKind::kGru;  // an lstm adds both sums up, so their gradients are the same
    const Deltas deltas{memory, apart ? memory + chunk.rows * stride : memory, stride};
    const std::size_t cost = recurrent_cost(shape, chunk.rows);
    share(run_blocks(chunk.runs.size()), cost, [&](int task) {
      run_backward(shape, sequences, runs_of(task, chunk.runs), packed, kept, grad_out, grad_after, deltas, chunk.row,
                   grads.before);
    });
    if (grads.x != nullptr)
      share(blocks(chunk.rows), cost, [&](int task) {
        const Block block = block_of(task, chunk.rows);
        tiles().product({deltas.input + block.begin * stride, stride, 1}, block.count, packed + of_hidden, n.gates,
                        n.inputs, nullptr, Activation::kIdentity,
                        {grads.x + (chunk.row + block.begin) * n.inputs, n.inputs});
      });
    if (grads.parameters != nullptr) add_gradients(shape, sequences, chunk, kept, deltas, grads.parameters);
  });
}

}  // namespace slipstream
