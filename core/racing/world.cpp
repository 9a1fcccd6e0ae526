#include "racing/world.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

namespace slipstream::racing {
namespace {

constexpr std::size_t kAxes = 2;  // steer, speed
enum Script { kFollowGap, kPurePursuit, kStraight, kRandom, kStop, kSqueezer, kBlocker };

// Streams of one episode, apart from each other.
constexpr std::uint32_t kNoiseStream = 1;
constexpr std::uint32_t kDiceStream = 2;

constexpr int kSpawnTries = 32;
constexpr double kClearance = 0.05;      // metres kept free around cars at the start
constexpr double kStraightShare = 0.44;  // of the largest speed
constexpr double kBackwards = -0.02;     // m/s
constexpr double kPocket = 0.5;          // metres that a place to squeeze from is wide
constexpr double kFar = 10.0;            // metres beyond which such a place is far
constexpr int kStateWidth = 9;           // numbers per car of the global state
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

double wrapped(double angle) { return angle - kTurn * std::round(angle / kTurn); }

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
  own_->ideal.line.assign(own_->track.line.points(), true);
  set_speeds(own_->ideal, {.speed_max = config_.ideal_speed_mps});
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

void RacingWorld::rank() {
  for (std::size_t i = 0; i < cars_.size(); ++i) {
    std::int32_t ahead = 0;
    for (std::size_t j = 0; j < cars_.size(); ++j) ahead += j != i && cars_[j].along_m() > cars_[i].along_m() ? 1 : 0;
    if (steps_ > 0) at(terms_[i], Term::kOvertake) = cars_[i].place - ahead;
    cars_[i].place = ahead;
  }
}

// What the decision decided.
void RacingWorld::judge() {
  for (std::size_t i = 0; i < cars_.size(); ++i) {
    if (cars_[i].present == 0) continue;
    at(terms_[i], Term::kWall) = cars_[i].wall;
    at(terms_[i], Term::kContact) = cars_[i].contact;
  }
  if (duel()) {
    judge_duel();
  } else if (config_.task == Task::kOvertake) {
    judge_overtake();
  } else {
    judge_race();
  }
  if (steps_ < config_.max_episode_steps || outcome_ != Outcome::kNone) return;
  for (std::size_t i = 0; i < cars_.size(); ++i) {
    const Car& car = cars_[i];
    if (car.present != 0 && !car.out() && car.finish_s == 0.0) at(terms_[i], Term::kTimeout) = 1.0;
  }
  if (duel()) outcome_ = Outcome::kTimeout;
}

void RacingWorld::judge_race() {
  if (first_ >= 0) return;
  for (std::size_t i = 0; i < cars_.size(); ++i) {
    const Car& car = cars_[i];
    if (car.present == 0 || car.finish_s == 0.0 || car.out()) continue;
    if (first_ < 0 || car.finish_s < cars_[static_cast<std::size_t>(first_)].finish_s)
      first_ = static_cast<std::int32_t>(i);
  }
  if (first_ < 0) return;
  for (std::size_t i = 0; i < cars_.size(); ++i)
    if (cars_[i].present != 0) at(terms_[i], Term::kWin) = static_cast<std::int32_t>(i) == first_ ? 1.0 : -1.0;
}

void RacingWorld::judge_overtake() {
  double lead = std::numeric_limits<double>::infinity();
  for (std::size_t j = 1; j < cars_.size(); ++j) lead = std::min(lead, cars_[0].along_m() - cars_[j].along_m());
  const bool anyone_out = std::any_of(cars_.begin(), cars_.end(), [](const Car& car) { return car.out(); });
  if (!anyone_out && lead >= config_.lead_m) {
    outcome_ = Outcome::kWon;
    for (std::size_t i = 0; i < cars_.size(); ++i) at(terms_[i], Term::kWin) = i == 0 ? 1.0 : -1.0;
  } else if (cars_[0].contact != 0) {
    outcome_ = Outcome::kCollision;
  } else if (cars_[0].wall != 0) {
    outcome_ = Outcome::kSelfCrash;
  } else if (anyone_out) {
    outcome_ = Outcome::kTargetCrash;
  }
}

// The outcomes exclude each other, in this order.
void RacingWorld::judge_duel() {
  const Car& attacker = cars_[0];
  const Car& target = cars_[1];
  const double apart = std::hypot(attacker.state.x - target.state.x, attacker.state.y - target.state.y);
  if (apart <= config_.pressure_m) pressed_s_ = time_s_;
  const Phase& phase = config_.phases[static_cast<std::size_t>(phase_)];
  const bool slow = std::abs(attacker.state.speed) < config_.idle_mps && steps_ > phase.lock_steps;
  idle_s_ = slow ? idle_s_ + seconds_[0] : 0.0;
  const bool at_border = config_.task == Task::kConvoyLock && std::abs(target.here.lateral) >= config_.border_m;
  if (target.finish_s > 0.0) {
    outcome_ = Outcome::kTargetFinish;
    at(terms_[0], Term::kTargetFinish) = 1.0;
  } else if (attacker.contact != 0) {
    outcome_ = Outcome::kCollision;
  } else if (target.wall != 0 || at_border) {
    outcome_ = Outcome::kTargetCrash;
    const bool pressed = time_s_ - pressed_s_ <= config_.pressed_s + 1e-9;
    if (config_.task == Task::kGaplock || at_border || pressed) {
      first_ = 0;  // the attacker has won
      at(terms_[0], Term::kTargetCrash) = 1.0;
    }
  } else if (attacker.wall != 0) {
    outcome_ = Outcome::kSelfCrash;
  } else if (config_.idle_after_s > 0.0 && idle_s_ >= config_.idle_after_s) {
    outcome_ = Outcome::kIdleStop;
    at(terms_[0], Term::kIdle) = 1.0;
  }
}

void RacingWorld::pay(const Slices& s, const double* seconds) {
  for (std::size_t i = 0; i < cars_.size(); ++i) {
    const Car& car = cars_[i];
    if (car.present == 0) continue;
    Terms& terms = terms_[i];
    const double spent = seconds[i];
    const double unit = std::max(std::abs(config_.cars[i].speed_min_mps), std::abs(config_.cars[i].speed_max_mps));
    at(terms, Term::kProgress) = car.along_m() - before_m_[i];
    at(terms, Term::kTime) = spent;
    at(terms, Term::kSpeed) = spent * car.state.speed / unit;
    at(terms, Term::kReverse) = car.state.speed < kBackwards ? spent : 0.0;
    at(terms, Term::kLateral) = spent * std::abs(car.here.lateral);
    at(terms, Term::kHeading) = spent * std::abs(wrapped(car.state.yaw - car.here.heading));
    at(terms, Term::kSteering) = std::abs(actions_[actions_.size() / cars_.size() * i] - last_steer_[i]);
    if (const auto other = nearest_other(i)) {
      const Car& target = cars_[*other];
      const double dx = car.state.x - target.state.x;
      const double dy = car.state.y - target.state.y;
      const double apart = std::hypot(dx, dy);
      at(terms, Term::kGap) = car.along_m() - before_m_[i] - (target.along_m() - before_m_[*other]);
      at(terms, Term::kPressure) = apart <= config_.pressure_m ? spent : 0.0;
    }
    double total = 0.0;
    for (std::size_t t = 0; t < kNumPaid; ++t) {
      const double part = config_.cars[i].reward[t] * terms[t];
      total += part;
      if (s.reward_parts != nullptr) s.reward_parts[i * kNumPaid + t] = static_cast<float>(part);
    }
    s.rewards[i] = static_cast<float>(total);
  }
}

void RacingWorld::end(const Slices& s) {
  const bool over = outcome_ != Outcome::kNone && outcome_ != Outcome::kTimeout;
  const bool last = steps_ >= config_.max_episode_steps;
  for (std::size_t i = 0; i < cars_.size(); ++i) {
    Car& car = cars_[i];
    if (car.present == 0) continue;
    const bool alone = config_.task == Task::kTimeTrial || config_.task == Task::kHeadToHead;
    const bool done = over || (alone && (car.out() || car.finish_s > 0.0));
    s.terminated[i] = done ? 1 : 0;
    s.truncated[i] = last && !done ? 1 : 0;
    if (done) car.present = 0;
  }
}

// --- showing ---

std::optional<std::size_t> RacingWorld::nearest_other(std::size_t i) const {
  std::optional<std::size_t> best;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t j = 0; j < cars_.size(); ++j) {
    if (j == i) continue;
    const double dx = cars_[j].state.x - cars_[i].state.x;
    const double dy = cars_[j].state.y - cars_[i].state.y;
    // Who has left the track is looked at only where nobody is left.
    const double far = dx * dx + dy * dy + (cars_[j].present != 0 ? 0.0 : 1e12);
    if (far < least) {
      least = far;
      best = j;
    }
  }
  return best;
}

void RacingWorld::show_others(std::size_t i, const View& view, float* out) const {
  std::array<std::size_t, kMaxCars> near{};
  std::array<double, kMaxCars> far2{};
  std::size_t count = 0;
  for (std::size_t j = 0; j < cars_.size(); ++j) {
    if (j == i || cars_[j].present == 0) continue;
    const double dx = cars_[j].state.x - cars_[i].state.x;
    const double dy = cars_[j].state.y - cars_[i].state.y;
    const double d2 = dx * dx + dy * dy;
    std::size_t at = count++;
    for (; at > 0 && d2 < far2[at - 1]; --at) {
      far2[at] = far2[at - 1];
      near[at] = near[at - 1];
    }
    far2[at] = d2;
    near[at] = j;
  }
  for (std::size_t k = 0; k < static_cast<std::size_t>(config_.observation.others); ++k)
    out = observer_.write_other(view, k < count ? &cars_[near[k]].state : nullptr, out);
}

void RacingWorld::scan(std::size_t i) {
  Car& car = cars_[i];
  if (car.scanned != 0) return;
  car.scanned = 1;
  const auto beams = static_cast<std::size_t>(config_.lidar.beams);
  const std::span<float> out(scan_.data() + beams * i, beams);
  const State& state = car.state;
  const double mount = config_.lidar.mount_m;
  const Pose pose{state.x + mount * std::cos(state.yaw), state.y + mount * std::sin(state.yaw), state.yaw};
  if (!course_->distance.empty()) {
    lidar_.march(course_->track.map, course_->distance, pose, out);
  } else {
    lidar_.walls(course_->track.map, pose, out);
  }
  if (config_.lidar.noise_m > 0.0) lidar_.add_noise(noise_, config_.lidar.noise_m, out);
  for (std::size_t j = 0; j < cars_.size(); ++j)
    if (j != i && cars_[j].present != 0) lidar_.occlude(box(j), pose, out);
  if (config_.lidar.dropout > 0.0) lidar_.drop(noise_, config_.lidar.dropout, out);
}

void RacingWorld::observe(const Slices& s, bool first) {
  const std::size_t n = cars_.size();
  const std::size_t width = observer_.width();
  const std::size_t frame = observer_.frame_width();
  const auto frames = static_cast<std::size_t>(config_.observation.frame_stack);
  const std::size_t stack = actions_.size() / n;
  const std::size_t shown = kAxes * static_cast<std::size_t>(config_.observation.action_stack);
  const auto beams = static_cast<std::size_t>(config_.lidar.beams);
  for (Car& car : cars_) car.scanned = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const Car& car = cars_[i];
    s.acting[i] = car.present;
    if (!first && s.alive[i] == 0) continue;
    if (config_.observation.scan) scan(i);
    const CarConfig& config = config_.cars[i];
    const auto other = nearest_other(i);
    const View view{.own = &car.state,
                    .target = other ? &cars_[*other].state : nullptr,
                    .here = &car.here,
                    .line = &course_->track.line,
                    .scan = {scan_.data() + beams * i, beams},
                    .steer_max = vehicle(i).steer_max,
                    .speed_unit = std::max(std::abs(config.speed_min_mps), std::abs(config.speed_max_mps))};
    float* past = history_.data() + frame * frames * i;
    std::copy_backward(past, past + frame * (frames - 1), past + frame * frames);
    observer_.write_frame(view, past);
    if (first)
      for (std::size_t k = 1; k < frames; ++k) std::copy_n(past, frame, past + frame * k);
    float* out = s.obs_f32(0) + width * i;
    out = std::copy_n(past, frame * frames, out);
    out = std::copy_n(actions_.data() + stack * i, shown, out);
    if (config_.observation.others > 0) show_others(i, view, out);
    if (s.potential != nullptr) s.potential[i] = other ? static_cast<float>(potential(i, *other)) : 0.0F;
  }
  write_state(s.state);
}

