// How a game begins: the console's random numbers, the order of pills, where viruses are.
#pragma once

#include <array>
#include <cstdint>

#include "drmario/field.hpp"

namespace slipstream::drmario {

inline constexpr int kReserve = 128;
inline constexpr int kMaxLevel = 24;
inline constexpr int kHighestDistinctLevel = 20;  // from here on all have 84 viruses
inline constexpr int kSeeds = 32767;              // states a console can be in

// The console's generator: a shift register of 15 bits spread over two bytes.
struct Lfsr {
  std::uint8_t r0 = 0x89;
  std::uint8_t r1 = 0x88;

  constexpr void step() {
    const unsigned carry = ((r0 >> 1) ^ (r1 >> 1)) & 1U;
    const unsigned middle = r0 & 1U;
    r0 = static_cast<std::uint8_t>((carry << 7) | (r0 >> 1));
    r1 = static_cast<std::uint8_t>((middle << 7) | (r1 >> 1));
  }
  // On the one cycle a console is ever on: the top bit is what the lowest two say it was made of.
  [[nodiscard]] constexpr bool reachable() const { return (r0 | r1) != 0 && (r0 >> 7) == ((r0 ^ r1) & 1); }
  // The states of that cycle by number, 1 to kSeeds.
  [[nodiscard]] static constexpr Lfsr numbered(int number) {
    const auto r1 = static_cast<std::uint8_t>(number & 0xFF);
    const auto low = static_cast<unsigned>(number >> 8);
    return {static_cast<std::uint8_t>((((low ^ r1) & 1U) << 7) | low), r1};
  }
  friend constexpr bool operator==(const Lfsr&, const Lfsr&) = default;
};

using Reserve = std::array<std::uint8_t, kReserve>;  // pill ids, 3 * first colour + second colour

struct Level {
  Cells cells;
  Reserve reserve;
  Lfsr after;  // the generator when the last virus is placed
};

[[nodiscard]] constexpr int viruses_of(int level) {
  return 4 * ((level < kHighestDistinctLevel ? level : kHighestDistinctLevel) + 1);
}
[[nodiscard]] Level generate(int level, Lfsr seed);
// Two bottles from one stream: the same where the levels are, otherwise viruses are placed in turn.
[[nodiscard]] std::array<Level, 2> generate_pair(int first, int second, Lfsr seed);

}  // namespace slipstream::drmario
