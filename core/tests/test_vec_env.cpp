#include <cstdint>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "slipstream/vec_env.hpp"
#include "tick_world.hpp"

using namespace slipstream;
using test::clock;
using test::make_tick_env;
using test::TickWorld;

namespace {

using Row = std::vector<std::uint8_t>;

void a_finished_world_restarts_in_the_same_step() {
  auto env = make_tick_env({.horizon = 4, .leaves_at = 4, .period = 1}, 1);
  Buffers& b = env->buffers();
  env->reset({});
  const float first_draw = clock(b.obs, 0, 1);
  for (int t = 1; t <= 3; ++t) {
    env->step({});
    CHECK(clock(b.obs, 0, 0) == static_cast<float>(t));
    CHECK(b.rewards[0] == static_cast<float>(t));
    CHECK(b.duration[0] == 1);
    CHECK(b.episode_done[0] == 0);
  }
  env->step({});
  CHECK(b.truncated == (Row{1, 0}));
  CHECK(b.terminated == (Row{0, 1}));
  CHECK(b.alive == (Row{1, 1}));
  CHECK(b.acting == (Row{1, 1}));  // of the new episode
  CHECK(clock(b.final_obs, 0, 0) == 4.0F && clock(b.final_obs, 1, 0) == 4.0F);
  CHECK(b.final_obs[1][0] == std::byte{4});
  CHECK(b.final_mask == (Row{0, 1, 0, 0, 1, 0}));   // tick 4 allows choice 4 % 3
  CHECK(b.action_mask == (Row{1, 0, 0, 1, 0, 0}));  // and the next episode's first tick choice 0
  CHECK(b.final_state[0] == 4.0F && b.state[0] == 0.0F);
  CHECK(b.final_potential[0] == 4.0F && b.potential[0] == 0.0F);
  CHECK(clock(b.obs, 0, 0) == 0.0F);
  CHECK(clock(b.obs, 0, 1) != first_draw);  // the next episode draws from a stream of its own
  CHECK(b.rewards[0] == 4.0F);
  CHECK(b.episode_done[0] == 1 && b.episode_length[0] == 4 && b.episode_index[0] == 0);
  CHECK(b.episode_return[0] == 10.0 && b.episode_return[1] == 10.0);
  CHECK(b.episode_stats[0] == 4.0);
  for (int t = 0; t < 4; ++t) env->step({});
  CHECK(b.episode_done[0] == 1 && b.episode_index[0] == 1);
}

void a_departed_agent_shows_nothing_until_the_world_resets() {
  auto env = make_tick_env({.horizon = 4, .leaves_at = 2, .period = 1}, 1, {.reward_parts = true});
  Buffers& b = env->buffers();
  env->reset({});
  env->step({});
  env->step({});
  CHECK(b.terminated == (Row{0, 1}) && b.truncated == (Row{0, 0}));
  CHECK(b.alive == (Row{1, 1}));
  CHECK(b.acting == (Row{1, 0}));
  CHECK(b.rewards[1] == 2.0F);
  CHECK(clock(b.final_obs, 1, 0) == 2.0F && b.final_potential[1] == 2.0F && b.final_state[0] == 2.0F);
  CHECK(Row(b.final_mask.begin() + 3, b.final_mask.end()) == (Row{0, 0, 1}));
  CHECK(clock(b.obs, 1, 0) == 0.0F && clock(b.obs, 1, 1) == 0.0F && b.obs[1][4] == std::byte{0});
  CHECK(b.potential[1] == 0.0F);
  CHECK(clock(b.obs, 0, 0) == 2.0F);
  CHECK(b.episode_done[0] == 0);
  env->step({});
  CHECK(b.alive == (Row{1, 0}) && b.acting == (Row{1, 0}));
  CHECK(b.rewards[1] == 0.0F && b.terminated[1] == 0 && b.duration[1] == 0);
  CHECK(b.reward_parts == (std::vector<float>{3, 0, 0, 0}));
  CHECK(clock(b.obs, 1, 0) == 0.0F);
  CHECK(Row(b.action_mask.begin() + 3, b.action_mask.end()) == (Row{1, 1, 1}));
  env->step({});
  CHECK(b.episode_done[0] == 1 && b.episode_return[0] == 10.0 && b.episode_return[1] == 3.0);
  CHECK(b.acting == (Row{1, 1}) && b.alive == (Row{1, 0}));
}

void inactive_worlds_keep_their_observation_and_count_for_nothing() {
  auto env = make_tick_env({.horizon = 4, .leaves_at = 4, .period = 1}, 2, {.reward_parts = true});
  Buffers& b = env->buffers();
  env->reset({});
  env->step({});
  const float draw = clock(b.obs, 0, 1);
  const Row active{0, 1};
  env->step(active);
  CHECK(clock(b.obs, 0, 0) == 1.0F && clock(b.obs, 0, 1) == draw && clock(b.obs, 2, 0) == 2.0F);
  CHECK(b.alive == (Row{0, 0, 1, 1}) && b.acting == (Row{1, 1, 1, 1}));
  CHECK(b.rewards == (std::vector<float>{0, 0, 2, 2}));
  CHECK(b.reward_parts == (std::vector<float>{0, 0, 0, 0, 2, 0, 2, 0}));
  CHECK(b.duration == (std::vector<std::int32_t>{0, 0, 1, 1}));
  env->step(active);
  env->step(active);
  CHECK(b.episode_done == (Row{0, 1}));
  env->step({});
  CHECK(clock(b.obs, 0, 0) == 2.0F && b.episode_done == (Row{0, 0}));
}

void without_autoreset_a_finished_world_waits_for_reset() {
  auto env = make_tick_env({.horizon = 2, .leaves_at = 2, .period = 1}, 2, {.autoreset = false});
  Buffers& b = env->buffers();
  env->reset({});
  env->step({});
  env->step({});
  CHECK(b.episode_done == (Row{1, 1}) && b.acting == (Row{0, 0, 0, 0}));
  CHECK(clock(b.obs, 0, 0) == 0.0F && clock(b.final_obs, 0, 0) == 2.0F);
  env->step({});
  CHECK(b.episode_done == (Row{0, 0}) && b.alive == (Row{0, 0, 0, 0}) && b.rewards == (std::vector<float>(4)));
  const Row second{0, 1};
  env->reset(second);
  env->step({});
  CHECK(b.alive == (Row{0, 0, 1, 1}) && clock(b.obs, 2, 0) == 1.0F);
}

// Tick discount 0.5, a decision every 3 ticks, rewards 1, 2, 3, ...: 1 + 2/2 + 3/4, then 4 + 5/2 + 6/4, then 7 at the
// end.
void rewards_between_decisions_are_discounted_and_paid_at_the_next() {
  auto env = make_tick_env({.horizon = 7, .leaves_at = 7, .period = 3}, 1, {.tick_discount = 0.5});
  Buffers& b = env->buffers();
  env->reset({});
  const std::vector<float> paid{0, 0, 2.75F, 0, 0, 8, 7};
  const std::vector<std::int32_t> durations{1, 2, 3, 1, 2, 3, 1};
  const Row acting{0, 0, 1, 0, 0, 1, 1};
  for (std::size_t t = 0; t < paid.size(); ++t) {
    env->step({});
    CHECK(b.rewards[0] == paid[t]);
    CHECK(b.duration[0] == durations[t]);
    CHECK(b.acting[0] == acting[t]);
    CHECK(b.rewards[1] == static_cast<float>(t + 1) && b.duration[1] == 1);  // decides on every tick
  }
  CHECK(b.truncated[0] == 1 && b.episode_return[0] == 28.0);  // returns are not discounted
  env->step({});
  CHECK(b.rewards[0] == 0.0F && b.duration[0] == 1);  // nothing is owed across episodes
}

void a_reset_in_the_middle_of_a_decision_forgets_what_was_owed() {
  auto env = make_tick_env({.horizon = 9, .leaves_at = 9, .period = 3}, 1);
  env->reset({});
  env->step({});
  env->step({});
  env->reset({});
  for (int t = 0; t < 3; ++t) env->step({});
  CHECK(env->buffers().rewards[0] == 6.0F && env->buffers().duration[0] == 3);  // 1 + 2 + 3
}

void an_episode_may_go_without_an_agent() {
  auto env = make_tick_env({.horizon = 2, .leaves_at = 2, .alone = true}, 1, {.reward_parts = true});
  Buffers& b = env->buffers();
  const auto hidden = [&] {
    return clock(b.obs, 1, 1) == 0.0F && b.potential[1] == 0.0F && b.acting == (Row{1, 0}) &&
           Row(b.action_mask.begin() + 3, b.action_mask.end()) == (Row{1, 1, 1});
  };
  env->reset({});
  CHECK(b.alive == (Row{1, 0}) && hidden());
  env->step({});
  CHECK(b.alive == (Row{1, 0}) && hidden() && b.rewards == (std::vector<float>{1, 0}));
  env->step({});  // the next episode has both
  CHECK(b.episode_done[0] == 1 && b.truncated == (Row{1, 0}) && b.terminated == (Row{0, 0}));
  CHECK(b.episode_return[1] == 0.0 && b.episode_decisions == (std::vector<std::int32_t>{2, 0}));
  CHECK(b.acting == (Row{1, 1}) && clock(b.obs, 1, 1) != 0.0F);
  env->step({});
  CHECK(b.alive == (Row{1, 1}) && b.rewards == (std::vector<float>{1, 1}));
  env->step({});
  CHECK(b.alive == (Row{1, 1}) && b.episode_done[0] == 1 && hidden());
  env->step({});
  CHECK(b.alive == (Row{1, 0}));
  const auto middle = env->snapshot();
  auto other = make_tick_env({.horizon = 2, .leaves_at = 2, .alone = true}, 1, {.reward_parts = true});
  other->restore(middle);
  for (auto* each : {env.get(), other.get()}) each->step({});
  CHECK(other->snapshot() == env->snapshot());
}

void a_restored_snapshot_continues_bit_for_bit() {
  auto env = make_tick_env({.horizon = 5, .leaves_at = 2, .period = 3}, 3, {.seed = 9, .tick_discount = 0.9});
  env->reset({});
  const Row some{1, 0, 1};
  for (int t = 0; t < 7; ++t) env->step(t % 2 == 0 ? std::span<const std::uint8_t>{} : some);
  const auto middle = env->snapshot();
  const Row final_mask = env->buffers().final_mask;
  std::vector<std::vector<std::byte>> later;
  for (int t = 0; t < 9; ++t) {
    env->step({});
    later.push_back(env->snapshot());
  }
  auto other = make_tick_env({.horizon = 5, .leaves_at = 2, .period = 3}, 3, {.seed = 1, .tick_discount = 0.9});
  other->restore(middle);
  CHECK(other->snapshot() == middle && other->buffers().final_mask == final_mask);
  for (const auto& expected : later) {
    other->step({});
    CHECK(other->snapshot() == expected);
  }
}

void bytes_that_do_not_fit_are_refused_and_change_nothing() {
  auto env = make_tick_env({}, 2);
  env->reset({});
  env->step({});
  const auto before = env->snapshot();
  auto elsewhere = make_tick_env({}, 2, {.seed = 5});
  elsewhere->reset({});
  auto bytes = elsewhere->snapshot();
  const auto refused = [&](const std::vector<std::byte>& data) {
    CHECK_THROWS(env->restore(data), std::invalid_argument);
    CHECK(env->snapshot() == before);
  };
  for (std::size_t size = 0; size < bytes.size(); size += 7)
    refused({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)});
  refused(std::vector<std::byte>(1000, std::byte{0xAB}));
  auto longer = bytes;
  longer.push_back(std::byte{0});
  refused(longer);
  auto other_version = bytes;
  other_version[4] = std::byte{99};
  refused(other_version);
  auto other_world = bytes;
  other_world[16] ^= std::byte{1};  // first letter of the name, after magic, version and length
  refused(other_world);
  auto wider = make_tick_env({}, 3);
  wider->reset({});
  refused(wider->snapshot());
  env->restore(bytes);
  CHECK(env->snapshot() == bytes);
}

