// A side is shown on every tick, -1 or 1; the axis must be on it, or the episode ends. 1 on the last tick, for who came
// so far. Best return 1, and V = gamma^(m-1) with m ticks left; at random one episode in 2^horizon is paid, so the
// reward teaches nothing before it was shown.
#pragma once

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Lock {
  int bit = 0;

  static WorldSpec spec() {
    WorldSpec spec = discrete_spec({"player"}, {"side", "left"}, {"side"});
    spec.action.discrete = false;
    spec.action.table = {{-1.0F}, {1.0F}};
    spec.stats = {"opened"};
    return spec;
  }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) { draw(m); }
  void step(const Moment& m) {
    if (*m.s.action * sign(bit) <= 0.0F) {
      *m.s.terminated = 1;
    } else if (m.over()) {
      *m.s.rewards = 1.0F;
      *m.s.stats = 1.0;
    }
    m.end_all(m.s.terminated, 1);
    draw(m);
  }
  void best(int agent, const Slices& s) const { s.action[agent] = sign(bit); }

 private:
  void draw(const Moment& m) {
    bit = m.draw_bit();
    m.s.obs_f32(0)[0] = sign(bit);
    m.s.obs_f32(0)[1] = m.fraction_left();
  }
};

}  // namespace slipstream::probe
