// What a car is paid for one decision: a sum of named terms, each with a weight.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace slipstream::racing {

// Terms that are paid, then those that shape: a shaping term is part of the potential, so whatever its weight, nothing
// is earned by holding a place (Ng et al. 1999).
enum class Term : std::size_t {
  // paid once
  kLap,           // a lap was finished
  kFinish,        // all of them were
  kWin,           // first over the line, or past the others; -1 for those who are beaten
  kOvertake,      // places gained, minus places lost
  kWall,          // touched a wall
  kContact,       // touched another car
  kTargetCrash,   // the target touched a wall (convoy_lock: or was pressed to the border)
  kTargetFinish,  // the target got away
  kIdle,          // gave up
  kTimeout,       // time ran out
  // paid as they happen
  kProgress,  // metres along the line
  kGap,       // metres gained on the target
  kTime,      // seconds
  kSpeed,     // metres driven, in lengths of a second at full speed
  kReverse,   // seconds driven backwards
  kLateral,   // seconds times metres beside the line
  kHeading,   // seconds times radians off the line's heading
  kSteering,  // change of the steering axis
  kPressure,  // seconds within pressure_m of the target
  // shaping
  kPocket,   // 1 at the places ahead and beside a target from which it is squeezed, 0 far from them
  kSqueeze,  // 0 for a target in the middle of the road, 1 for one that is 1 m or more beside it
  kClose,    // 0 at the nearer of those places, -1 from 10 m away on
};
inline constexpr std::size_t kNumTerms = 22;
inline constexpr std::size_t kNumPaid = 19;  // the first of them

using TermWeights = std::array<double, kNumTerms>;
using Terms = std::array<double, kNumTerms>;

[[nodiscard]] std::vector<std::string> term_names();  // all, in order

constexpr double& at(Terms& terms, Term term) { return terms[static_cast<std::size_t>(term)]; }

}  // namespace slipstream::racing
