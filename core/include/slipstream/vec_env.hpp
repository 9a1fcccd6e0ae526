// Many worlds stepped as one: owns every buffer, ends and restarts episodes, pays rewards on decision rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "slipstream/rng.hpp"
#include "slipstream/snapshot.hpp"
#include "slipstream/spec.hpp"
#include "slipstream/worker_pool.hpp"
#include "slipstream/world.hpp"

namespace slipstream {

// The only virtual seam of the core: N worlds of one family, so that VecEnv is compiled once.
class Worlds {
 public:
  virtual ~Worlds() = default;
  [[nodiscard]] virtual const WorldSpec& spec() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  virtual void reset(int i, const Rng& rng, const Slices& s) = 0;
  virtual void step(int i, const Slices& s) = 0;
  virtual void scripted(int i, int script, int agent, const Slices& s) = 0;
  virtual void save(int i, SnapshotWriter& out) = 0;
  virtual void restore(int i, SnapshotReader& in) = 0;
  virtual void frame(int i, double* out) const = 0;
  [[nodiscard]] virtual Backdrop backdrop(int i) const = 0;
};

template <World W>
class WorldsOf final : public Worlds {
 public:
  WorldsOf(const typename W::Config& config, int count) : spec_(W::spec(config)) {
    worlds_.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) worlds_.emplace_back(config);
  }
  [[nodiscard]] const WorldSpec& spec() const override { return spec_; }
  [[nodiscard]] int size() const override { return static_cast<int>(worlds_.size()); }
  void reset(int i, const Rng& rng, const Slices& s) override { at(i).reset(rng, s); }
  void step(int i, const Slices& s) override { at(i).step(s); }
  void scripted(int i, int script, int agent, const Slices& s) override { at(i).scripted(script, agent, s); }
  void save(int i, SnapshotWriter& out) override { at(i).archive(out); }
  void restore(int i, SnapshotReader& in) override { at(i).archive(in); }
  void frame(int i, double* out) const override { worlds_[static_cast<std::size_t>(i)].frame(out); }
  [[nodiscard]] Backdrop backdrop(int i) const override {
    if constexpr (requires(const W& world) { world.backdrop(); }) {
      return worlds_[static_cast<std::size_t>(i)].backdrop();
    } else {
      return {};
    }
  }

 private:
  W& at(int i) { return worlds_[static_cast<std::size_t>(i)]; }

  WorldSpec spec_;
  std::vector<W> worlds_;
};

struct VecEnvOptions {
  std::uint64_t seed = 0;
  Domain domain = Domain::kWorld;
  std::uint32_t first_world = 0;  // global index of world 0, so that workers draw what one process would
  int threads = 1;
  bool autoreset = true;  // same-step: a finished world shows its new first observation, the old one is in final_obs
  bool reward_parts = false;
  double tick_discount = 1.0;  // the learner's gamma, for rewards paid several ticks after a decision
};

// Buffers, one row per world. What each means is in docs/architecture.md ("The world contract").
struct Buffers {
  std::vector<std::vector<std::byte>> obs;                         // per block [N, A, ...]
  std::vector<std::vector<std::byte>> final_obs;                   // per block [N, A, ...]
  std::vector<float> state, final_state;                           // [N, S]
  std::vector<float> action;                                       // [N, A, K]
  std::vector<std::int32_t> choice;                                // [N, A]
  std::vector<std::uint8_t> action_mask, final_mask;               // [N, A, M]
  std::vector<float> rewards;                                      // [N, A]
  std::vector<float> potential, final_potential;                   // [N, A]
  std::vector<float> reward_parts;                                 // [N, A, P]
  std::vector<std::uint8_t> terminated, truncated, alive, acting;  // [N, A]
  std::vector<std::int32_t> duration;                              // [N, A]
  std::vector<std::int32_t> ticks;                                 // [N], of the last step; 0: it was not taken
  std::vector<std::uint8_t> episode_done;                          // [N]
  std::vector<std::int32_t> episode_length;                        // [N]
  std::vector<double> episode_return;                              // [N, A]
  std::vector<double> episode_stats;                               // [N, rows, Q], rows: A, or 1 for all agents
  std::vector<std::uint32_t> episode_index;                        // [N]
  std::vector<std::int32_t> episode_decisions;                     // [N, A]
};

