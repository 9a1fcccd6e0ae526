// Two roles that see and do different things. The speaker sees a drawn target (3) and is paid 1 for saying it, of three
// words; the listener sees what was said on the tick before (4, silence first) and is paid 1 for choosing that, of
// five. With m ticks left V = (1 - gamma^m) / (1 - gamma) for either. Best returns: horizon, horizon.
#pragma once

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Roles {
  static constexpr int kWords = 3;
  static constexpr int kTargetFeatures = kWords + 1;
  static constexpr int kHeardFeatures = kWords + 2;
  int target = 0;
  int heard = 0;  // 0: silence

  static WorldSpec spec() {
    WorldSpec spec;
    spec.agents = spec.roles = {"speaker", "listener"};
    spec.obs.push_back({"target", DType::kF32, {kTargetFeatures}, 0.0F, 1.0F, {"one", "two", "three", "left"}});
    spec.obs.push_back(
        {"heard", DType::kF32, {kHeardFeatures}, 0.0F, 1.0F, {"silence", "one", "two", "three", "left"}});
    spec.unlike.push_back({"speaker", {"target"}, choices({"one", "two", "three"})});
    spec.unlike.push_back({"listener", {"heard"}, choices({"silence", "one", "two", "three", "nothing"})});
    spec.action.discrete = true;
    spec.action.size = spec.unlike.back().action.size;
    return spec;
  }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) {
    heard = 0;
    show(m);
  }
  void step(const Moment& m) {
    m.s.rewards[0] = m.s.choice[0] == target ? 1.0F : 0.0F;
    m.s.rewards[1] = m.s.choice[1] == heard ? 1.0F : 0.0F;
    heard = 1 + std::clamp(m.s.choice[0], 0, kWords - 1);
    m.end_all(m.s.terminated, 2);
    show(m);
  }
  void best(int agent, const Slices& s) const { s.choice[agent] = agent == 0 ? target : heard; }

 private:
  static ActionSpec choices(std::vector<std::string> names) {
    ActionSpec action;
    action.discrete = true;
    action.size = static_cast<int>(names.size());
    action.names = std::move(names);
    return action;
  }
  void show(const Moment& m) {
    target = static_cast<int>(m.rng.below(kWords));
    float* sees = m.s.obs_f32(0);  // of the speaker, who is first
    float* hears = m.s.obs_f32(1) + kHeardFeatures;
    for (int word = 0; word < kWords; ++word) sees[word] = word == target ? 1.0F : 0.0F;
    for (int word = 0; word <= kWords; ++word) hears[word] = word == heard ? 1.0F : 0.0F;
    sees[kTargetFeatures - 1] = hears[kHeardFeatures - 1] = m.fraction_left();
  }
};

}  // namespace slipstream::probe
