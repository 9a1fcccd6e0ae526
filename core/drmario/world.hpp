// Games of Dr. Mario as a world: one decision per pill (or per frame), for one player or two.
#pragma once

#include <array>

#include "drmario/config.hpp"
#include "drmario/engine.hpp"
#include "drmario/planner.hpp"
#include "slipstream/world.hpp"

namespace slipstream::drmario {

class DrMarioWorld {
 public:
  using Config = DrMarioConfig;

  explicit DrMarioWorld(const DrMarioConfig& config);
  static WorldSpec spec(const DrMarioConfig& config);

  void reset(const Rng& rng, const Slices& s);
  void step(const Slices& s);
  void scripted(int script, int agent, const Slices& s);
  void frame(double* out) const;

  template <class Archive>
  void archive(Archive& ar) {
    ar(seats_, counter_, frames_, level_, stage_, seed_, dice_);
  }

 private:
  // A player with what a world needs to know beside the game. Plain, so that a snapshot is a copy.
  struct Seat {
    Player game;
    Costs costs;               // of the pill under control
    std::int32_t pills = 0;    // decisions
    std::int32_t viruses = 0;  // at the start
    std::int32_t matches = 0;  // runs made so far
    std::int32_t garbage = 0;  // sent
    std::int32_t lock_in = 0;  // frames until the chosen placement is reached; 0: none is chosen
    Pose target;               // that placement
    std::uint8_t arrived = 0;  // a pill came under control on the last frame
    std::uint8_t decides = 0;  // the next frame is its to choose
    std::uint8_t buttons = 0;  // of the next frame, for a controller
  };

  // A phase's games, with numbers for what is left open.
  struct Stage {
    std::vector<int> levels;
    int viruses;     // 0: all of the level's
    int matches;     // 0: viruses are the goal
    int max_frames;  // 0: only pills are counted
  };

  [[nodiscard]] std::size_t players() const { return static_cast<std::size_t>(config_.players); }
  [[nodiscard]] const Stage& stage() const { return stages_[static_cast<std::size_t>(stage_ % kPhases)]; }
  [[nodiscard]] bool over() const;
  [[nodiscard]] int winner() const;
  [[nodiscard]] bool cleared(const Seat& seat) const;
  // Frames that a success may take; 0: any number.
  [[nodiscard]] std::int32_t most_frames() const { return stage_ >= kPhases ? stage_ / kPhases : stage().max_frames; }
  [[nodiscard]] bool in_time() const { return most_frames() == 0 || frames_ <= most_frames(); }
  void choose(Seat& seat, int action) const;
  [[nodiscard]] int greedy(const Seat& seat) const;
  void play(std::size_t p, int tick, const Slices& s);
  void arrive(Seat& seat);
  int skip(const Slices& s);
  void pay(std::size_t p, Part part, double amount, int tick, const Slices& s) const;
  void show(const Slices& s);
  void observe(std::size_t p, const Slices& s) const;
  void write_aux(std::size_t p, float* out) const;
  void write_stats(double* stats) const;
  void write_stats(std::size_t p, double*& stats) const;

  DrMarioConfig config_;
  std::vector<Stage> stages_;
  std::array<Seat, 2> seats_{};
  std::uint8_t counter_ = 1;  // of the next frame
  std::int32_t frames_ = 0;
  std::int32_t level_ = 0;
  std::int32_t stage_ = 0;  // as an entry of VecEnv's phases: with the time limit
  std::int32_t seed_ = 0;
  Rng dice_;  // for scripts
};

}  // namespace slipstream::drmario
