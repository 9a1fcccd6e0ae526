// Tiny worlds with optima known in closed form, so that a learner's mistake shows as a wrong number within seconds.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "slipstream/vec_env.hpp"

namespace slipstream::probe {

struct ProbeConfig {
  std::string task;  // one of task_names()
  int horizon = 8;   // ticks of an episode, or its step limit where the task says so
};

[[nodiscard]] std::vector<std::string> task_names();

// Throws std::invalid_argument for an unknown task or a horizon below 2.
[[nodiscard]] std::unique_ptr<Worlds> make_worlds(const ProbeConfig& config, int num_worlds);

}  // namespace slipstream::probe
