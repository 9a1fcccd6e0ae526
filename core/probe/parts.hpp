// Choose in two parts at once, and with kAxis set a number too; each pays by itself. In the first part three choices
// pay 0.2, 0.6 and 1 in an order that is shown, and the best is sometimes masked. The second is `bandit`'s: four arms,
// and masks by a shown context. A masked choice would pay 2, so a learner that ignores a mask, or takes one part's for
// the other's, earns more than the optimum or less, and is caught. The axis pays 1 - (number - shown)^2.
// Best pay per tick on average (1 + 0.6) / 2 + 0.6 = 1.4, with the axis 2.4; with m ticks left
// V = pay now + average (gamma - gamma^m) / (1 - gamma).
#pragma once

#include <array>

#include "probe/bandit.hpp"
#include "probe/probe_world.hpp"

namespace slipstream::probe {

template <bool kAxis>
struct Parts {
  static constexpr int kFirst = 3;
  static constexpr int kSecond = Bandit::kArms;
  static constexpr int kNumbers = kAxis ? 3 : 2;
  static constexpr int kUnits = 1024;  // whole numbers of 1/1024: exact as floats
  static constexpr std::array<float, kFirst> kPay{0.2F, 0.6F, 1.0F};
  int order = 0;    // choice c of the first part pays kPay[(c + order) % 3]
  int is_open = 0;  // whether its best choice is allowed
  int context = 0;  // of the second part
  int shown = 0;    // for the axis

  static WorldSpec spec() {
    std::vector<std::string> features{"order_0",     "order_1",     "order_2",         "best_open",
                                      "all_allowed", "best_masked", "best_two_masked", "left"};
    std::vector<std::string> names{"first", "second"};
    if constexpr (kAxis) {
      features.emplace_back("shown");
      names.emplace_back("number");
    }
    WorldSpec spec = discrete_spec({"player"}, std::move(features), std::move(names));
    spec.action.discrete = false;
    spec.action.parts = {kFirst, kSecond};
    spec.masked = true;
    spec.stats = {"masked_choices"};
    return spec;
  }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) { draw(m); }
  void step(const Moment& m) {
    const int first = chosen(m.s, 0, kFirst);
    const int second = chosen(m.s, 1, kSecond);
    pay(m, first_allowed(first), kPay[static_cast<std::size_t>(rank(first))]);
    pay(m, second_allowed(second), Bandit::kPay[static_cast<std::size_t>(second)]);
    if constexpr (kAxis) {
      const float miss = std::clamp(m.s.action[2], -1.0F, 1.0F) - number();
      *m.s.rewards += 1.0F - miss * miss;
    }
    m.end_all(m.s.terminated, 1);
    draw(m);
  }
  void best(int agent, const Slices& s) const {
    float* action = s.action + agent * kNumbers;
    for (int c = 0; c < kFirst; ++c) {
      if (rank(c) == (is_open != 0 ? kFirst - 1 : kFirst - 2)) action[0] = static_cast<float>(c);
    }
    action[1] = static_cast<float>(Bandit::kBest[static_cast<std::size_t>(context)]);
    if constexpr (kAxis) action[2] = number();
  }

 private:
  static int chosen(const Slices& s, int part, int choices) {
    return std::clamp(static_cast<int>(s.action[part]), 0, choices - 1);
  }
  static void pay(const Moment& m, bool is_allowed, float amount) {
    *m.s.rewards += is_allowed ? amount : Bandit::kForbiddenPay;
    if (!is_allowed) *m.s.stats += 1.0;
  }
  void draw(const Moment& m) {
    order = static_cast<int>(m.rng.below(kFirst));
    is_open = m.draw_bit();
    context = static_cast<int>(m.rng.below(Bandit::kContexts));
    shown = static_cast<int>(m.rng.below(2 * kUnits + 1)) - kUnits;
    float* obs = m.s.obs_f32(0);
    for (int c = 0; c < kFirst; ++c) obs[c] = c == order ? 1.0F : 0.0F;
    obs[3] = sign(is_open);
    for (int c = 0; c < Bandit::kContexts; ++c) obs[4 + c] = c == context ? 1.0F : 0.0F;
    obs[7] = m.fraction_left();
    if constexpr (kAxis) obs[8] = number();
    for (int c = 0; c < kFirst; ++c) m.s.action_mask[c] = first_allowed(c) ? 1 : 0;
    for (int c = 0; c < kSecond; ++c) m.s.action_mask[kFirst + c] = second_allowed(c) ? 1 : 0;
  }
  [[nodiscard]] int rank(int choice) const { return (choice + order) % kFirst; }
  [[nodiscard]] bool first_allowed(int choice) const { return is_open != 0 || rank(choice) < kFirst - 1; }
  [[nodiscard]] bool second_allowed(int choice) const {
    return Bandit::kAllowed[static_cast<std::size_t>(context)][static_cast<std::size_t>(choice)] != 0;
  }
  [[nodiscard]] float number() const { return static_cast<float>(shown) / static_cast<float>(kUnits); }
};

}  // namespace slipstream::probe
