// What a world looks like from outside: shapes, bounds and the names people read in viewers and reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace slipstream {

enum class DType : std::uint8_t { kF32, kU8, kI32 };

constexpr std::size_t size_of(DType dtype) { return dtype == DType::kU8 ? 1 : 4; }

// One named piece of an agent's observation. `features` names each element, of planes [C, H, W] each plane, or nothing.
struct ObsBlock {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int> shape;
  float low = 0.0F;
  float high = 0.0F;
  std::vector<std::string> features;

  [[nodiscard]] std::size_t elements() const {
    std::size_t n = 1;
    for (const int d : shape) n *= static_cast<std::size_t>(d);
    return n;
  }
  [[nodiscard]] std::size_t bytes() const { return elements() * size_of(dtype); }
};

// Rows at the end of a flat block, each of which says the same things of another one of several (aircraft, cars): the
// nearest first, or in any order. A row of zeros is nobody. How many rows there are is what the block's length says.
struct EntityRows {
  std::string block;
  int first = 0;                      // element where the first row begins
  std::vector<std::string> features;  // of one row
};

// An action of several parts has `parts` and is not discrete: its `size` numbers are the choice made in each part
// (exact in a float), then the axes. Its mask has the choices of all parts side by side.
struct ActionSpec {
  bool discrete = false;
  int size = 0;  // K axes of a continuous action, or M choices of a discrete one
  float low = -1.0F;
  float high = 1.0F;
  std::vector<std::string> names;         // one per axis or choice
  std::vector<std::vector<float>> table;  // continuous worlds: rows a discrete policy may choose from
  std::vector<int> parts;                 // choices of each part; empty: the action is not one of parts

  // Choices that a mask is about.
  [[nodiscard]] int mask_size() const { return parts.empty() ? size : std::accumulate(parts.begin(), parts.end(), 0); }
};

// What agents of one role see and do, where the roles of a world differ in that.
struct RoleSpec {
  std::string role;
  std::vector<std::string> obs;  // names of the world's blocks that they see; in their rows of the others stands 0
  ActionSpec action;
  bool masked = false;
};

// An entry of VecEnv's phases: which one, plus kPhases times the ticks that its episodes may last where the phase's own
// time is not what counts.
inline constexpr std::int32_t kPhases = 256;

struct WorldSpec {
  std::string name;
  std::vector<std::string> agents;  // one name per agent, in buffer order
  std::vector<std::string> roles;   // one role per agent; agents of one role share a policy by default
  std::vector<ObsBlock> obs;
  std::vector<EntityRows> entities;  // at most one for each block
  int state_size = 0;                // 0: no global state for centralised critics
  ActionSpec action;
  bool masked = false;                    // action_mask is written
  bool has_potential = false;             // potential is written
  bool has_durations = false;             // some agents do not decide on every tick
  std::vector<std::string> reward_parts;  // names of the terms a reward is the sum of
  std::vector<std::string> stats;         // the world's own figures for a finished episode
  bool stats_per_agent = false;           // every agent has figures of its own; otherwise they are one row for all
  std::vector<std::string> frame_fields;  // per-agent fields of frame(), for viewers and trajectory logs
  std::vector<std::string> scripts;       // scripted policies the world can act with
  std::vector<std::string> phases;        // of a curriculum, easiest first; empty: the world is always the same
  int max_episode_steps = 0;              // 0: no step limit
  double tick_seconds = 0.0;              // simulated time of one step; 0 where it has no meaning
  std::vector<RoleSpec> unlike;           // every role's view; `action` is then the widest of theirs, all of one type

  [[nodiscard]] int num_agents() const { return static_cast<int>(agents.size()); }
  [[nodiscard]] std::size_t stat_rows() const { return stats_per_agent ? agents.size() : 1; }
};

}  // namespace slipstream
