#include "probe/probe.hpp"

#include <stdexcept>
#include <utility>

#include "probe/alternating.hpp"
#include "probe/bandit.hpp"
#include "probe/constant.hpp"
#include "probe/coordination.hpp"
#include "probe/copy.hpp"
#include "probe/corridor.hpp"
#include "probe/delayed.hpp"
#include "probe/digit.hpp"
#include "probe/duration.hpp"
#include "probe/entities.hpp"
#include "probe/leaver.hpp"
#include "probe/lock.hpp"
#include "probe/parts.hpp"
#include "probe/recall.hpp"
#include "probe/remember.hpp"
#include "probe/roles.hpp"
#include "probe/target.hpp"

namespace slipstream::probe {
namespace {

using MakeWorlds = std::unique_ptr<Worlds> (*)(const ProbeConfig&, int);

template <class Rules>
std::unique_ptr<Worlds> make(const ProbeConfig& config, int num_worlds) {
  return std::make_unique<WorldsOf<ProbeWorld<Rules>>>(config, num_worlds);
}

constexpr std::pair<const char*, MakeWorlds> kTasks[] = {
    {"constant", &make<Constant>},
    {"delayed", &make<Delayed>},
    {"coordination", &make<Coordination>},
    {"leaver", &make<Leaver>},
    {"bandit", &make<Bandit>},
    {"duration", &make<Duration>},
    {"alternating", &make<Alternating>},
    {"corridor", &make<Corridor>},
    {"target", &make<Target>},
    {"parts", &make<Parts<true>>},
    {"switches", &make<Parts<false>>},
    {"digit", &make<Digit>},
    {"remember", &make<Remember>},
    {"copy", &make<Copy>},
    {"roles", &make<Roles>},
    {"recall", &make<Recall>},
    {"entities", &make<Entities>},
    {"lock", &make<Lock>},
};

}  // namespace

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const auto& [name, unused] : kTasks) names.emplace_back(name);
  return names;
}

std::unique_ptr<Worlds> make_worlds(const ProbeConfig& config, int num_worlds) {
  check_fields(config);
  if (num_worlds < 1)
    throw std::invalid_argument("num_worlds is " + std::to_string(num_worlds) + "; it must be at least 1");
  for (const auto& [name, make_task] : kTasks) {
    if (config.task == name) return make_task(config, num_worlds);
  }
  throw std::invalid_argument("there is no probe task '" + config.task + "'");
}

}  // namespace slipstream::probe
