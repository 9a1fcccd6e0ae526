// The first agent decides every 2 ticks from tick 0, the second every 3 ticks from tick 1. While its last choice
// matched the bit it saw when choosing, an agent is paid 1 per tick. With m ticks left V = (1 - gamma^m) / (1 - gamma)
// at every decision of either agent; best returns horizon and horizon - 1. Discounting per decision overrates both.
#pragma once

#include <array>

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Alternating {
  static constexpr int kAgents = 2;
  static constexpr std::array<int, kAgents> kPeriod{2, 3};
  static constexpr std::array<int, kAgents> kFirst{0, 1};
  std::array<int, kAgents> bits{};
  std::array<int, kAgents> matched{};

  static WorldSpec spec() {
    WorldSpec spec = discrete_spec({"every_2", "every_3"}, {"bit", "period", "left"}, {"minus", "plus"});
    spec.has_durations = true;
    return spec;
  }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) { prepare(m); }
  void step(const Moment& m) {
    for (std::size_t a = 0; a < kAgents; ++a) {
      if (m.s.acting[a] != 0) matched[a] = m.s.choice[a] == bits[a] ? 1 : 0;
      m.s.rewards[a] = static_cast<float>(matched[a]);
    }
    m.end_all(m.s.terminated, kAgents);
    prepare(m);
  }
  void best(int agent, const Slices& s) const { s.choice[agent] = bits[static_cast<std::size_t>(agent)]; }

 private:
  void prepare(const Moment& m) {
    for (std::size_t a = 0; a < kAgents; ++a) {
      const bool decides = m.tick >= kFirst[a] && (m.tick - kFirst[a]) % kPeriod[a] == 0;
      m.s.acting[a] = decides ? 1 : 0;
      bits[a] = m.draw_bit();
      float* obs = m.s.obs_f32(0) + 3 * a;
      obs[0] = sign(bits[a]);
      obs[1] = sign(static_cast<int>(a));
      obs[2] = m.fraction_left();
    }
  }
};

}  // namespace slipstream::probe