// How promising a car's place is, from the other's point of view.
double RacingWorld::potential(std::size_t i, std::size_t other) const {
  const TermWeights& weights = config_.cars[i].reward;
  const Car& target = cars_[other];
  const double dx = cars_[i].state.x - target.state.x;
  const double dy = cars_[i].state.y - target.state.y;
  const double c = std::cos(target.state.yaw);
  const double s = std::sin(target.state.yaw);
  const double ahead = dx * c + dy * s - config_.squeezer.ahead_m;
  const double beside = std::abs(dy * c - dx * s) - config_.squeezer.narrow_m;
  const double away = std::hypot(ahead, beside);  // from the nearer of the two places to squeeze from
  const double pocket = std::exp(-away * away / (2.0 * kPocket * kPocket));
  const double squeeze = std::min(1.0, std::abs(target.here.lateral));
  const double close = -std::min(1.0, away / kFar);
  return weights[static_cast<std::size_t>(Term::kPocket)] * pocket +
         weights[static_cast<std::size_t>(Term::kSqueeze)] * squeeze +
         weights[static_cast<std::size_t>(Term::kClose)] * close;
}

// The whole scene for centralised critics.
void RacingWorld::write_state(float* out) const {
  for (std::size_t i = 0; i < cars_.size(); ++i) {
    const Car& car = cars_[i];
    const double around = kTurn * car.here.s / course_->track.line.length();
    const double error = car.state.yaw - car.here.heading;
    const double unit = std::max(std::abs(config_.cars[i].speed_min_mps), std::abs(config_.cars[i].speed_max_mps));
    for (const double value : {static_cast<double>(car.present), std::sin(around), std::cos(around),
                               car.here.lateral / 2.0, std::sin(error), std::cos(error), car.state.speed / unit,
                               car.state.yaw_rate / unit, (car.along_m() - cars_[0].along_m()) / 10.0})
      *out++ = static_cast<float>(std::clamp(value, -1.0, 1.0));
  }
  *out = static_cast<float>(steps_) / static_cast<float>(config_.max_episode_steps);
}