class VecEnv {
 public:
  VecEnv(std::unique_ptr<Worlds> worlds, const VecEnvOptions& options);

  // Starts the next episode of every world, or of those with mask[i] != 0. Empty mask: all.
  void reset(std::span<const std::uint8_t> mask);
  // One step of every world, or of those with active[i] != 0. Rows of inactive worlds keep their observation and show
  // reward 0, alive 0 and no end.
  void step(std::span<const std::uint8_t> active);
  // Fills the action rows of `agents` (column indices) in every world as script number `script` would act.
  void act_scripted(int script, std::span<const int> agents);
  // Gives worlds streams of their own and rewinds them to their first episode; takes effect at the next reset().
  void reseed(std::span<const std::uint64_t> seeds, std::span<const std::uint32_t> worlds,
              std::span<const std::uint8_t> mask);

  // Which of the spec's phases the episodes of each world belong to that start from now on.
  void set_phases(std::span<const std::int32_t> phases);
  [[nodiscard]] const std::vector<std::int32_t>& phases() const { return phases_; }

  [[nodiscard]] std::vector<std::byte> snapshot() { return snapshot(0, num_worlds()); }
  void restore(std::span<const std::byte> bytes) { restore(bytes, 0, num_worlds()); }
  // The same of some worlds in a row: the bytes are those that a batch of them alone would give.
  [[nodiscard]] std::vector<std::byte> snapshot(int first, int count);
  void restore(std::span<const std::byte> bytes, int first, int count);
  void frame(int world, double* out) const;
  [[nodiscard]] Backdrop backdrop(int world) const;

  [[nodiscard]] const WorldSpec& spec() const { return worlds_->spec(); }
  [[nodiscard]] int num_worlds() const { return worlds_->size(); }
  [[nodiscard]] int threads() const { return pool_.threads(); }
  [[nodiscard]] Buffers& buffers() { return buffers_; }

 private:
  [[nodiscard]] Slices slices(int i);
  template <class Fn>
  void for_each_world(Fn&& fn);
  void step_world(int i, bool active);
  void pay(int i);
  void clear_departed(int i);
  void clear_row(std::size_t a);
  void finish_episode(int i);
  void start_episode(int i);
  template <class Archive>
  void archive(Archive& ar, std::uint32_t version);
  template <class Archive>
  void archive_stats(Archive& ar, std::uint32_t version, std::vector<double>& stats);
  void read(std::span<const std::byte> bytes, int first, int count);

  std::unique_ptr<Worlds> worlds_;
  VecEnvOptions options_;
  WorkerPool pool_;
  Buffers buffers_;
  std::size_t agents_ = 0;
  std::size_t figures_ = 0;  // numbers of one world's stats: rows * Q
  // Beside the buffers: what an episode accumulates.
  std::vector<std::uint64_t> seed_;          // [N]
  std::vector<std::uint32_t> stream_;        // [N], world number within the seed
  std::vector<std::uint32_t> next_episode_;  // [N]
  std::vector<std::uint8_t> present_;        // [N, A], still in the episode
  std::vector<std::int32_t> phases_;         // [N], of the episodes to come
  std::vector<std::int32_t> length_;         // [N], ticks of the running episode
  std::vector<std::int32_t> decisions_;      // [N, A], of the running episode
  std::vector<std::int32_t> elapsed_;        // [N, A], ticks since the last decision
  std::vector<double> returns_;              // [N, A], undiscounted, of the running episode
  std::vector<double> stats_;                // [N, rows, Q], of the running episode
  std::vector<double> owed_, discount_;      // [N, A], reward since the last decision, gamma^k
  std::vector<double> discounted_;           // [N, A], of this step
};

}  // namespace slipstream
