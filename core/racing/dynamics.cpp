#include "racing/dynamics.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace slipstream::racing {
namespace {

constexpr double kGravity = 9.81;
constexpr double kDeadBand = 1e-4;  // compat: radians within which the steering rests

double limited_accel(double speed, double accel, const Vehicle& car) {
  if ((speed <= car.speed_min && accel <= 0.0) || (speed >= car.speed_max && accel >= 0.0)) return 0.0;
  const double most = speed > car.switch_mps ? car.accel_max * car.switch_mps / speed : car.accel_max;
  return std::clamp(accel, -car.accel_max, most);
}

double limited_steer_rate(double steer, double rate, const Vehicle& car) {
  if ((steer <= -car.steer_max && rate <= 0.0) || (steer >= car.steer_max && rate >= 0.0)) return 0.0;
  return std::clamp(rate, -car.steer_rate_max, car.steer_rate_max);
}

// The centre of gravity of a car whose wheels roll without slip moves at this angle to its heading.
double rolling_slip(double steer, const Vehicle& car) {
  return std::atan(std::tan(steer) * car.rear_m / car.wheelbase());
}

bool rolls(double speed, const Vehicle& car, Mode mode) {
  // Backwards the tyre model has no meaning; compat uses it all the same.
  return (mode == Mode::kCompat ? std::abs(speed) : speed) < rolling_below(car, mode);
}

// About the rear axle, though x and y are those of the centre of gravity.
State compat_kinematic(const State& s, const Input& u, const Vehicle& car) {
  const double base = car.wheelbase();
  const double cosine = std::cos(s.steer);
  return {.x = s.speed * std::cos(s.yaw),
          .y = s.speed * std::sin(s.yaw),
          .steer = u.steer_rate,
          .speed = u.accel,
          .yaw = s.speed / base * std::tan(s.steer),
          .yaw_rate = u.accel / base * std::tan(s.steer) + s.speed * u.steer_rate / (base * cosine * cosine),
          .slip = 0.0};
}

State clean_kinematic(const State& s, const Input& u, const Vehicle& car) {
  const double base = car.wheelbase();
  const double tangent = std::tan(s.steer);
  const double cosine = std::cos(s.steer);
  const double slip = rolling_slip(s.steer, car);
  const double lever = tangent * car.rear_m / base;
  const double slip_rate = 1.0 / (1.0 + lever * lever) * car.rear_m / (base * cosine * cosine) * u.steer_rate;
  return {.x = s.speed * std::cos(s.yaw + slip),
          .y = s.speed * std::sin(s.yaw + slip),
          .steer = u.steer_rate,
          .speed = u.accel,
          .yaw = s.speed * std::cos(slip) * tangent / base,
          .yaw_rate = (u.accel * std::cos(slip) * tangent - s.speed * std::sin(slip) * tangent * slip_rate +
                       s.speed * std::cos(slip) * u.steer_rate / (cosine * cosine)) /
                      base,
          .slip = slip_rate};
}

State dynamic(const State& s, const Input& u, const Vehicle& car) {
  const double lf = car.front_m;
  const double lr = car.rear_m;
  const double base = car.wheelbase();
  const double rear = kGravity * lr - u.accel * car.height_m;   // load on the front axle, up to a factor
  const double front = kGravity * lf + u.accel * car.height_m;  // and on the rear one
  const double cf = car.front_stiffness * rear;
  const double cr = car.rear_stiffness * front;
  return {.x = s.speed * std::cos(s.yaw + s.slip),
          .y = s.speed * std::sin(s.yaw + s.slip),
          .steer = u.steer_rate,
          .speed = u.accel,
          .yaw = s.yaw_rate,
          .yaw_rate =
              car.friction * car.mass_kg / (car.inertia_kgm2 * base) *
              (lf * cf * s.steer + (lr * cr - lf * cf) * s.slip - (lf * lf * cf + lr * lr * cr) * s.yaw_rate / s.speed),
          .slip = car.friction / (s.speed * base) *
                      (cf * s.steer - (cr + cf) * s.slip + (cr * lr - cf * lf) * s.yaw_rate / s.speed) -
                  s.yaw_rate};
}

State moved(const State& s, const State& rate, double dt) {
  return {.x = s.x + dt * rate.x,
          .y = s.y + dt * rate.y,
          .steer = s.steer + dt * rate.steer,
          .speed = s.speed + dt * rate.speed,
          .yaw = s.yaw + dt * rate.yaw,
          .yaw_rate = s.yaw_rate + dt * rate.yaw_rate,
          .slip = s.slip + dt * rate.slip};
}

}  // namespace

