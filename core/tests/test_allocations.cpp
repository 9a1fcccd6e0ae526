// A step must not allocate. Counting needs operator new for the whole program, hence a program of its own.
#include "airspace/horizontal_cr.hpp"
#include "airspace/world.hpp"
#include "allocations.hpp"
#include "check.hpp"
#include "drmario/world.hpp"
#include "probe/probe.hpp"
#include "racing/world.hpp"
#include "tick_world.hpp"

using namespace slipstream;

namespace {

void stepping_and_restarting_episodes_allocates_nothing(VecEnv& env) {
  env.reset({});
  const long before = allocations;
  for (int t = 0; t < 100; ++t) env.step({});
  env.reset({});
  CHECK(allocations == before);
}

}  // namespace

int main() {
  CHECK(std::unique_ptr<int>(new int(1)) != nullptr && allocations > 0);  // the counter counts
  airspace::AirspaceConfig sector;
  sector.random_sector.emplace().num_aircraft = 40;
  sector.random_sector->min_aircraft = 4;
  sector.max_episode_steps = 40;
  racing::RacingConfig race;  // every episode draws a circuit
  race.task = racing::Task::kHeadToHead;
  race.cars.resize(2);
  race.cars[0].id = "a";
  race.cars[1].id = "b";
  race.lidar.noise_m = 0.01;
  race.observation.line = race.observation.target = true;
  race.observation.frame_stack = 3;
  race.observation.others = 3;
  race.spawn.kind = racing::SpawnKind::kRandom;
  race.phases.resize(1);
  race.phases[0].name = "all";
  race.max_episode_steps = 20;
  drmario::DrMarioConfig games;  // two players, who let everything fall
  games.players = 2;
  games.planes.opponent = true;
  games.max_pills = 10;
  games.reward.fill(1.0);
  for (const int threads : {1, 2}) {
    VecEnv drmario(std::make_unique<WorldsOf<drmario::DrMarioWorld>>(games, 8),
                   {.threads = threads, .reward_parts = true});
    stepping_and_restarting_episodes_allocates_nothing(drmario);
    VecEnv racing(std::make_unique<WorldsOf<racing::RacingWorld>>(race, 8), {.threads = threads, .reward_parts = true});
    stepping_and_restarting_episodes_allocates_nothing(racing);
    VecEnv airspace(std::make_unique<WorldsOf<airspace::AirspaceWorld>>(sector, 16), {.threads = threads});
    stepping_and_restarting_episodes_allocates_nothing(airspace);
    VecEnv horizontal(std::make_unique<WorldsOf<airspace::HorizontalCrWorld>>(airspace::HorizontalCrConfig{}, 16),
                      {.threads = threads});
    stepping_and_restarting_episodes_allocates_nothing(horizontal);
    stepping_and_restarting_episodes_allocates_nothing(*test::make_tick_env({}, 64, {.threads = threads}));
    for (const std::string& task : probe::task_names()) {
      VecEnv env(probe::make_worlds({task, 8, 4}, 64), {.threads = threads, .reward_parts = true});
      stepping_and_restarting_episodes_allocates_nothing(env);
    }
  }
  return test::finish();
}
