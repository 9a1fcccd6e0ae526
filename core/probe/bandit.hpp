// Four arms pay 0.1, 0.5, 0.3 and 1; a drawn, shown context masks none, the best, or the best two. A masked arm would
// pay 2, so a learner that ignores the mask earns more than the optimum and is caught. Best pay by context 1, 0.5, 0.3:
// best return 0.6 per tick on average; with m ticks left V = pay(context) + 0.6 (gamma - gamma^m) / (1 - gamma).
#pragma once

#include <array>

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Bandit {
  static constexpr int kArms = 4;
  static constexpr int kContexts = 3;
  static constexpr std::array<float, kArms> kPay{0.1F, 0.5F, 0.3F, 1.0F};
  static constexpr std::array<std::array<std::uint8_t, kArms>, kContexts> kAllowed{
      {{1, 1, 1, 1}, {1, 1, 1, 0}, {1, 0, 1, 0}}};
  static constexpr std::array<int, kContexts> kBest{3, 1, 2};
  static constexpr float kForbiddenPay = 2.0F;
  int context = 0;

  static WorldSpec spec() {
    WorldSpec spec = discrete_spec({"player"}, {"all_allowed", "best_masked", "best_two_masked", "left"},
                                   {"arm_0", "arm_1", "arm_2", "arm_3"});
    spec.masked = true;
    spec.stats = {"masked_choices"};
    return spec;
  }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) { draw(m); }
  void step(const Moment& m) {
    const auto arm = static_cast<std::size_t>(std::clamp(*m.s.choice, 0, kArms - 1));
    const bool is_allowed = allowed()[arm] != 0;
    *m.s.rewards = is_allowed ? kPay[arm] : kForbiddenPay;
    if (!is_allowed) *m.s.stats += 1.0;
    m.end_all(m.s.terminated, 1);
    draw(m);
  }
  void best(int agent, const Slices& s) const { s.choice[agent] = kBest[static_cast<std::size_t>(context)]; }

 private:
  void draw(const Moment& m) {
    context = static_cast<int>(m.rng.below(kContexts));
    float* obs = m.s.obs_f32(0);
    for (int c = 0; c < kContexts; ++c) obs[c] = c == context ? 1.0F : 0.0F;
    obs[kContexts] = m.fraction_left();
    std::copy_n(allowed().data(), kArms, m.s.action_mask);
  }
  [[nodiscard]] const std::array<std::uint8_t, kArms>& allowed() const {
    return kAllowed[static_cast<std::size_t>(context)];
  }
};

}  // namespace slipstream::probe
