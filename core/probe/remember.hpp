// A bit is shown on the first tick, then nothing; on the last tick it must be said, and every tick before only `wait`
// is allowed. Best return 1, without a memory 0.5; with m ticks left V = gamma^(m - 1) for who remembers.
#pragma once

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Remember {
  int bit = 0;
  int left = 0;

  static WorldSpec spec() {
    WorldSpec spec = discrete_spec({"player"}, {"bit", "last"}, {"wait", "minus", "plus"});
    spec.masked = true;
    return spec;
  }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) {
    bit = m.draw_bit();
    show(m, sign(bit));
  }
  void step(const Moment& m) {
    if (m.over()) *m.s.rewards = *m.s.choice == 1 + bit ? 1.0F : 0.0F;
    m.end_all(m.s.terminated, 1);
    show(m, 0.0F);
  }
  void best(int agent, const Slices& s) const { s.choice[agent] = left == 1 ? 1 + bit : 0; }

 private:
  void show(const Moment& m, float cue) {
    left = m.left();
    const bool is_last = left == 1;
    float* obs = m.s.obs_f32(0);
    obs[0] = cue;
    obs[1] = is_last ? 1.0F : 0.0F;
    m.s.action_mask[0] = is_last ? 0 : 1;
    m.s.action_mask[1] = m.s.action_mask[2] = is_last ? 1 : 0;
  }
};

}  // namespace slipstream::probe
