// A side is shown on the first tick, then nothing; on the last tick the axis must stand there, on -1 or 1: reward
// 1 - (action - side)^2. Best return 1; without a memory the axis can only stay at 0 and earns 0.
#pragma once

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Recall {
  int bit = 0;

  static WorldSpec spec() {
    WorldSpec spec = discrete_spec({"player"}, {"side", "last"}, {"side"});
    spec.action.discrete = false;
    return spec;
  }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) {
    bit = m.draw_bit();
    show(m, sign(bit));
  }
  void step(const Moment& m) {
    const float miss = std::clamp(*m.s.action, -1.0F, 1.0F) - sign(bit);
    if (m.over()) *m.s.rewards = 1.0F - miss * miss;
    m.end_all(m.s.terminated, 1);
    show(m, 0.0F);
  }
  void best(int agent, const Slices& s) const { s.action[agent] = sign(bit); }

 private:
  static void show(const Moment& m, float cue) {
    float* obs = m.s.obs_f32(0);
    obs[0] = cue;
    obs[1] = m.left() == 1 ? 1.0F : 0.0F;
  }
};

}  // namespace slipstream::probe
