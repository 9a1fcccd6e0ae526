// Wide registers change no bit: tiles of 16 numbers against tiles of 8, which test_mlp.cpp compares with plain loops
// where a processor has nothing wider. On such a processor there is nothing to compare here.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"
#include "kernels/mlp_tiles.hpp"

using namespace slipstream;

namespace {

using Floats = std::vector<float>;

Floats numbers(Index count, unsigned seed) {
  std::mt19937 bits(seed);
  Floats out(static_cast<std::size_t>(count));
  for (float& value : out) value = static_cast<float>(bits() >> 8U) / 8388608.0F - 1.0F;
  return out;
}

bool same_bits(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) return false;
  return true;
}

struct Made {
  Floats forward, back, gradient, derivatives;
};

Made make(const Tiles& tiles, Index rows, Index inputs, Index outputs, Activation activation) {
  const Floats x = numbers(rows * inputs, 1);
  const Floats w = numbers(outputs * inputs, 2);
  const Floats bias = numbers(outputs, 3);
  const Floats delta = numbers(rows * outputs, 4);
  const auto padded = [&](Index n) { return (n + tiles.lanes - 1) / tiles.lanes * tiles.lanes; };
  Floats packed(static_cast<std::size_t>(inputs * padded(outputs)));
  Floats packed_back(static_cast<std::size_t>(outputs * padded(inputs)));
  Made made{Floats(delta.size()), Floats(x.size()), Floats(w.size()), Floats(delta.size())};
  tiles.pack_transposed(w.data(), outputs, inputs, packed.data());
  tiles.product({x.data(), inputs, 1}, rows, packed.data(), inputs, outputs, bias.data(), activation,
                {made.forward.data(), outputs});
  tiles.pack(w.data(), inputs, outputs, packed_back.data());
  tiles.product({delta.data(), outputs, 1}, rows, packed_back.data(), outputs, inputs, nullptr, Activation::kIdentity,
                {made.back.data(), inputs});
  for (const bool add : {false, true})
    for (Index c = 0; c < inputs; c += tiles.group)
      tiles.gradient({delta.data(), 1, outputs}, outputs, x.data(), rows, inputs, c, std::min(c + tiles.group, inputs),
                     add, made.gradient.data());
  tiles.derivatives(activation, rows, outputs, {delta.data(), outputs}, {made.forward.data(), outputs},
                    {made.derivatives.data(), outputs});
  return made;
}

void wide_registers_change_no_bit() {
  for (const Activation activation : {Activation::kIdentity, Activation::kRelu, Activation::kTanh})
    for (const Index rows : {1, 5, 6, 7, 130, 257})
      for (const Index inputs : {1, 8, 9, 64, 65, 130})
        for (const Index outputs : {1, 2, 8, 9, 16, 17, 33, 49, 64, 65, 200}) {
          const Made narrow = make(tiles_of_8(), rows, inputs, outputs, activation);
          const Made wide = make(*tiles_of_16(), rows, inputs, outputs, activation);
          CHECK(same_bits(narrow.forward, wide.forward));
          CHECK(same_bits(narrow.back, wide.back));
          CHECK(same_bits(narrow.gradient, wide.gradient));
          CHECK(same_bits(narrow.derivatives, wide.derivatives));
        }
}

void a_gradient_is_the_sum_over_rows_one_by_one() {
  const Index rows = 300;
  const Floats x = numbers(rows * 3, 1);
  const Floats delta = numbers(rows * 2, 4);
  for (const Tiles* tiles : {&tiles_of_8(), tiles_of_16()}) {
    if (tiles == nullptr) continue;
    const Made made = make(*tiles, rows, 3, 2, Activation::kIdentity);
    for (std::size_t o = 0; o < 2; ++o)
      for (std::size_t i = 0; i < 3; ++i) {
        float sum = 0.0F;
        for (int pass = 0; pass < 2; ++pass)  // the second is added to the first
          for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
            sum = std::fma(delta[r * 2 + o], x[r * 3 + i], sum);
        CHECK(made.gradient[o * 3 + i] == sum);
      }
  }
}

}  // namespace

int main() {
  CHECK(&fastest_tiles() == (tiles_of_16() == nullptr ? &tiles_of_8() : tiles_of_16()));
  a_gradient_is_the_sum_over_rows_one_by_one();
  if (tiles_of_16() != nullptr) {
    wide_registers_change_no_bit();
  } else {
    std::printf("this processor has no registers of 16 numbers: nothing to compare\n");
  }
  return test::finish();
}
