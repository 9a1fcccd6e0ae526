// The first choice is paid at the end: 1 on the last tick if it matched the cue, otherwise 0; later choices do nothing.
// Best return 1, random 0.5. With m ticks left V = gamma^(m-1) at the start, later gamma^(m-1) * promise.
#pragma once

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Delayed {
  int cue = 0;
  int promise = 0;

  static WorldSpec spec() {
    WorldSpec spec = discrete_spec({"agent"}, {"cue", "promise", "left"}, {"minus", "plus"});
    spec.stats = {"kept"};
    return spec;
  }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) {
    cue = m.draw_bit();
    observe(m);
  }
  void step(const Moment& m) {
    if (m.tick == 1) promise = *m.s.choice == cue ? 1 : 0;
    if (m.over()) {
      *m.s.rewards = static_cast<float>(promise);
      *m.s.stats = promise;
    }
    m.end_all(m.s.terminated, 1);
    observe(m);
  }
  void best(int agent, const Slices& s) const { s.choice[agent] = cue; }

 private:
  void observe(const Moment& m) const {
    float* obs = m.s.obs_f32(0);
    obs[0] = m.tick == 0 ? sign(cue) : 0.0F;
    obs[1] = static_cast<float>(promise);
    obs[2] = m.fraction_left();
  }
};

}  // namespace slipstream::probe
