// What is seen of a world: observations, states, figures and drawings; and how scripts, which see it too, drive.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "racing/world.hpp"

namespace slipstream::racing {
namespace {

enum Script { kFollowGap, kPurePursuit, kStraight, kRandom, kStop, kSqueezer, kBlocker };

constexpr double kStraightShare = 0.44;  // of the largest speed
constexpr double kPocket = 0.5;          // metres that a place to squeeze from is wide
constexpr double kFar = 10.0;            // metres beyond which such a place is far
constexpr double kTurn = 2.0 * std::numbers::pi;

}  // namespace

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
      const SpeedLine& along = ideal();
      const Progress here = along.line.project(car.state.x, car.state.y);
      if (script == kPurePursuit || !other) {
        command = config_.pure_pursuit.drive(car.state, along, here, vehicle(i));
      } else {
        const Car& rival = cars_[*other];
        command = config_.blocker.drive(car.state, along, here, car.along_m() - rival.along_m(), rival.here.lateral,
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
  return {map.rows(),     map.columns(),    map.resolution(), map.origin().x,
          map.origin().y, map.origin().yaw, map.occupied()};
}

}  // namespace slipstream::racing
