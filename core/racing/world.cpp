#include "racing/world.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

namespace slipstream::racing {
namespace {

// Streams of one episode, apart from each other.
constexpr std::uint32_t kNoiseStream = 1;
constexpr std::uint32_t kDiceStream = 2;

constexpr int kSpawnTries = 32;
constexpr double kClearance = 0.05;  // metres kept free around cars at the start
constexpr double kTurn = 2.0 * std::numbers::pi;

double read_axis(float value) { return std::isnan(value) ? 0.0 : std::clamp(static_cast<double>(value), -1.0, 1.0); }

std::vector<std::vector<float>> action_grid(int steer, int speed) {
  const auto level = [](int i, int count) {
    return count == 1 ? 0.0F : static_cast<float>(2.0 * i / (count - 1) - 1.0);
  };
  std::vector<std::vector<float>> rows;
  for (int i = 0; i < steer; ++i)
    for (int j = 0; j < speed; ++j) rows.push_back({level(i, steer), level(j, speed)});
  return rows;
}

}  // namespace

WorldSpec RacingWorld::spec(const RacingConfig& config) {
  config.validate();
  WorldSpec spec;
  spec.name = "racing";
  for (const CarConfig& car : config.cars) {
    spec.agents.push_back(car.id);
    spec.roles.push_back(car.role);
  }
  const Observer observer(config);
  spec.obs = {observer.block()};
  spec.entities = observer.rows();
  spec.state_size = kStateWidth * config.num_cars() + 1;
  spec.action.size = kAxes;
  spec.action.names = {"steer", "speed"};
  spec.action.table = action_grid(config.steer_choices, config.speed_choices);
  const auto terms = choice_names(Term{});
  spec.reward_parts = {terms.begin(), terms.begin() + kNumPaid};
  for (const CarConfig& car : config.cars)
    for (std::size_t t = kNumPaid; t < kNumTerms; ++t) spec.has_potential |= car.reward[t] != 0.0;
  spec.stats = {"success",   "clean",        "laps",       "lap_s",     "progress_m",
                "speed_mps", "wrong_way_s",  "crashed",    "collided",  "target_finish",
                "collision", "target_crash", "self_crash", "idle_stop", "timeout"};
  spec.stats_per_agent = config.num_cars() > 1;
  spec.frame_fields = {"x_m", "y_m", "yaw_rad", "speed_mps", "steer_rad", "s_m", "lateral_m", "laps", "present"};
  spec.scripts = {"follow_gap", "pure_pursuit", "straight", "random", "stop"};
  if (config.num_cars() > 1) spec.scripts.insert(spec.scripts.end(), {"squeezer", "blocker"});
  spec.max_episode_steps = config.max_episode_steps;
  spec.tick_seconds = config.decision_s();
  for (const Phase& phase : config.phases) spec.phases.push_back(phase.name);
  return spec;
}

RacingWorld::RacingWorld(const RacingConfig& config)
    : config_((config.validate(), config)),
      course_(config.course),
      lidar_(config.lidar.beams, config.lidar.fov_rad, config.lidar.range_m),
      observer_(config) {
  const std::size_t n = config_.cars.size();
  for (const CarConfig& car : config_.cars) {
    vehicles_.push_back(vehicle_named(car.vehicle));
    vehicles_.back().friction *= car.friction_scale;
    vehicles_.back().mass_kg *= car.mass_scale;
  }
  if (course_ == nullptr) {
    maker_.emplace(config_.circuits);
    Track blank = maker_->blank();
    const Centerline line = blank.line;
    own_ = std::make_shared<Course>(Course{std::move(blank), {line, {}}, {}});  // moved: a copy would lose its room
    own_->ideal.line.reserve(maker_->most_points());
    own_->ideal.speed.reserve(maker_->most_points());
    course_ = own_;
  }
  const auto beams = static_cast<std::size_t>(config_.lidar.beams);
  scratch_.resize(beams);
  terms_.resize(n);
  before_m_.resize(n);
  seconds_.resize(n);
  last_steer_.resize(n);
  cars_.resize(n);
  scan_.resize(n * beams);
  history_.resize(n * observer_.frame_width() * static_cast<std::size_t>(config_.observation.frame_stack));
  actions_.resize(n * kAxes * static_cast<std::size_t>(std::max(1, config_.observation.action_stack)));
}

// --- starting ---

void RacingWorld::reset(const Rng& rng, const Slices& s) {
  Rng stream = rng;
  noise_ = rng.fork(kNoiseStream);
  dice_ = rng.fork(kDiceStream);
  circuit_ = rng;
  phase_ = std::clamp(s.phase, 0, static_cast<int>(config_.phases.size()) - 1);
  if (own_ != nullptr) draw_circuit(stream);
  place_cars(stream);
  steps_ = 0;
  time_s_ = 0.0;
  idle_s_ = 0.0;
  pressed_s_ = -1e9;
  first_ = -1;
  outcome_ = Outcome::kNone;
  std::fill(actions_.begin(), actions_.end(), 0.0F);
  rank();
  observe(s, true);
  write_stats(s.stats);
}

void RacingWorld::draw_circuit(Rng& stream) {
  maker_->draw(stream, own_->track);
  ideal_known_ = false;
}

// What pure pursuit follows. On a circuit of this episode's it is found when it is first asked for.
const SpeedLine& RacingWorld::ideal() {
  if (!ideal_known_) {
    own_->ideal.line.assign(own_->track.line.points(), true);
    set_speeds(own_->ideal, {.speed_max = config_.ideal_speed_mps});
    ideal_known_ = true;
  }
  return course_->ideal;
}

// Places go backwards along the line from the leader's.
Spot RacingWorld::spot_of(std::size_t place, double leader_m) const {
  const double side = place % 2 == 0 ? 1.0 : -1.0;
  return {leader_m - config_.spawn.gap_m * static_cast<double>(place), side * config_.spawn.stagger_m, 0.0};
}

void RacingWorld::place_cars(Rng& rng) {
  const SpawnConfig& spawn = config_.spawn;
  const Phase& phase = config_.phases[static_cast<std::size_t>(phase_)];
  const Centerline& line = course_->track.line;
  const std::size_t n = cars_.size();
  for (int attempt = 0; attempt <= kSpawnTries; ++attempt) {
    // The last try has no jitter: the listed places are free, which was checked.
    const double jitter = attempt < kSpawnTries ? 1.0 : 0.0;
    std::size_t set = 0;
    double leader_m = spawn.start_m;
    if (spawn.kind == SpawnKind::kSets) {
      const auto choices = phase.spawns.empty() ? spawn.sets.size() : phase.spawns.size();
      const std::uint32_t drawn = rng.below(static_cast<std::uint32_t>(choices));
      set = phase.spawns.empty() ? drawn : static_cast<std::size_t>(phase.spawns[drawn]);
    } else if (spawn.kind == SpawnKind::kRandom) {
      const double length = spawn.gap_m * static_cast<double>(n - 1);
      const double most = line.closed() ? line.length() : 0.5 * line.length();
      leader_m = line.closed() ? rng.uniform(0.0, most) : length + rng.uniform(1.0, most);
    }
    // In a head-to-head the order is drawn; who must overtake starts last.
    std::array<std::size_t, kMaxCars> place{};
    for (std::size_t i = 0; i < n; ++i) place[i] = config_.task == Task::kOvertake ? n - 1 - i : i;
    if (config_.task == Task::kHeadToHead)
      for (std::size_t i = n - 1; i > 0; --i) std::swap(place[i], place[rng.below(static_cast<std::uint32_t>(i + 1))]);
    const double speed = rng.uniform(phase.speed_from_mps, phase.speed_to_mps);
    for (std::size_t i = 0; i < n; ++i) {
      Spot spot = spawn.kind == SpawnKind::kSets ? spawn.sets[set].cars[i] : spot_of(place[i], leader_m);
      spot.lateral_m += jitter * rng.uniform(-spawn.lateral_jitter_m, spawn.lateral_jitter_m);
      spot.yaw_rad += jitter * rng.uniform(-spawn.yaw_jitter_rad, spawn.yaw_jitter_rad);
      put(i, spot);
      cars_[i].state.speed = std::clamp(speed, vehicle(i).speed_min, config_.cars[i].speed_max_mps);
    }
    if (clear_of_everything()) return;
  }
}

void RacingWorld::put(std::size_t i, const Spot& spot) {
  const Centerline& line = course_->track.line;
  const Point middle = line.at(spot.s_m);
  const double heading = line.heading_at(spot.s_m);
  Car& car = cars_[i];
  car = {};
  car.state.x = middle.x - spot.lateral_m * std::sin(heading);
  car.state.y = middle.y + spot.lateral_m * std::cos(heading);
  car.state.yaw = heading + spot.yaw_rad;
  car.state.yaw -= kTurn * std::floor(car.state.yaw / kTurn);
  car.here = line.project(car.state.x, car.state.y);
  car.start_m = spot.s_m;
}

bool RacingWorld::clear_of_everything() const {
  for (std::size_t i = 0; i < cars_.size(); ++i) {
    Box own = box(i);
    own.half_length += kClearance;
    own.half_width += kClearance;
    if (course_->track.map.touches(own)) return false;
    for (std::size_t j = 0; j < i; ++j)
      if (overlap(own, box(j))) return false;
  }
  return true;
}

Box RacingWorld::box(std::size_t i) const {
  const State& state = cars_[i].state;
  return {{state.x, state.y, state.yaw}, vehicle(i).length_m, vehicle(i).width_m};
}

// --- one decision ---

void RacingWorld::step(const Slices& s) {
  ++steps_;
  const std::size_t n = cars_.size();
  const std::size_t stack = actions_.size() / n;
  for (std::size_t i = 0; i < n; ++i) {
    Car& car = cars_[i];
    terms_[i] = {};
    seconds_[i] = 0.0;
    before_m_[i] = car.along_m();
    if (car.present == 0) continue;
    const double steer = read_axis(s.action[kAxes * i]);
    const double speed = read_axis(s.action[kAxes * i + 1]);
    float* past = actions_.data() + stack * i;
    last_steer_[i] = past[0];
    std::copy_backward(past, past + stack - kAxes, past + stack);
    past[0] = static_cast<float>(steer);
    past[1] = static_cast<float>(speed);
    const CarConfig& config = config_.cars[i];
    car.command.steer = steer * vehicle(i).steer_max;
    car.command.speed = config.speed_min_mps + 0.5 * (speed + 1.0) * (config.speed_max_mps - config.speed_min_mps);
  }
  const double before_s = time_s_;
  drive(seconds_.data());
  for (std::size_t i = 0; i < n; ++i)
    if (cars_[i].present != 0) follow_line(i, before_s);
  rank();
  judge();
  pay(s, seconds_.data());
  end(s);
  observe(s, false);
  write_stats(s.stats);
}

// Physics until the next decision; who touches something drives no further, and where one's end is everybody's, nobody.
void RacingWorld::drive(double* seconds) {
  const Phase& phase = config_.phases[static_cast<std::size_t>(phase_)];
  const bool together = config_.task != Task::kTimeTrial && config_.task != Task::kHeadToHead;
  for (int k = 0; k < config_.action_repeat; ++k) {
    bool anyone = false;
    for (std::size_t i = 0; i < cars_.size(); ++i) {
      Car& car = cars_[i];
      if (car.present == 0 || car.out()) continue;
      advance(car.state, car.delay, car.command, vehicle(i), config_.physics);
      if (i == 0 && steps_ <= phase.lock_steps) car.state.speed = phase.lock_mps;
      seconds[i] += kStep;
      anyone = true;
    }
    if (!anyone) return;
    time_s_ += kStep;
    touch();
    if (together && std::any_of(cars_.begin(), cars_.end(), [](const Car& car) { return car.out(); })) return;
  }
}

void RacingWorld::touch() {
  for (std::size_t i = 0; i < cars_.size(); ++i) {
    Car& car = cars_[i];
    if (car.present == 0 || car.out()) continue;
    const Box own = box(i);
    if (course_->track.map.touches(own)) car.wall = 1;
    for (std::size_t j = 0; j < i; ++j) {
      Car& other = cars_[j];
      if (other.present == 0) continue;
      const double dx = other.state.x - own.x;
      const double dy = other.state.y - own.y;
      const double reach = own.radius() + 0.5 * std::hypot(vehicle(j).length_m, vehicle(j).width_m);
      if (dx * dx + dy * dy > reach * reach || !overlap(own, box(j))) continue;
      car.contact = other.contact = 1;
    }
  }
}

// Where the car has come to along the line, and the laps it finished on the way.
void RacingWorld::follow_line(std::size_t i, double before_s) {
  Car& car = cars_[i];
  const Centerline& line = course_->track.line;
  const double reach = 1.0 + 1.5 * config_.decision_s() * std::abs(car.state.speed);
  const double s = car.here.s;
  car.here = line.project_near(car.state.x, car.state.y, car.here, reach);
  double moved = car.here.s - s;
  if (line.closed()) moved -= line.length() * std::round(moved / line.length());  // the shorter way around
  const double before = car.gone_m;
  car.gone_m += moved;
  if (moved < 0.0) car.wrong_s += seconds_[i];
  const double goal =
      line.closed() ? line.length() * (car.laps + 1) : line.length() - config_.finish_margin_m - car.start_m;
  if (car.gone_m < goal || car.finish_s > 0.0) return;
  // Within the decision, at constant speed.
  const double share = car.gone_m > before ? (goal - before) / (car.gone_m - before) : 1.0;
  const double finished = before_s + std::clamp(share, 0.0, 1.0) * seconds_[i];
  const double lap = finished - car.lap_from_s;
  car.lap_s = car.laps == 0 ? lap : std::min(car.lap_s, lap);
  car.lap_from_s = finished;
  ++car.laps;
  at(terms_[i], Term::kLap) = 1.0;
  if (line.closed() && car.laps < config_.laps) return;
  car.finish_s = finished;
  at(terms_[i], Term::kFinish) = 1.0;
}

}  // namespace slipstream::racing