// In a race whoever is first. Otherwise the first car has a task; the others succeed where it fails and they still
// drive.
bool RacingWorld::succeeded(std::size_t i) const {
  const bool overtake = config_.task == Task::kOvertake;
  if (!overtake && !duel()) return first_ == static_cast<std::int32_t>(i);
  const bool won = overtake ? outcome_ == Outcome::kWon : first_ == 0;
  return i == 0 ? won : !won && !cars_[i].out();
}

void RacingWorld::write_stats(double* stats) const {
  for (std::size_t i = 0; i < cars_.size(); ++i) write_stats(i, stats);
}

// One car's own; `stats` advances.
void RacingWorld::write_stats(std::size_t i, double*& stats) const {
  const Car& ego = cars_[i];
  const bool together = config_.task == Task::kOvertake || duel();
  const bool success = succeeded(i);
  const bool collided = ego.contact != 0;
  *stats++ = success ? 1.0 : 0.0;
  *stats++ = success && !collided ? 1.0 : 0.0;
  *stats++ = ego.laps;
  *stats++ = ego.laps > 0 ? ego.lap_s : std::numeric_limits<double>::quiet_NaN();
  *stats++ = ego.gone_m;
  *stats++ = time_s_ > 0.0 ? ego.gone_m / (ego.finish_s > 0.0 && !together ? ego.finish_s : time_s_) : 0.0;
  *stats++ = ego.wrong_s;
  *stats++ = ego.wall;
  *stats++ = collided ? 1.0 : 0.0;
  for (const Outcome outcome : {Outcome::kTargetFinish, Outcome::kCollision, Outcome::kTargetCrash, Outcome::kSelfCrash,
                                Outcome::kIdleStop, Outcome::kTimeout})
    *stats++ = outcome_ == outcome ? 1.0 : 0.0;
}

