// Two agents see one bit; the first must choose it, the second its complement. Both are paid 1 when both are right,
// otherwise 0. Best return = horizon, random horizon / 4; with m ticks left V = (1 - gamma^m) / (1 - gamma).
#pragma once

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Coordination {
  int bit = 0;

  static WorldSpec spec() {
    // `side` tells the agents apart, so that one shared policy can play both roles.
    WorldSpec spec = discrete_spec({"same", "complement"}, {"bit", "side", "left"}, {"minus", "plus"});
    spec.roles = spec.agents;
    spec.state_size = 2;  // bit, left
    spec.stats = {"agreed"};
    return spec;
  }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) { draw(m); }
  void step(const Moment& m) {
    if (m.s.choice[0] == right(0) && m.s.choice[1] == right(1)) {
      m.s.rewards[0] = m.s.rewards[1] = 1.0F;
      *m.s.stats += 1.0;
    }
    m.end_all(m.s.terminated, 2);
    draw(m);
  }
  void best(int agent, const Slices& s) const { s.choice[agent] = right(agent); }

 private:
  void draw(const Moment& m) {
    bit = m.draw_bit();
    for (int agent = 0; agent < 2; ++agent) {
      float* obs = m.s.obs_f32(0) + 3 * agent;
      obs[0] = sign(bit);
      obs[1] = sign(agent);
      obs[2] = m.fraction_left();
    }
    m.s.state[0] = sign(bit);
    m.s.state[1] = m.fraction_left();
  }
  [[nodiscard]] int right(int agent) const { return agent == 0 ? bit : 1 - bit; }
};

}  // namespace slipstream::probe