void worlds_draw_from_their_global_number_not_from_their_row() {
  auto whole = make_tick_env({}, 8, {.seed = 3});
  auto part = make_tick_env({}, 2, {.seed = 3, .first_world = 5});
  auto evaluation = make_tick_env({}, 8, {.seed = 3, .domain = Domain::kEvaluation});
  for (auto* env : {whole.get(), part.get(), evaluation.get()}) env->reset({});
  CHECK(clock(part->buffers().obs, 0, 1) == clock(whole->buffers().obs, 10, 1));
  CHECK(clock(part->buffers().obs, 2, 1) == clock(whole->buffers().obs, 12, 1));
  CHECK(clock(evaluation->buffers().obs, 0, 1) != clock(whole->buffers().obs, 0, 1));

  const std::vector<std::uint64_t> seeds{7, 3};
  const std::vector<std::uint32_t> worlds{0, 2};
  const Row second{0, 1};
  const float kept = clock(part->buffers().obs, 0, 1);
  part->reseed(seeds, worlds, second);
  part->reset(second);
  CHECK(clock(part->buffers().obs, 2, 1) == clock(whole->buffers().obs, 4, 1));
  CHECK(clock(part->buffers().obs, 0, 1) == kept);
}

void threads_do_not_change_a_bit() {
  auto one = make_tick_env({.horizon = 5, .leaves_at = 3, .period = 2}, 101, {.threads = 1});
  auto three = make_tick_env({.horizon = 5, .leaves_at = 3, .period = 2}, 101, {.threads = 3});
  for (auto* env : {one.get(), three.get()}) {
    env->reset({});
    for (int t = 0; t < 50; ++t) env->step({});
  }
  CHECK(one->snapshot() == three->snapshot());
}

