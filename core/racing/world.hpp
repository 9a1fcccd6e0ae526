// The racing world: cars on one track, each steered by an agent. Its parts are in the order of a step: world.cpp
// (starts and drives), world_judging.cpp (pays and ends), world_showing.cpp (observations, figures, scripts, drawings).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "racing/config.hpp"
#include "racing/lidar.hpp"
#include "racing/observation.hpp"
#include "slipstream/world.hpp"

namespace slipstream::racing {

class RacingWorld {
 public:
  using Config = RacingConfig;

  static WorldSpec spec(const RacingConfig& config);
  explicit RacingWorld(const RacingConfig& config);  // throws std::invalid_argument where the race makes no sense

  void reset(const Rng& rng, const Slices& s);
  void step(const Slices& s);
  void scripted(int script, int agent, const Slices& s);
  void frame(double* out) const;
  [[nodiscard]] Backdrop backdrop() const;

  template <class Archive>
  void archive(Archive& ar) {
    ar(cars_, scan_, history_, actions_, noise_, dice_, circuit_, steps_, phase_, time_s_, idle_s_, pressed_s_, first_,
       outcome_);
    if constexpr (std::is_same_v<Archive, SnapshotReader>) {
      Rng stream = circuit_;
      if (own_ != nullptr) draw_circuit(stream);
    }
  }

 private:
  // One car. Plain, so that a snapshot is a copy.
  struct Car {
    State state;
    Delay delay;
    Command command;       // in force
    Progress here;         // on the centreline
    double start_m = 0.0;  // along the line, unrolled so that cars of one episode compare
    double gone_m = 0.0;   // since then, backwards negative
    double lap_from_s = 0.0;
    double lap_s = 0.0;     // the best lap; 0: none yet
    double wrong_s = 0.0;   // driven the wrong way
    double finish_s = 0.0;  // when it finished; 0: not yet
    std::int32_t laps = 0;
    std::int32_t place = 0;  // how many are ahead
    std::uint8_t present = 1;
    std::uint8_t wall = 0;
    std::uint8_t contact = 0;
    std::uint8_t scanned = 0;
    std::int32_t padding = 0;  // keeps snapshots free of indeterminate bytes

    [[nodiscard]] double along_m() const { return start_m + gone_m; }
    [[nodiscard]] bool out() const { return wall != 0 || contact != 0; }
  };
  static constexpr std::size_t kAxes = 2;  // steer, speed
  static constexpr int kStateWidth = 9;    // numbers per car of the global state

  enum class Outcome : std::int32_t {
    kNone,
    kTargetFinish,
    kCollision,
    kTargetCrash,
    kSelfCrash,
    kIdleStop,
    kTimeout,
    kWon
  };

  // Starting
  void draw_circuit(Rng& stream);
  [[nodiscard]] const SpeedLine& ideal();
  void place_cars(Rng& rng);
  void put(std::size_t i, const Spot& spot);
  [[nodiscard]] Spot spot_of(std::size_t place, double leader_m) const;
  [[nodiscard]] bool clear_of_everything() const;
  // One decision
  void drive(double* seconds);
  void touch();
  void follow_line(std::size_t i, double before_s);
  void rank();
  [[nodiscard]] bool duel() const { return config_.task == Task::kGaplock || config_.task == Task::kConvoyLock; }
  void judge();
  void judge_race();
  void judge_overtake();
  void judge_duel();
  void pay(const Slices& s, const double* seconds);
  void end(const Slices& s);
  // Showing
  void scan(std::size_t i);
  void observe(const Slices& s, bool first);
  [[nodiscard]] double potential(std::size_t i, std::size_t other) const;
  void write_state(float* out) const;
  void write_stats(double* stats) const;
  void write_stats(std::size_t i, double*& stats) const;
  [[nodiscard]] bool succeeded(std::size_t i) const;
  [[nodiscard]] std::optional<std::size_t> nearest_other(std::size_t i) const;
  // Writes the rows of the cars still on the track that are nearest to car i.
  void show_others(std::size_t i, const View& view, float* out) const;
  [[nodiscard]] const Vehicle& vehicle(std::size_t i) const { return vehicles_[i]; }
  [[nodiscard]] Box box(std::size_t i) const;

  RacingConfig config_;
  std::shared_ptr<const Course> course_;
  std::shared_ptr<Course> own_;  // the same where every episode has a circuit of its own
  bool ideal_known_ = true;      // of this circuit
  std::optional<CircuitMaker> maker_;
  Lidar lidar_;
  Observer observer_;
  std::vector<Vehicle> vehicles_;
  std::vector<float> scratch_;
  // Of this decision.
  std::vector<Terms> terms_;
  std::vector<double> before_m_;  // along the line
  std::vector<double> seconds_;
  std::vector<float> last_steer_;  // axis

  std::vector<Car> cars_;
  std::vector<float> scan_;     // [cars, beams], metres
  std::vector<float> history_;  // [cars, frame_stack, frame width], newest first
  std::vector<float> actions_;  // [cars, max(1, action_stack), 2], newest first
  Rng noise_;                   // of the scans
  Rng dice_;                    // of the random script
  Rng circuit_;                 // what this episode's circuit was drawn from
  std::int32_t steps_ = 0;
  std::int32_t phase_ = 0;
  double time_s_ = 0.0;
  double idle_s_ = 0.0;      // how long the attacker has been slow
  double pressed_s_ = -1e9;  // when the target was last pressed
  std::int32_t first_ = -1;  // who finished first
  Outcome outcome_ = Outcome::kNone;
};

}  // namespace slipstream::racing
