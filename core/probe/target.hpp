// Choose the two numbers shown: reward 1 - mean((action - target)^2). Best return = horizon; with m ticks left
// V = (1 - gamma^m) / (1 - gamma). Targets are uniform in [-1, 1], so the zero action earns 2/3 per tick.
#pragma once

#include <array>

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Target {
  static constexpr int kAxes = 2;
  static constexpr int kUnits = 1024;  // whole numbers of 1/1024: exact as floats
  std::array<int, kAxes> target{};

  static WorldSpec spec() {
    WorldSpec spec = discrete_spec({"agent"}, {"x", "y", "left"}, {"x", "y"});
    spec.action.discrete = false;
    for (const float x : {-0.5F, 0.5F}) {
      for (const float y : {-0.5F, 0.5F}) spec.action.table.push_back({x, y});
    }
    return spec;
  }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) { draw(m); }
  void step(const Moment& m) {
    float squares = 0.0F;
    for (int k = 0; k < kAxes; ++k) {
      const float miss = std::clamp(m.s.action[k], -1.0F, 1.0F) - at(k);
      squares += miss * miss;
    }
    *m.s.rewards = 1.0F - squares / kAxes;
    m.end_all(m.s.terminated, 1);
    draw(m);
  }
  void best(int agent, const Slices& s) const {
    for (int k = 0; k < kAxes; ++k) s.action[agent * kAxes + k] = at(k);
  }

 private:
  void draw(const Moment& m) {
    for (int& axis : target) axis = static_cast<int>(m.rng.below(2 * kUnits + 1)) - kUnits;
    float* obs = m.s.obs_f32(0);
    for (int k = 0; k < kAxes; ++k) obs[k] = at(k);
    obs[kAxes] = m.fraction_left();
  }
  [[nodiscard]] float at(int axis) const {
    return static_cast<float>(target[static_cast<std::size_t>(axis)]) / static_cast<float>(kUnits);
  }
};

}  // namespace slipstream::probe
