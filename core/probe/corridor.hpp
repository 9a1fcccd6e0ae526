// Walk right to the goal at cell 12: 1 on arrival, which terminates; the horizon truncates and is not shown.
// At distance d V = gamma^(d-1). Some starts are further from the goal than a horizon below 12 lasts, so their value
// can only come from bootstrapping at truncation: a learner that takes the cut for an end undervalues them, to 0 with
// lambda = 1. The potential is -d / 12, so a learner with shaping weight k sees V = gamma^(d-1) + k d / 12.
#pragma once

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Corridor {
  static constexpr int kGoal = 12;
  int cell = 0;

  static WorldSpec spec() {
    WorldSpec spec = discrete_spec({"walker"}, {"position"}, {"left", "right"});
    spec.has_potential = true;
    spec.stats = {"arrived"};
    return spec;
  }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) {
    cell = static_cast<int>(m.rng.below(kGoal));
    observe(m);
  }
  void step(const Moment& m) {
    cell = std::max(0, cell + (*m.s.choice == 1 ? 1 : -1));
    if (cell == kGoal) {
      *m.s.rewards = 1.0F;
      *m.s.terminated = 1;
      *m.s.stats = 1.0;
    } else {
      m.end_all(m.s.truncated, 1);
    }
    observe(m);
  }
  void best(int agent, const Slices& s) const { s.choice[agent] = 1; }

 private:
  void observe(const Moment& m) const {
    const float position = static_cast<float>(cell) / static_cast<float>(kGoal);
    *m.s.obs_f32(0) = position;
    *m.s.potential = position - 1.0F;  // minus the distance to the goal, in corridors
  }
};

}  // namespace slipstream::probe
