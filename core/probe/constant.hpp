// Reward 1 on every tick whatever is done, cut (not ended) at the horizon: V = 1 / (1 - gamma) for every observation.
#pragma once

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Constant {
  static WorldSpec spec() { return discrete_spec({"agent"}, {"noise"}, {"a", "b"}); }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) const { draw(m); }
  void step(const Moment& m) const {
    *m.s.rewards = 1.0F;
    m.end_all(m.s.truncated, 1);
    draw(m);
  }
  void best(int agent, const Slices& s) const { s.choice[agent] = 0; }

 private:
  void draw(const Moment& m) const { *m.s.obs_f32(0) = static_cast<float>(m.rng.uniform(-1.0, 1.0)); }
};

}  // namespace slipstream::probe
