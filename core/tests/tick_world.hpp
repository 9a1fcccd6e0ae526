// A world whose every number can be said in advance: two agents, all rewards and observations are the tick.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>

#include "slipstream/vec_env.hpp"

namespace slipstream::test {

// Agent 0 decides every `period` ticks and is truncated at `horizon`; agent 1 terminates at `leaves_at`. Rows of agents
// that have left are deliberately written full of rubbish.
struct TickWorld {
  struct Config {
    int horizon = 4;
    int leaves_at = 2;
    int period = 1;
    bool alone = false;  // every second episode goes without agent 1
  };
  static WorldSpec spec(const Config& config) {
    WorldSpec spec;
    spec.name = "tick";
    spec.agents = {"stays", "leaves"};
    spec.roles = {"stays", "leaves"};
    spec.obs.push_back({"clock", DType::kF32, {2}, 0.0F, 1e9F, {"tick", "draw"}});
    spec.obs.push_back({"plane", DType::kU8, {2, 2}, 0.0F, 255.0F, {}});
    spec.state_size = 1;
    spec.action = {true, 3, -1.0F, 1.0F, {"a", "b", "c"}, {}, {}};
    spec.masked = true;
    spec.has_potential = true;
    spec.has_durations = config.period > 1;
    spec.reward_parts = {"tick", "nothing"};
    spec.stats = {"last_tick"};
    spec.frame_fields = {"tick"};
    spec.scripts = {"choose_tick"};
    spec.max_episode_steps = config.horizon;
    return spec;
  }
  explicit TickWorld(const Config& c) : config(c) {}

  void reset(const Rng& stream, const Slices& s) {
    rng = stream;
    tick = 0;
    if (config.alone && ++episodes % 2 == 1) s.present[1] = 0;
    write(s);
  }
  void step(const Slices& s) {
    ++tick;
    for (int a = 0; a < 2; ++a) {
      s.rewards[a] = static_cast<float>(tick);
      if (s.reward_parts != nullptr) s.reward_parts[2 * a] = static_cast<float>(tick);
    }
    s.terminated[1] = tick >= config.leaves_at ? 1 : 0;
    s.truncated[0] = tick >= config.horizon ? 1 : 0;
    *s.stats = tick;
    write(s);
  }
  void scripted(int, int agent, const Slices& s) const { s.choice[agent] = tick % 3; }
  template <class Archive>
  void archive(Archive& ar) {
    ar(tick, episodes, rng);
  }
  void frame(double* out) const { out[0] = out[1] = tick; }

  void write(const Slices& s) {
    draw = static_cast<float>(rng.below(1U << 20));
    for (int a = 0; a < 2; ++a) {
      s.obs_f32(0)[2 * a] = static_cast<float>(tick);
      s.obs_f32(0)[2 * a + 1] = draw;
      std::memset(s.obs_u8(1) + 4 * a, tick, 4);
      for (int m = 0; m < 3; ++m) s.action_mask[3 * a + m] = m == tick % 3 ? 1 : 0;
      s.potential[a] = static_cast<float>(tick);
    }
    *s.state = static_cast<float>(tick);
    s.acting[0] = tick % config.period == 0 ? 1 : 0;
    s.acting[1] = 1;
  }

  Config config;
  int tick = 0;
  int episodes = 0;
  Rng rng;
  float draw = 0.0F;
};

inline std::unique_ptr<VecEnv> make_tick_env(const TickWorld::Config& config, int num_worlds,
                                             const VecEnvOptions& options = {}) {
  return std::make_unique<VecEnv>(std::make_unique<WorldsOf<TickWorld>>(config, num_worlds), options);
}

// Element k of the f32 block "clock" of one agent; k = 0 is the tick, 1 the draw.
inline float clock(const std::vector<std::vector<std::byte>>& obs, std::size_t row, std::size_t k) {
  float value = 0.0F;
  std::memcpy(&value, obs[0].data() + (2 * row + k) * sizeof value, sizeof value);
  return value;
}

}  // namespace slipstream::test
