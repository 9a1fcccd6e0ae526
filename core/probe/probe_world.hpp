// What every probe shares: a clock, a random stream and the world contract around a few rules.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "probe/probe.hpp"
#include "slipstream/world.hpp"

namespace slipstream::probe {

// What the rules of a probe see: the buffers and the time. At reset `tick` is 0; in a step it counts that step.
struct Moment {
  Rng& rng;
  int tick;
  int horizon;
  int entities;
  const Slices& s;

  [[nodiscard]] bool over() const { return tick >= horizon; }
  [[nodiscard]] int left() const { return horizon - tick; }
  [[nodiscard]] float fraction_left() const { return static_cast<float>(left()) / static_cast<float>(horizon); }
  [[nodiscard]] int draw_bit() const { return static_cast<int>(rng.below(2)); }
  void end_all(std::uint8_t* flags, int agents) const {
    if (over()) std::fill_n(flags, agents, std::uint8_t{1});
  }
};

// A bit as a feature centred on zero.
constexpr float sign(int bit) { return bit == 0 ? -1.0F : 1.0F; }

inline WorldSpec discrete_spec(std::vector<std::string> agents, std::vector<std::string> features,
                               std::vector<std::string> choices) {
  WorldSpec spec;
  spec.roles.assign(agents.size(), "player");
  spec.agents = std::move(agents);
  const int width = static_cast<int>(features.size());
  spec.obs.push_back({"obs", DType::kF32, {width}, -1.0F, 1.0F, std::move(features)});
  spec.action.discrete = true;
  spec.action.size = static_cast<int>(choices.size());
  spec.action.names = std::move(choices);
  return spec;
}

// Rules are plain integers (so that snapshots hold no padding) with spec() (or spec(config)), reset(), step() and
// best(): the optimal action, which the script of that name plays and against which the closed forms are tested.
template <class Rules>
class ProbeWorld {
  static_assert(std::is_empty_v<Rules> || std::has_unique_object_representations_v<Rules>);

 public:
  using Config = ProbeConfig;

  static WorldSpec spec(const Config& config) {
    WorldSpec spec = rules_spec(config);
    spec.name = "probe/" + config.task;
    spec.frame_fields = {"tick"};
    spec.scripts = {"best"};
    spec.max_episode_steps = Rules::max_episode_steps(config.horizon);
    return spec;
  }
  explicit ProbeWorld(const Config& config)
      : agents_(rules_spec(config).num_agents()), horizon_(config.horizon), entities_(config.entities) {}

  void reset(const Rng& rng, const Slices& s) {
    rng_ = rng;
    tick_ = 0;
    rules_ = Rules{};
    rules_.reset(Moment{rng_, tick_, horizon_, entities_, s});
  }
  void step(const Slices& s) {
    ++tick_;
    rules_.step(Moment{rng_, tick_, horizon_, entities_, s});
  }
  void scripted(int /*script*/, int agent, const Slices& s) const { rules_.best(agent, s); }
  template <class Archive>
  void archive(Archive& ar) {
    ar(rng_, tick_);
    if constexpr (!std::is_empty_v<Rules>) ar(rules_);
  }
  void frame(double* out) const { std::fill_n(out, agents_, static_cast<double>(tick_)); }

 private:
  static WorldSpec rules_spec(const Config& config) {
    if constexpr (requires { Rules::spec(config); }) {
      return Rules::spec(config);
    } else {
      return Rules::spec();
    }
  }

  int agents_;
  int horizon_;
  int entities_;
  int tick_ = 0;
  Rng rng_;
  Rules rules_{};
};

}  // namespace slipstream::probe
