// Every closed form stated in core/probe is checked by playing the script "best" and adding up rewards.
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "check.hpp"
#include "probe/probe.hpp"

using namespace slipstream;

namespace {

constexpr double kGamma = 0.9;
constexpr int kHorizon = 8;
constexpr int kEntities = 4;

VecEnv make(const std::string& task, int num_worlds, VecEnvOptions options = {}) {
  options.tick_discount = kGamma;
  return VecEnv(probe::make_worlds({task, kHorizon, kEntities}, num_worlds), options);
}

void act_best(VecEnv& env) {
  std::vector<int> agents(env.spec().agents.size());
  std::iota(agents.begin(), agents.end(), 0);
  env.act_scripted(0, agents);
}

float* obs(VecEnv& env) { return reinterpret_cast<float*>(env.buffers().obs[0].data()); }

double paid_per_tick(int ticks) { return (1.0 - std::pow(kGamma, ticks)) / (1.0 - kGamma); }

// Plays episodes with the best script; calls check(world) on each episode's end.
void play_best(VecEnv& env, const std::function<void(int)>& at_end) {
  env.reset({});
  int ended = 0;
  for (int t = 0; t < 12 * kHorizon; ++t) {
    act_best(env);
    env.step({});
    for (int i = 0; i < env.num_worlds(); ++i) {
      if (env.buffers().episode_done[static_cast<std::size_t>(i)] == 0) continue;
      ++ended;
      at_end(i);
    }
  }
  CHECK(ended >= 10 * env.num_worlds());
}

void best_returns_are_those_stated() {
  const std::map<std::string, std::vector<double>> stated{
      {"constant", {8}}, {"delayed", {1}},  {"coordination", {8, 8}}, {"duration", {8}}, {"alternating", {8, 7}},
      {"target", {8}},   {"roles", {8, 8}}, {"entities", {8}},        {"lock", {1}}};
  for (const auto& [task, returns] : stated) {
    VecEnv env = make(task, 5);
    play_best(env, [&](int i) {
      for (std::size_t a = 0; a < returns.size(); ++a) {
        CHECK(env.buffers().episode_return[static_cast<std::size_t>(i) * returns.size() + a] == returns[a]);
      }
      CHECK(env.buffers().episode_length[static_cast<std::size_t>(i)] == kHorizon);
    });
  }
}

void the_leaver_is_paid_when_it_leaves_and_the_others_go_on() {
  VecEnv env = make("leaver", 40);
  std::vector<int> left_at(kHorizon + 1);
  play_best(env, [&](int i) {
    const auto w = static_cast<std::size_t>(i);
    const double stayed = env.buffers().episode_stats[w];
    const double* returns = &env.buffers().episode_return[3 * w];
    CHECK(returns[0] == kHorizon && returns[1] == kHorizon && returns[2] == stayed + 2.0);
    ++left_at[static_cast<std::size_t>(stayed)];
  });
  CHECK(left_at[0] == 0 && left_at[kHorizon] == 0);
  for (int tick = 1; tick < kHorizon; ++tick) CHECK(left_at[static_cast<std::size_t>(tick)] > 0);
}

void the_best_allowed_arm_earns_0_6_and_a_masked_one_more() {
  VecEnv env = make("bandit", 1000);
  double sum = 0.0;
  int episodes = 0;
  play_best(env, [&](int i) {
    sum += env.buffers().episode_return[static_cast<std::size_t>(i)];
    ++episodes;
    CHECK(env.buffers().episode_stats[static_cast<std::size_t>(i)] == 0.0);
  });
  CHECK(std::abs(sum / episodes / kHorizon - 0.6) < 0.01);  // standard error 0.001

  env.reset({});
  Buffers& b = env.buffers();
  std::fill(b.choice.begin(), b.choice.end(), 3);
  const std::vector<std::uint8_t> mask = b.action_mask;
  env.step({});
  for (std::size_t i = 0; i < 1000; ++i) CHECK(b.rewards[i] == (mask[4 * i + 3] != 0 ? 1.0F : 2.0F));
}

// Three choices and four beside each other: the masks of the first part stand in front, and each is paid by itself.
void the_best_of_several_parts_earns_their_sum_and_a_masked_choice_more() {
  for (const auto& [task, numbers, mean] : {std::tuple{"parts", 3U, 2.4}, std::tuple{"switches", 2U, 1.4}}) {
    VecEnv env = make(task, 1000);
    CHECK(env.spec().action.mask_size() == 7);
    double sum = 0.0;
    int episodes = 0;
    play_best(env, [&](int i) {
      sum += env.buffers().episode_return[static_cast<std::size_t>(i)];
      ++episodes;
      CHECK(env.buffers().episode_stats[static_cast<std::size_t>(i)] == 0.0);
    });
    CHECK(std::abs(sum / episodes / kHorizon - mean) < 0.01);  // standard error 0.002

    env.reset({});
    Buffers& b = env.buffers();
    act_best(env);
    std::vector<float> fair(1000);
    for (std::size_t i = 0; i < 1000; ++i) {
      const std::uint8_t* mask = &b.action_mask[7 * i];
      CHECK(mask[static_cast<std::size_t>(b.action[numbers * i])] == 1);
      CHECK(mask[3 + static_cast<std::size_t>(b.action[numbers * i + 1])] == 1);
      b.action[numbers * i + 1] = 3.0F;  // the arm that is sometimes masked
      fair[i] = mask[6] != 0 ? 1.0F : 2.0F;
    }
    const std::vector<float> first_and_axis = [&] {
      std::vector<float> paid(1000, numbers == 3 ? 1.0F : 0.0F);
      for (std::size_t i = 0; i < 1000; ++i) {
        const auto* mask = &b.action_mask[7 * i];
        paid[i] += mask[0] + mask[1] + mask[2] == 3 ? 1.0F : 0.6F;
      }
      return paid;
    }();
    env.step({});
    for (std::size_t i = 0; i < 1000; ++i) CHECK(std::abs(b.rewards[i] - first_and_axis[i] - fair[i]) < 1e-5F);
  }
}

// From any distance the discounted reward of walking right is gamma^(d-1); the horizon cuts the longest walks.
void the_corridor_is_worth_gamma_to_the_distance() {
  VecEnv env = make("corridor", 200);
  env.reset({});
  std::vector<int> start;
  for (int i = 0; i < 200; ++i) start.push_back(static_cast<int>(std::lround(12.0F * obs(env)[i])));
  for (int t = 1; t <= kHorizon; ++t) {
    act_best(env);
    const std::vector<float> potential = env.buffers().potential;
    env.step({});
    const Buffers& b = env.buffers();
    for (std::size_t i = 0; i < 200; ++i) {
      const int distance = 12 - start[i];
      if (t > distance) continue;  // a later episode
      CHECK(potential[i] == static_cast<float>(start[i] + t - 1) / 12.0F - 1.0F);
      CHECK(b.terminated[i] == (t == distance ? 1 : 0));
      CHECK(b.rewards[i] == (t == distance ? 1.0F : 0.0F));
      CHECK(b.truncated[i] == (t == kHorizon && distance > kHorizon ? 1 : 0));
    }
  }
}

// R + Gamma V over one decision: the short arm keeps V = 1 / (1 - gamma), the long one falls below it.
void only_the_discount_per_tick_ranks_the_arms_rightly() {
  for (const bool take_long : {false, true}) {
    VecEnv env = make("duration", 1);
    env.reset({});
    Buffers& b = env.buffers();
    act_best(env);
    if (take_long) b.choice[0] = 1 - b.choice[0];
    do {
      env.step({});
    } while (b.acting[0] == 0);
    const double v = 1.0 / (1.0 - kGamma);
    const double q = b.rewards[0] + std::pow(kGamma, b.duration[0]) * v;
    CHECK(b.duration[0] == (take_long ? 4 : 1));
    CHECK(std::abs(q - (take_long ? 4 * std::pow(kGamma, 3) + std::pow(kGamma, 4) * v : v)) < 1e-6);
    CHECK(take_long == (q < v - 0.5));
    if (take_long)
      CHECK(b.rewards[0] + kGamma * v > v && 4.0 + std::pow(kGamma, 4) * v > v);  // either mistake prefers it
  }
}

void the_duration_probe_is_cut_only_between_decisions() {
  VecEnv env = make("duration", 50);
  env.reset({});
  Buffers& b = env.buffers();
  std::vector<int> lengths(kHorizon + 4);
  for (int t = 0; t < 200; ++t) {
    for (std::size_t i = 0; i < 50; ++i)
      b.choice[i] = static_cast<std::int32_t>((i * 7 + static_cast<std::size_t>(t) * 3) % 5 % 2);
    env.step({});
    for (std::size_t i = 0; i < 50; ++i) {
      if (b.episode_done[i] == 0) continue;
      CHECK(b.truncated[i] == 1 && b.rewards[i] != 0.0F);
      CHECK(b.episode_length[i] >= kHorizon && b.episode_length[i] <= env.spec().max_episode_steps);
      ++lengths[static_cast<std::size_t>(b.episode_length[i])];
    }
  }
  CHECK(lengths[kHorizon] > 0 && lengths[kHorizon + 3] > 0);
}

// Two agents on different clocks: each decision's discounted sum telescopes to (1 - gamma^m) / (1 - gamma).
void alternating_agents_are_paid_per_tick_of_their_own_decisions() {
  VecEnv env = make("alternating", 1);
  env.reset({});
  Buffers& b = env.buffers();
  CHECK(b.acting == (std::vector<std::uint8_t>{1, 0}));
  std::vector<double> value(2);
  std::vector<double> gamma_so_far(2, 1.0);
  std::vector<std::uint8_t> has_decided{1, 0};
  for (int t = 1; t <= kHorizon; ++t) {
    act_best(env);
    env.step({});
    for (std::size_t a = 0; a < 2; ++a) {
      if (b.acting[a] == 0 && t < kHorizon) continue;
      if (has_decided[a] != 0) {
        value[a] += gamma_so_far[a] * b.rewards[a];
        gamma_so_far[a] *= std::pow(kGamma, b.duration[a]);
      }
      has_decided[a] = 1;
    }
    if (t == 1) CHECK(b.acting == (std::vector<std::uint8_t>{0, 1}) && b.rewards[1] == 0.0F);
    if (t == 2) CHECK(b.acting == (std::vector<std::uint8_t>{1, 0}) && std::abs(b.rewards[0] - 1.9F) < 1e-6F);
    if (t == 4) CHECK(b.acting == (std::vector<std::uint8_t>{1, 1}) && std::abs(b.rewards[1] - 2.71F) < 1e-6F);
  }
  CHECK(std::abs(value[0] - paid_per_tick(kHorizon)) < 1e-6);
  CHECK(std::abs(value[1] - paid_per_tick(kHorizon - 1)) < 1e-6);
}

void wrong_choices_earn_less() {
  for (const char* task : {"delayed", "coordination", "leaver", "alternating"}) {
    VecEnv env = make(task, 1);
    env.reset({});
    Buffers& b = env.buffers();
    for (;;) {
      act_best(env);
      for (auto& choice : b.choice) choice = 1 - choice;
      env.step({});
      if (b.episode_done[0] != 0) break;
    }
    for (std::size_t a = 0; a < b.choice.size(); ++a)
      CHECK(b.episode_return[a] == (std::string(task) == "leaver" && a == 2 ? 2.0 : 0.0));
  }
  VecEnv env = make("target", 1);
  env.reset({});
  const float x = obs(env)[0];
  const float y = obs(env)[1];
  env.buffers().action = {0.0F, 5.0F};  // beyond the bound: taken as 1
  env.step({});
  CHECK(std::abs(env.buffers().rewards[0] - (1.0F - (x * x + (1.0F - y) * (1.0F - y)) / 2.0F)) < 1e-6F);
}

void impossible_configs_are_refused() {
  CHECK_THROWS(probe::make_worlds({"nonsense", 8, kEntities}, 1), std::invalid_argument);
  CHECK_THROWS(probe::make_worlds({"constant", 1, kEntities}, 1), std::invalid_argument);
  CHECK_THROWS(probe::make_worlds({"constant", 8, kEntities}, 0), std::invalid_argument);
  CHECK_THROWS(probe::make_worlds({"entities", 8, 0}, 1), std::invalid_argument);
}

}  // namespace

int main() {
  best_returns_are_those_stated();
  the_leaver_is_paid_when_it_leaves_and_the_others_go_on();
  the_best_allowed_arm_earns_0_6_and_a_masked_one_more();
  the_best_of_several_parts_earns_their_sum_and_a_masked_choice_more();
  the_corridor_is_worth_gamma_to_the_distance();
  only_the_discount_per_tick_ranks_the_arms_rightly();
  the_duration_probe_is_cut_only_between_decisions();
  alternating_agents_are_paid_per_tick_of_their_own_decisions();
  wrong_choices_earn_less();
  impossible_configs_are_refused();
  return test::finish();
}
