// Tiny worlds with optima known in closed form, so that a learner's mistake shows as a wrong number within seconds.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "probe/fields.hpp"
#include "slipstream/vec_env.hpp"

namespace slipstream::probe {

[[nodiscard]] std::vector<std::string> task_names();

// Throws std::invalid_argument for an unknown task or a horizon out of its bounds.
[[nodiscard]] std::unique_ptr<Worlds> make_worlds(const ProbeConfig& config, int num_worlds);

}  // namespace slipstream::probe