void scripts_act_only_for_the_agents_asked_and_acting() {
  auto env = make_tick_env({.horizon = 9, .leaves_at = 1, .period = 2}, 1);
  Buffers& b = env->buffers();
  env->reset({});
  env->step({});  // tick 1: agent 0 is between decisions, agent 1 has left
  b.choice = {-1, -1};
  const std::vector<int> both{0, 1};
  env->act_scripted(0, both);
  CHECK(b.choice == (std::vector<std::int32_t>{-1, -1}));
  env->step({});
  env->act_scripted(0, both);
  CHECK(b.choice == (std::vector<std::int32_t>{2, -1}));
  CHECK_THROWS(env->act_scripted(1, both), std::invalid_argument);
  const std::vector<int> nobody{2};
  CHECK_THROWS(env->act_scripted(0, nobody), std::invalid_argument);
}

// A spec whose action is of parts that cannot be.
template <int kCase>
struct OddParts : TickWorld {
  using TickWorld::TickWorld;
  static WorldSpec spec(const Config& config) {
    WorldSpec spec = TickWorld::spec(config);
    spec.action = {};
    spec.action.size = 2;
    spec.action.parts = {2, 3};
    if (kCase == 1) spec.action.discrete = true;
    if (kCase == 2) spec.action.size = 1;
    if (kCase == 3) spec.action.parts = {2, 0};
    if (kCase == 4) spec.action.table = {{0.0F, 0.0F}};
    return spec;
  }
};

