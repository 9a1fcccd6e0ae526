// Counter-based random streams (Philox4x32-10, Salmon et al. 2011): the same key gives the same numbers on any
// thread, in any batch and after any restart, because nothing but the key and a counter is ever carried.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace slipstream {

// Keeps streams with different purposes apart even when seed, world and episode agree.
enum class Domain : std::uint32_t { kWorld = 0, kEvaluation = 1, kActionNoise = 2 };

using PhiloxBlock = std::array<std::uint32_t, 4>;

constexpr PhiloxBlock philox(PhiloxBlock counter, std::uint64_t seed) {
  auto k0 = static_cast<std::uint32_t>(seed);
  auto k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

// The stream of one episode of one world. A plain value: copying it copies the position in the stream.
class Rng {
 public:
  Rng() = default;
  Rng(std::uint64_t seed, Domain domain, std::uint32_t world, std::uint32_t episode)
      : seed_(seed), base_{0, episode, world, static_cast<std::uint32_t>(domain)} {}

  std::uint32_t next_u32() {
    if (used_ == 4) {
      block_ = philox(base_, seed_);
      ++base_[0];
      used_ = 0;
    }
    return block_[used_++];
  }
  // Uniform in [0, 1) with 53 random bits.
  double uniform() {
    const std::uint64_t high = next_u32() >> 5;
    const std::uint64_t low = next_u32() >> 6;
    return static_cast<double>((high << 26) | low) * 0x1.0p-53;
  }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // Uniform over 0 .. n-1. Multiply-shift; the bias is below 2^-32 * n and irrelevant for small n.
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>((std::uint64_t{next_u32()} * n) >> 32); }
  double normal() {
    const double u = 1.0 - uniform();  // in (0, 1], so the logarithm is finite
    const double v = uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
  }

  // A stream of the same episode for another purpose (1 to 2^24 - 1), apart from this one and from other purposes'.
  [[nodiscard]] Rng fork(std::uint32_t purpose) const {
    Rng other = *this;
    other.base_[0] = 0;
    other.base_[3] = (base_[3] & 0xFFU) | (purpose << 8U);
    other.used_ = 4;
    return other;
  }
  // Goes on at the n-th block of four numbers.
  void skip_to(std::uint32_t block) {
    base_[0] = block;
    used_ = 4;
  }

 private:
  std::uint64_t seed_ = 0;
  PhiloxBlock base_{};
  PhiloxBlock block_{};
  std::uint32_t used_ = 4;
  std::uint32_t padding_ = 0;  // keeps snapshots free of indeterminate bytes
};

}  // namespace slipstream
