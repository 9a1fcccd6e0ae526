// Three agents, each paid 1 on a tick when it chooses the bit it sees. The third terminates at a drawn tick before the
// horizon with 2 on top; the others go on to the horizon and terminate there. With m of its own ticks left an agent has
// V = (1 - gamma^m) / (1 - gamma), the leaver 2 gamma^(m-1) more. Best returns: horizon, horizon, ticks stayed + 2.
#pragma once

#include <array>

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Leaver {
  static constexpr int kAgents = 3;
  static constexpr int kLeaver = 2;
  static constexpr float kFarewell = 2.0F;
  std::array<int, kAgents> bits{};
  int leaves_at = 0;

  static WorldSpec spec() {
    WorldSpec spec = discrete_spec({"stays_0", "stays_1", "leaves"}, {"bit", "left", "leaves"}, {"minus", "plus"});
    spec.roles = {"stays", "stays", "leaves"};
    spec.reward_parts = {"choice", "farewell"};
    spec.stats = {"left_at"};
    return spec;
  }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) {
    leaves_at = 1 + static_cast<int>(m.rng.below(static_cast<std::uint32_t>(m.horizon - 1)));
    observe(m);
  }
  void step(const Moment& m) {
    for (int agent = 0; agent < kAgents; ++agent) {
      const float choice = m.s.choice[agent] == bit(agent) ? 1.0F : 0.0F;
      const bool leaves = agent == kLeaver && m.tick == leaves_at;
      const float farewell = leaves ? kFarewell : 0.0F;
      m.s.rewards[agent] = choice + farewell;
      if (leaves || m.over()) m.s.terminated[agent] = 1;
      if (m.s.reward_parts == nullptr) continue;
      m.s.reward_parts[2 * agent] = choice;
      m.s.reward_parts[2 * agent + 1] = farewell;
    }
    if (m.tick == leaves_at) *m.s.stats = m.tick;
    observe(m);
  }
  void best(int agent, const Slices& s) const { s.choice[agent] = bit(agent); }

 private:
  [[nodiscard]] int bit(int agent) const { return bits[static_cast<std::size_t>(agent)]; }
  void observe(const Moment& m) {
    for (int agent = 0; agent < kAgents; ++agent) {
      bits[static_cast<std::size_t>(agent)] = m.draw_bit();
      float* obs = m.s.obs_f32(0) + 3 * agent;
      const int own_end = agent == kLeaver ? leaves_at : m.horizon;
      obs[0] = sign(bit(agent));
      obs[1] = static_cast<float>(std::max(0, own_end - m.tick)) / static_cast<float>(m.horizon);
      obs[2] = agent == kLeaver ? 1.0F : 0.0F;
    }
  }
};

}  // namespace slipstream::probe
