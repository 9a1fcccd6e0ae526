// Every tick shows a digit of four somewhere in an image of 8 x 8 pixels, and pays 1 for naming it. Best return 1 per
// tick; with m ticks left V = (1 - gamma^m) / (1 - gamma), where m is a number beside the image.
#pragma once

#include <array>

#include "probe/probe_world.hpp"

namespace slipstream::probe {

struct Digit {
  static constexpr int kDigits = 4;
  static constexpr int kSide = 8;
  static constexpr int kRows = 5;
  static constexpr int kColumns = 3;
  // Of every digit five rows of three pixels, the topmost first; the leftmost pixel is the highest bit.
  static constexpr std::array<std::array<std::uint8_t, kRows>, kDigits> kGlyphs{
      {{7, 5, 5, 5, 7}, {2, 6, 2, 2, 7}, {7, 1, 7, 4, 7}, {7, 1, 3, 1, 7}}};
  int digit = 0;

  static WorldSpec spec() {
    WorldSpec spec = discrete_spec({"reader"}, {"left"}, {"0", "1", "2", "3"});
    spec.obs.push_back({"image", DType::kU8, {kSide, kSide}, 0.0F, 255.0F, {}});
    return spec;
  }
  static int max_episode_steps(int horizon) { return horizon; }

  void reset(const Moment& m) { draw(m); }
  void step(const Moment& m) {
    *m.s.rewards = *m.s.choice == digit ? 1.0F : 0.0F;
    m.end_all(m.s.terminated, 1);
    draw(m);
  }
  void best(int agent, const Slices& s) const { s.choice[agent] = digit; }

 private:
  void draw(const Moment& m) {
    digit = static_cast<int>(m.rng.below(kDigits));
    const int top = static_cast<int>(m.rng.below(kSide - kRows + 1));
    const int left = static_cast<int>(m.rng.below(kSide - kColumns + 1));
    *m.s.obs_f32(0) = m.fraction_left();
    std::uint8_t* image = m.s.obs_u8(1);
    std::fill_n(image, kSide * kSide, std::uint8_t{0});
    for (int row = 0; row < kRows; ++row) {
      const int pixels = kGlyphs[static_cast<std::size_t>(digit)][static_cast<std::size_t>(row)];
      for (int column = 0; column < kColumns; ++column) {
        const bool is_lit = (pixels >> (kColumns - 1 - column) & 1) != 0;
        image[(top + row) * kSide + left + column] = is_lit ? 255 : 0;
      }
    }
  }
};

}  // namespace slipstream::probe
