// One choice pays 1 after 1 tick, the other 4 after 4; which is which is drawn and shown. The short one is better for
// every gamma < 1, because 4 gamma^3 < 1 + gamma + gamma^2 + gamma^3, and V = 1 / (1 - gamma) at every decision.
// A learner that does not discount the reward by its delay, or the future by the duration, prefers the long one.
#pragma once

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Duration {
  static constexpr int kLongTicks = 4;
  static constexpr float kLongPay = 4.0F;
  int long_choice = 0;
  int ticks_to_pay = 0;
  int is_long = 0;

  static WorldSpec spec() {
    WorldSpec spec = discrete_spec({"agent"}, {"long_choice", "to_pay"}, {"minus", "plus"});
    spec.has_durations = true;
    spec.stats = {"long_choices"};
    return spec;
  }
  // The cut waits for the next decision: between decisions no value function is trained, so none could bootstrap there.
  static int max_episode_steps(int horizon) { return horizon + kLongTicks - 1; }

  void reset(const Moment& m) {
    long_choice = m.draw_bit();
    observe(m);
  }
  void step(const Moment& m) {
    if (*m.s.acting != 0) {
      is_long = *m.s.choice == long_choice ? 1 : 0;
      ticks_to_pay = is_long != 0 ? kLongTicks : 1;
      *m.s.stats += is_long;
    }
    --ticks_to_pay;
    *m.s.acting = ticks_to_pay == 0 ? 1 : 0;
    if (ticks_to_pay == 0) {
      *m.s.rewards = is_long != 0 ? kLongPay : 1.0F;
      long_choice = m.draw_bit();
      m.end_all(m.s.truncated, 1);
    }
    observe(m);
  }
  void best(int agent, const Slices& s) const { s.choice[agent] = 1 - long_choice; }

 private:
  void observe(const Moment& m) const {
    float* obs = m.s.obs_f32(0);
    obs[0] = sign(long_choice);
    obs[1] = static_cast<float>(ticks_to_pay) / static_cast<float>(kLongTicks);
  }
};

}  // namespace slipstream::probe
