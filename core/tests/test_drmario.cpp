// The game and its planner by hand, under sanitizers; against recorded games and plain searches in
// tests/worlds/drmario.
#include <array>
#include <string>

#include "check.hpp"
#include "drmario/engine.hpp"
#include "drmario/oracle.hpp"
#include "drmario/planner.hpp"
#include "drmario/world.hpp"
#include "slipstream/vec_env.hpp"

using namespace slipstream;
using namespace slipstream::drmario;

namespace {

Cells empty() {
  Cells cells;
  cells.fill(kEmpty);
  return cells;
}

void the_generator_comes_back_after_all_its_states_and_every_one_has_a_number() {
  Lfsr state;
  int count = 0;
  do {
    CHECK(state.reachable());
    state.step();
    ++count;
  } while (!(state == Lfsr{}));
  CHECK(count == kSeeds);
  for (const int number : {1, 2, 255, 256, 20000, kSeeds}) CHECK(Lfsr::numbered(number).reachable());
  CHECK(!(Lfsr{0, 0}.reachable()));
}

void loose_things_fall_together_and_viruses_stay() {
  Cells cells = empty();
  cells[0] = kLeft;
  cells[1] = kRight;
  cells[2] = kVirus;
  cells[3] = kSingle | 1;
  cells[8] = kVirus;  // below the left half: the pair rests on it
  CHECK(drop_loose(cells));
  CHECK(cells[0] == kLeft && cells[1] == kRight && cells[2] == kVirus && cells[11] == (kSingle | 1));
  cells[8] = kEmpty;
  CHECK(drop_loose(cells));
  CHECK(cells[8] == kLeft && cells[9] == kRight && cells[0] == kEmpty);
}

void rows_and_columns_may_share_a_cell_and_halves_that_lose_the_other_become_single() {
  Cells cells = empty();
  for (std::size_t i = 120; i < 124; ++i) cells[i] = kVirus;
  for (std::size_t i = 96; i < 120; i += 8) cells[i] = kSingle;
  cells[112] = kLeft;
  cells[113] = kRight | 2;
  const Matches rows = match_rows(cells);
  const Matches columns = match_columns(cells);
  CHECK(rows.runs == 1 && rows.viruses == 4 && rows.cells == 4);
  CHECK(columns.runs == 1 && columns.viruses == 0 && columns.cells == 3);
  clear_matched(cells);
  CHECK(is_free(cells[120]) && is_free(cells[96]) && cells[113] == (kSingle | 2));
}

void placements_and_poses_are_the_same_thing() {
  int known = 0;
  for (int rot = 0; rot < 4; ++rot)
    for (int row = 0; row < kRows; ++row)
      for (int col = 0; col < ((rot & 1) != 0 ? kColumns : kColumns - 1); ++col) {
        const Pose pose{static_cast<std::int8_t>(row), static_cast<std::int8_t>(col), static_cast<std::int8_t>(rot)};
        const int placement = placement_of(pose);
        if (placement < 0) continue;
        CHECK(pose_of(placement) == pose);
        ++known;
      }
  CHECK(known == 464);
}

// A level with some rubble on it.
Cells rubble(int number) {
  Cells cells = generate(number % 21, Lfsr::numbered(1 + 997 * number % kSeeds)).cells;
  Lfsr dice = Lfsr::numbered(1 + 31 * number);
  for (std::size_t i = 24; i < 80; ++i) {
    for (int k = 0; k < 5; ++k) dice.step();
    if ((dice.r0 & 7) == 0) cells[i] = kSingle | 1;
  }
  return cells;
}

void the_planner_finds_what_the_plain_search_finds() {
  constexpr std::array<int, 6> kTried{13, 8, 5, 3, 1, 0};
  for (int n = 0; n < 12; ++n) {
    const Cells cells = rubble(n);
    Start start;
    start.threshold = kTried[static_cast<std::size_t>(n) % kTried.size()];
    start.odd_next = n % 2 == 0;
    start.held = n % 4 == 3 ? kPressLeft | kPressA : 0;
    start.hor_velocity = static_cast<std::uint8_t>(n);
    Costs fast;
    Costs plain;
    plan(cells, start, fast, n % 5 == 0);
    plan_plainly(cells, start, plain, n % 5 == 0);
    CHECK(fast == plain);
    for (int a = n; a < kPlacements; a += 37) {
      const auto buttons = script(cells, start, a, n % 5 == 0);
      CHECK(buttons.size() ==
            (fast[static_cast<std::size_t>(a)] == kUnreachable ? 0 : fast[static_cast<std::size_t>(a)]));
    }
  }
}

void games_of_every_kind_go_on_for_ever_and_come_back_from_bytes() {
  for (const int kind : {0, 1, 2}) {
    DrMarioConfig config;
    config.players = kind == 1 ? 2 : 1;
    config.actions = kind == 2 ? Actions::kController : Actions::kPlacement;
    config.planes.feasible = kind != 2;
    config.planes.opponent = kind == 1;
    config.planes.falling = true;
    config.max_pills = 20;
    config.reward.fill(1.0);
    config.levels = {0, 7, 20, 24};
    VecEnv env(std::make_unique<WorldsOf<DrMarioWorld>>(config, 8), {.seed = 5, .reward_parts = true});
    env.reset({});
    const std::vector<int> agents = kind == 1 ? std::vector<int>{0, 1} : std::vector<int>{0};
    const int scripts = static_cast<int>(env.spec().scripts.size());
    const auto play = [&](int steps) {
      for (int t = 0; t < steps; ++t) {
        env.act_scripted(t % scripts, agents);
        env.step({});
      }
    };
    play(100);
    const auto here = env.snapshot();
    play(50);
    const auto there = env.snapshot();
    env.restore(here);
    play(50);
    CHECK(env.snapshot() == there);
  }
}

void a_config_that_cannot_be_is_refused() {
  DrMarioConfig config;
  config.players = 3;
  CHECK_THROWS(config.validate(), std::invalid_argument);
  config = {};
  config.levels = {25};
  CHECK_THROWS(config.validate(), std::invalid_argument);
  config = {};
  config.planes.opponent = true;
  CHECK_THROWS(config.validate(), std::invalid_argument);
  config = {};
  config.seeds = {0};
  CHECK_THROWS(config.validate(), std::invalid_argument);
}

}  // namespace

int main() {
  the_generator_comes_back_after_all_its_states_and_every_one_has_a_number();
  loose_things_fall_together_and_viruses_stay();
  rows_and_columns_may_share_a_cell_and_halves_that_lose_the_other_become_single();
  placements_and_poses_are_the_same_thing();
  the_planner_finds_what_the_plain_search_finds();
  games_of_every_kind_go_on_for_ever_and_come_back_from_bytes();
  a_config_that_cannot_be_is_refused();
  return test::finish();
}
