// The world contract. A world is a plain value: it allocates only when constructed, never prints, throws or exits
// in step(), and draws only from the stream it was handed at reset.
#pragma once

#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <vector>

#include "slipstream/rng.hpp"
#include "slipstream/snapshot.hpp"
#include "slipstream/spec.hpp"

namespace slipstream {

inline constexpr int kMaxObsBlocks = 8;

// One world's row of every buffer; A agents, K action axes, M choices. Null where the spec has no such buffer.
// Before step() the VecEnv has zeroed rewards, terminated, truncated and reward_parts, and set ticks to 1. Rows of
// agents that are not alive may be written; the VecEnv clears them afterwards.
struct Slices {
  std::array<void*, kMaxObsBlocks> obs{};  // [A, ...] per block, in spec order
  float* state = nullptr;                  // [S]
  float* action = nullptr;                 // [A, K] of a continuous world, or of one with several parts
  std::int32_t* choice = nullptr;          // [A] of a discrete world
  std::uint8_t* action_mask = nullptr;     // [A, M], 1 = allowed; M choices, of several parts side by side
  float* rewards = nullptr;                // [A], of this step
  float* potential = nullptr;              // [A], of the state after the step
  std::uint8_t* terminated = nullptr;      // [A]
  std::uint8_t* truncated = nullptr;       // [A]
  const std::uint8_t* alive = nullptr;     // [A], before the step
  std::uint8_t* present = nullptr;         // [A], out of reset(): 0 for those whom this episode goes without; 1 before
  std::uint8_t* acting = nullptr;          // [A], in: whose action this step reads; out: whose the next one reads
  float* reward_parts = nullptr;           // [A, P]; null unless asked for
  double* stats = nullptr;                 // [Q], or [A, Q] where agents have their own: figures of the episode so far
  std::int32_t* ticks = nullptr;           // out: how many this step lasted; a world that sets more uses pay()
  double* discounted = nullptr;            // [A], rewards as they are worth at the step's beginning: see pay()
  double tick_discount = 1.0;              // the learner's gamma
  std::int32_t phase = 0;                  // of the spec's phases, for reset()
  std::int32_t time_limit = 0;             // of the episode, for reset(): ticks; 0: the phase's own

  // A reward that falls due on one of a step's ticks, 0 the first.
  void pay(std::size_t agent, double amount, int tick) const {
    rewards[agent] += static_cast<float>(amount);
    discounted[agent] += std::pow(tick_discount, tick) * amount;
  }

  [[nodiscard]] float* obs_f32(int block) const { return static_cast<float*>(obs[static_cast<std::size_t>(block)]); }
  [[nodiscard]] std::uint8_t* obs_u8(int block) const {
    return static_cast<std::uint8_t*>(obs[static_cast<std::size_t>(block)]);
  }
};

// What stands still in a world, for viewers: a grid of free (0) and occupied cells, row 0 the lowest.
struct Backdrop {
  int rows = 0;
  int columns = 0;
  double resolution_m = 0.0;
  double x_m = 0.0;  // of the lower left corner
  double y_m = 0.0;
  double yaw_rad = 0.0;
  std::vector<std::uint8_t> occupied;  // [rows, columns]; empty: nothing does
};

template <class W>
concept World = requires(W w, const W cw, const typename W::Config& config, const Rng& rng, const Slices& s,
                         SnapshotWriter& out, SnapshotReader& in, double* frame) {
  { W::spec(config) } -> std::same_as<WorldSpec>;
  W(config);
  w.reset(rng, s);              // writes obs, state, action_mask, potential, acting, stats
  w.step(s);                    // reads the action rows of agents alive and acting; writes all the rest
  w.scripted(int{}, int{}, s);  // writes agent's action row as script number i of the spec would act
  w.archive(out);
  w.archive(in);
  cw.frame(frame);  // [A, F] for viewers
};

}  // namespace slipstream