void RacingWorld::scripted(int script, int agent, const Slices& s) {
  const auto i = static_cast<std::size_t>(agent);
  const Car& car = cars_[i];
  const CarConfig& config = config_.cars[i];
  const auto other = nearest_other(i);
  Command command;
  switch (script) {
    case kFollowGap: {
      scan(i);
      const auto beams = static_cast<std::size_t>(config_.lidar.beams);
      const FollowGap& rules = config_.phases[static_cast<std::size_t>(phase_)].follow_gap;
      command = rules.drive({scan_.data() + beams * i, beams}, config_.lidar.fov_rad, car.command.steer, vehicle(i),
                            scratch_);
      break;
    }
    case kPurePursuit:
    case kBlocker: {
      const SpeedLine& ideal = course_->ideal;
      const Progress here = ideal.line.project(car.state.x, car.state.y);
      if (script == kPurePursuit || !other) {
        command = config_.pure_pursuit.drive(car.state, ideal, here, vehicle(i));
      } else {
        const Car& rival = cars_[*other];
        command = config_.blocker.drive(car.state, ideal, here, car.along_m() - rival.along_m(), rival.here.lateral,
                                        vehicle(i));
      }
      break;
    }
    case kSqueezer:
      if (other) {
        const Car& target = cars_[*other];
        command = config_.squeezer.drive(car.state, target.state, target.here.lateral, time_s_, vehicle(i));
      }
      break;
    case kStraight:
      command.speed = kStraightShare * config.speed_max_mps;
      break;
    case kRandom: {
      Rng dice = dice_.fork(static_cast<std::uint32_t>(16 + agent));
      dice.skip_to(static_cast<std::uint32_t>(steps_));
      s.action[kAxes * i] = static_cast<float>(dice.uniform(-1.0, 1.0));
      s.action[kAxes * i + 1] = static_cast<float>(dice.uniform(-1.0, 1.0));
      return;
    }
    default:
      break;
  }
  const double span = config.speed_max_mps - config.speed_min_mps;
  s.action[kAxes * i] = static_cast<float>(std::clamp(command.steer / vehicle(i).steer_max, -1.0, 1.0));
  s.action[kAxes * i + 1] =
      static_cast<float>(std::clamp(2.0 * (command.speed - config.speed_min_mps) / span - 1.0, -1.0, 1.0));
}

void RacingWorld::frame(double* out) const {
  for (const Car& car : cars_)
    for (const double value : {car.state.x, car.state.y, car.state.yaw, car.state.speed, car.state.steer, car.here.s,
                               car.here.lateral, static_cast<double>(car.laps), static_cast<double>(car.present)})
      *out++ = value;
}

Backdrop RacingWorld::backdrop() const {
  const GridMap& map = course_->track.map;
  return {map.rows(),     map.columns(),    map.resolution(),     map.origin().x,
          map.origin().y, map.origin().yaw, map.occupied().data()};
}

}  // namespace slipstream::racing
