// What a decision was worth and whether it ended the race: the second half of a step.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "racing/world.hpp"

namespace slipstream::racing {
namespace {

constexpr double kBackwards = -0.02;  // m/s
constexpr double kTurn = 2.0 * std::numbers::pi;

double wrapped(double angle) { return angle - kTurn * std::round(angle / kTurn); }

}  // namespace

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

}  // namespace slipstream::racing
