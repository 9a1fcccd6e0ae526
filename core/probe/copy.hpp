// Half of an episode shows bits, one a tick; in the other half they must be said in the same order. Every right bit
// pays 2 / horizon: best return 1, without a memory 0.5. The horizon is even.
#pragma once

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Copy {
  std::uint64_t bits = 0;
  int tick = 0;
  int length = 0;

  static WorldSpec spec() { return discrete_spec({"player"}, {"bit", "says"}, {"minus", "plus"}); }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) {
    length = m.horizon / 2;
    bits = 0;
    for (int i = 0; i < length; ++i) bits |= static_cast<std::uint64_t>(m.draw_bit()) << (i % 64);
    tick = 0;
    show(m);
  }
  void step(const Moment& m) {
    if (tick >= length && *m.s.choice == bit_at(tick - length)) *m.s.rewards = 1.0F / static_cast<float>(length);
    tick = m.tick;
    m.end_all(m.s.terminated, 1);
    show(m);
  }
  void best(int agent, const Slices& s) const { s.choice[agent] = tick >= length ? bit_at(tick - length) : 0; }

 private:
  [[nodiscard]] int bit_at(int place) const { return static_cast<int>(bits >> (place % 64) & 1); }
  void show(const Moment& m) {
    const bool says = tick >= length;
    float* obs = m.s.obs_f32(0);
    obs[0] = says ? 0.0F : sign(bit_at(tick));
    obs[1] = says ? 1.0F : 0.0F;
  }
};

}  // namespace slipstream::probe
