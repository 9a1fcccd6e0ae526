#include "drmario/oracle.hpp"

#include <algorithm>

namespace slipstream::drmario {
namespace {

struct State {
  Fall fall;
  std::uint8_t held = 0;

  // Everything the next frames depend on, in 24 bits.
  [[nodiscard]] std::size_t key() const {
    std::size_t key = 0;
    const auto add = [&](int value, int bits) { key = key << bits | static_cast<std::size_t>(value); };
    add(fall.pose.row, 4);
    add(fall.pose.col, 3);
    add(fall.pose.rot, 2);
    add(fall.speed_counter, 7);
    add(fall.hor_velocity, 4);
    add(held & 3, 2);
    add(held >> 6, 2);
    return key;
  }
};
constexpr std::size_t kKeys = std::size_t{1} << 24;

}  // namespace

void plan_plainly(const Cells& cells, const Start& start, Costs& costs, bool both) {
  costs.fill(kUnreachable);
  std::vector<std::uint8_t> inputs;
  for (const int pad : {0, int{kPressLeft}, int{kPressRight}, int{kPressDown}})
    for (const int turn : {0, int{kPressA}, int{kPressB}, both ? kPressA | kPressB : -1})
      if (turn >= 0) inputs.push_back(static_cast<std::uint8_t>(pad | turn));
  // A state met again an even number of frames later leads nowhere new.
  std::array<std::vector<bool>, 2> met{std::vector<bool>(kKeys), std::vector<bool>(kKeys)};
  std::vector<State> here{{{start.pose, start.speed_counter, start.hor_velocity}, start.held}};
  for (std::uint16_t frame = 1; !here.empty(); ++frame) {
    const bool odd = start.odd_next == ((frame & 1) != 0);
    std::vector<State> next;
    for (const State& state : here)
      for (const std::uint8_t input : inputs) {
        State after{state.fall, input};
        const auto pressed = static_cast<std::uint8_t>(input & ~state.held);
        if (drop(cells, after.fall, input, odd, start.threshold)) {
          const int placement = placement_of(after.fall.pose);
          if (placement >= 0)
            costs[static_cast<std::size_t>(placement)] = std::min(costs[static_cast<std::size_t>(placement)], frame);
          continue;
        }
        shift(cells, after.fall, input, pressed);
        rotate(cells, after.fall, input, pressed);
        auto seen = met[frame & 1][after.key()];
        if (seen) continue;
        seen = true;
        next.push_back(after);
      }
    here.swap(next);
  }
}

}  // namespace slipstream::drmario
