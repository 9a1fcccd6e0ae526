// Arrays as kernels take them: contiguous, in CPU memory, of the right shape, never converted.
#pragma once

#include <stdexcept>
#include <string>

#include "bind/bind.hpp"
#include "kernels/gae.hpp"

namespace slipstream {

template <class A, class B>
void same_shape(const A& a, const B& b, const char* what) {
  if (a.shape(0) != b.shape(0) || a.shape(1) != b.shape(1)) {
    const auto shape = [](const auto& array) {
      return "(" + std::to_string(array.shape(0)) + ", " + std::to_string(array.shape(1)) + ")";
    };
    throw std::invalid_argument(std::string(what) + " has the shape " + shape(b) + ", the other arrays " + shape(a));
  }
}

// What GAE and V-trace read, checked.
inline GaeInput slab(const In<std::uint8_t, 2>& decided, const In<float, 2>& value, const In<std::uint8_t, 2>& paid,
                     const In<float, 2>& reward, const In<std::int32_t, 2>& duration,
                     const In<std::uint8_t, 2>& terminated, const In<std::uint8_t, 2>& truncated,
                     const In<float, 2>& end_value, const In<float, 1>& last_value, double gamma, double lambda) {
  same_shape(decided, value, "value");
  same_shape(decided, paid, "paid");
  same_shape(decided, reward, "reward");
  same_shape(decided, duration, "duration");
  same_shape(decided, terminated, "terminated");
  same_shape(decided, truncated, "truncated");
  same_shape(decided, end_value, "end_value");
  if (last_value.shape(0) != decided.shape(1))
    throw std::invalid_argument("last_value has " + std::to_string(last_value.shape(0)) + " entries for " +
                                std::to_string(decided.shape(1)) + " columns");
  return {static_cast<int>(decided.shape(0)),
          static_cast<int>(decided.shape(1)),
          decided.data(),
          value.data(),
          paid.data(),
          reward.data(),
          duration.data(),
          terminated.data(),
          truncated.data(),
          end_value.data(),
          last_value.data(),
          gamma,
          lambda};
}

}  // namespace slipstream