double rolling_below(const Vehicle& car, Mode mode) {
  if (mode == Mode::kCompat) return kKinematic;
  const double lf = car.front_m;
  const double lr = car.rear_m;
  const double damping = car.friction * car.mass_kg * kGravity / (car.inertia_kgm2 * car.wheelbase()) *
                         (lf * lf * car.front_stiffness * lr + lr * lr * car.rear_stiffness * lf);  // times 1 / speed
  return std::max(kKinematic, 0.5 * kStep * damping);
}

State derivative(const State& state, Input input, const Vehicle& car, Mode mode) {
  input.accel = limited_accel(state.speed, input.accel, car);
  input.steer_rate = limited_steer_rate(state.steer, input.steer_rate, car);
  if (!rolls(state.speed, car, mode)) return dynamic(state, input, car);
  return mode == Mode::kCompat ? compat_kinematic(state, input, car) : clean_kinematic(state, input, car);
}

Input follow(const State& state, const Command& command, const Vehicle& car, Mode mode) {
  Input input;
  const double error = command.steer - state.steer;
  if (mode == Mode::kCompat) {
    input.steer_rate = std::abs(error) > kDeadBand ? std::copysign(car.steer_rate_max, error) : 0.0;
  } else {
    input.steer_rate = std::clamp(kServoGain * error, -car.steer_rate_max, car.steer_rate_max);
  }
  const double faster = command.speed - state.speed;
  const double gain = state.speed > 0.0 ? 10.0 : 2.0;
  input.accel = gain * car.accel_max / (faster > 0.0 ? car.speed_max : -car.speed_min) * faster;
  return input;
}

void advance(State& state, Delay& delay, const Command& command, const Vehicle& car, Mode mode) {
  Command now = command;
  if (mode == Mode::kCompat) {
    now.steer = delay.steer[0];
    delay.steer = {delay.steer[1], command.steer};
  }
  const Input input = follow(state, now, car, mode);
  const State k1 = derivative(state, input, car, mode);
  const State k2 = derivative(moved(state, k1, kStep / 2.0), input, car, mode);
  const State k3 = derivative(moved(state, k2, kStep / 2.0), input, car, mode);
  const State k4 = derivative(moved(state, k3, kStep), input, car, mode);
  const auto mean = [](double a, double b, double c, double d) { return (a + 2.0 * b + 2.0 * c + d) / 6.0; };
  const State rate{.x = mean(k1.x, k2.x, k3.x, k4.x),
                   .y = mean(k1.y, k2.y, k3.y, k4.y),
                   .steer = mean(k1.steer, k2.steer, k3.steer, k4.steer),
                   .speed = mean(k1.speed, k2.speed, k3.speed, k4.speed),
                   .yaw = mean(k1.yaw, k2.yaw, k3.yaw, k4.yaw),
                   .yaw_rate = mean(k1.yaw_rate, k2.yaw_rate, k3.yaw_rate, k4.yaw_rate),
                   .slip = mean(k1.slip, k2.slip, k3.slip, k4.slip)};
  state = moved(state, rate, kStep);
  if (state.yaw > 2.0 * std::numbers::pi) state.yaw -= 2.0 * std::numbers::pi;
  if (state.yaw < 0.0) state.yaw += 2.0 * std::numbers::pi;
  if (mode == Mode::kCompat) return;
  state.steer = std::clamp(state.steer, -car.steer_max, car.steer_max);
  if (rolls(state.speed, car, mode)) {  // rolling wheels leave no choice, whatever the tyres did before
    state.slip = rolling_slip(state.steer, car);
    state.yaw_rate = state.speed * std::cos(state.slip) * std::tan(state.steer) / car.wheelbase();
  }
}

}  // namespace slipstream::racing
