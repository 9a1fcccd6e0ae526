// How a car moves: the single-track model, its low-level control and one step of time.
#pragma once

#include <array>

#include "racing/fields.hpp"
#include "racing/vehicle.hpp"

namespace slipstream::racing {

// Mode compat is f1tenth_gym (main branch) to the letter; clean keeps one reference point at all speeds (slow cars roll
// about the point the centre of gravity says), steers by a proportional servo instead of full left or full right, holds
// the steering angle within its stops, and lets tyres slip only where a step of time can follow them.

inline constexpr double kStep = 0.01;       // seconds
inline constexpr double kKinematic = 0.5;   // metres per second below which wheels roll; in clean at least
inline constexpr double kServoGain = 20.0;  // clean: steering rate per radian of error, 1/s

struct State {
  double x = 0.0;
  double y = 0.0;
  double steer = 0.0;  // angle of the front wheels
  double speed = 0.0;
  double yaw = 0.0;
  double yaw_rate = 0.0;
  double slip = 0.0;  // angle between the heading and the motion of the centre of gravity
};

struct Input {
  double steer_rate = 0.0;
  double accel = 0.0;
};

struct Command {
  double steer = 0.0;
  double speed = 0.0;
};

// Speed below which this car's wheels just roll. Tyres damp the yaw rate the faster the slower the car: clean rolls
// where that would outrun the integrator (Runge-Kutta 4 is stable to 2.78 time constants a step; we keep to 2).
[[nodiscard]] double rolling_below(const Vehicle& car, Mode mode);

// Time derivative of every state; the inputs are brought within the car's limits first.
[[nodiscard]] State derivative(const State& state, Input input, const Vehicle& car, Mode mode);

// What the low-level control asks of the motors to follow a command.
[[nodiscard]] Input follow(const State& state, const Command& command, const Vehicle& car, Mode mode);

// Steering commands that have not reached the wheels yet: compat applies them two steps late.
struct Delay {
  std::array<double, 2> steer{};
};

// One step of kStep: Runge-Kutta 4 with the inputs held; yaw stays within [0, 2 pi).
void advance(State& state, Delay& delay, const Command& command, const Vehicle& car, Mode mode);

}  // namespace slipstream::racing