template <int kCase>
void make_odd_parts() {
  const VecEnv env(std::make_unique<WorldsOf<OddParts<kCase>>>(TickWorld::Config{}, 1), {});
}

void impossible_parts_are_refused() {
  make_odd_parts<0>();
  CHECK_THROWS(make_odd_parts<1>(), std::invalid_argument);
  CHECK_THROWS(make_odd_parts<2>(), std::invalid_argument);
  CHECK_THROWS(make_odd_parts<3>(), std::invalid_argument);
  CHECK_THROWS(make_odd_parts<4>(), std::invalid_argument);
}

void impossible_batches_are_refused() {
  CHECK_THROWS(make_tick_env({}, 0), std::invalid_argument);
  CHECK_THROWS(make_tick_env({}, 1, {.threads = 0}), std::invalid_argument);
  auto env = make_tick_env({}, 2);
  double frame[2];
  CHECK_THROWS(env->frame(2, frame), std::invalid_argument);
  CHECK_THROWS(env->reseed({}, {}, {}), std::invalid_argument);
}

void a_step_before_the_first_reset_does_nothing() {
  auto env = make_tick_env({}, 1);
  env->step({});
  CHECK(env->buffers().alive == (Row{0, 0}) && env->buffers().episode_done[0] == 0);
}

}  // namespace

int main() {
  a_finished_world_restarts_in_the_same_step();
  a_departed_agent_shows_nothing_until_the_world_resets();
  inactive_worlds_keep_their_observation_and_count_for_nothing();
  without_autoreset_a_finished_world_waits_for_reset();
  rewards_between_decisions_are_discounted_and_paid_at_the_next();
  a_reset_in_the_middle_of_a_decision_forgets_what_was_owed();
  an_episode_may_go_without_an_agent();
  a_restored_snapshot_continues_bit_for_bit();
  bytes_that_do_not_fit_are_refused_and_change_nothing();
  worlds_draw_from_their_global_number_not_from_their_row();
  threads_do_not_change_a_bit();
  scripts_act_only_for_the_agents_asked_and_acting();
  impossible_parts_are_refused();
  impossible_batches_are_refused();
  a_step_before_the_first_reset_does_nothing();
  return test::finish();
}
