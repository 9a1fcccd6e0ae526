// Normal numbers by the dozen, at float precision (Marsaglia & Tsang 2000, with separate bits for layer and place).
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "slipstream/rng.hpp"

namespace slipstream {

// The area under exp(-x^2/2) for x > 0, cut into layers of equal area; the lowest has the tail.
class Ziggurat {
 public:
  static const Ziggurat& shared() {
    static const Ziggurat layers;
    return layers;
  }

  [[nodiscard]] float draw(Rng& rng) const {
    for (;;) {
      const std::uint32_t bits = rng.next_u32();
      const std::size_t layer = bits & 0x7FU;
      const double x = static_cast<double>(bits >> 8U) * 0x1.0p-24 * width_[layer];
      const double side = (bits & 0x80U) != 0 ? 1.0 : -1.0;
      if (x < width_[layer + 1]) return static_cast<float>(side * x);  // below the next layer: 99 times of 100
      if (layer == 0) return static_cast<float>(side * tail(rng));
      const double height = height_[layer] + rng.uniform() * (height_[layer + 1] - height_[layer]);
      if (height < std::exp(-0.5 * x * x)) return static_cast<float>(side * x);
    }
  }

 private:
  static constexpr std::size_t kLayers = 128;
  static constexpr double kTail = 3.442619855899;       // where the tail begins
  static constexpr double kArea = 9.91256303526217e-3;  // of a layer

  Ziggurat() {
    const auto density = [](double x) { return std::exp(-0.5 * x * x); };
    width_[0] = kArea / density(kTail);
    width_[1] = kTail;
    for (std::size_t i = 2; i < kLayers; ++i)
      width_[i] = std::sqrt(-2.0 * std::log(kArea / width_[i - 1] + density(width_[i - 1])));
    width_[kLayers] = 0.0;
    for (std::size_t i = 0; i <= kLayers; ++i) height_[i] = density(width_[i]);
  }

  static double tail(Rng& rng) {
    for (;;) {
      const double x = -std::log(1.0 - rng.uniform()) / kTail;
      const double y = -std::log(1.0 - rng.uniform());
      if (2.0 * y > x * x) return kTail + x;
    }
  }

  std::array<double, kLayers + 1> width_{};
  std::array<double, kLayers + 1> height_{};
};

}  // namespace slipstream
