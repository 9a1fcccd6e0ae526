// On every tick one of the others has the agent's colour: point to the corner where it is. Reward
// 1 - mean((action - corner)^2) / 4: best return 1 per tick, on axes as by the table of corners; with m ticks left
// V = (1 - gamma^m) / (1 - gamma). Each further row is empty or has another colour, with equal chances. Who knows
// nothing of corners earns 3/4 per tick in the middle, 1/2 by the table.
#pragma once

#include <array>

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Entities {
  static constexpr int kAxes = 2;
  static constexpr int kColors = 3;
  static constexpr int kOwnFeatures = kColors + 1;
  static constexpr int kRow = kColors + kAxes;
  std::array<int, kAxes> corner{};  // as bits

  static WorldSpec spec(const ProbeConfig& config) {
    const std::vector<std::string> row{"red", "green", "blue", "x", "y"};
    std::vector<std::string> names{"red", "green", "blue", "left"};
    for (int k = 1; k <= config.entities; ++k) {
      for (const std::string& name : row) names.push_back("other" + std::to_string(k) + "_" + name);
    }
    WorldSpec spec = discrete_spec({"agent"}, std::move(names), {"x", "y"});
    spec.entities = {{"obs", kOwnFeatures, row}};
    spec.action.discrete = false;
    for (const float x : {-1.0F, 1.0F}) {
      for (const float y : {-1.0F, 1.0F}) spec.action.table.push_back({x, y});
    }
    return spec;
  }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) { draw(m); }
  void step(const Moment& m) {
    float squares = 0.0F;
    for (std::size_t k = 0; k < kAxes; ++k) {
      const float miss = std::clamp(m.s.action[k], -1.0F, 1.0F) - sign(corner[k]);
      squares += miss * miss;
    }
    *m.s.rewards = 1.0F - squares / (4 * kAxes);
    m.end_all(m.s.terminated, 1);
    draw(m);
  }
  void best(int agent, const Slices& s) const {
    for (std::size_t k = 0; k < kAxes; ++k) s.action[agent * kAxes + static_cast<int>(k)] = sign(corner[k]);
  }

 private:
  void draw(const Moment& m) {
    float* obs = m.s.obs_f32(0);
    std::fill_n(obs, kOwnFeatures + kRow * m.entities, 0.0F);
    const auto own = static_cast<int>(m.rng.below(kColors));
    const auto mine = static_cast<int>(m.rng.below(static_cast<std::uint32_t>(m.entities)));
    obs[own] = 1.0F;
    obs[kColors] = m.fraction_left();
    float* row = obs + kOwnFeatures;
    for (int k = 0; k < m.entities; ++k, row += kRow) {
      if (k != mine && m.draw_bit() == 0) continue;  // nobody
      const int color = k == mine ? own : (own + 1 + m.draw_bit()) % kColors;
      row[color] = 1.0F;
      for (std::size_t axis = 0; axis < kAxes; ++axis) {
        const int bit = m.draw_bit();
        row[static_cast<std::size_t>(kColors) + axis] = sign(bit);
        if (k == mine) corner[axis] = bit;
      }
    }
  }
};

}  // namespace slipstream::probe
