// Wide registers change no bit: tiles of 16 numbers against tiles of 8, which test_mlp.cpp compares with plain loops
// where a processor has nothing wider. On such a processor there is nothing to compare here.
#include <cmath>
#include <cstdio>

#include "check.hpp"
#include "kernels/mlp_tiles.hpp"
#include "numbers.hpp"

using namespace slipstream;
using namespace slipstream::test;

namespace {

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

struct Finished {
  Floats out, product, gain, shift;
};

Finished finish(const Tiles& tiles, Activation activation, bool normed, Index columns) {
  constexpr Index kRows = 3;
  const Floats z = numbers(kRows * columns, 1, 4.0F);
  const Floats skip = numbers(kRows * columns, 2);
  const Floats grad = numbers(kRows * columns, 3);
  const Floats gain = numbers(columns, 4);
  const Floats shift = numbers(columns, 5);
  const Finish what{activation, normed ? gain.data() : nullptr, normed ? shift.data() : nullptr};
  Finished made{Floats(z.size()), Floats(z.size()), Floats(z.size()), Floats(z.size())};
  tiles.finish(what, kRows, columns, {z.data(), columns}, {skip.data(), columns}, {made.out.data(), columns});
  tiles.unfinish(what, kRows, columns, {grad.data(), columns}, {z.data(), columns},
                 {{made.product.data(), columns}, {made.gain.data(), columns}, {made.shift.data(), columns}});
  return made;
}

void wide_registers_finish_a_layer_with_the_same_bits() {
  for (const Activation activation : {Activation::kIdentity, Activation::kRelu, Activation::kTanh, Activation::kElu,
                                      Activation::kSilu, Activation::kGelu})
    for (const bool normed : {false, true})
      for (const Index columns : {1, 7, 8, 9, 15, 16, 17, 24, 31, 33, 64, 200, 257}) {
        const Finished narrow = finish(tiles_of_8(), activation, normed, columns);
        const Finished wide = finish(*tiles_of_16(), activation, normed, columns);
        CHECK(same_bits(narrow.out, wide.out));
        CHECK(same_bits(narrow.product, wide.product));
        CHECK(same_bits(narrow.gain, wide.gain));
        CHECK(same_bits(narrow.shift, wide.shift));
      }
}

// The same product where tables say where the numbers stand, and once more on top of it.
Floats gathered(const Tiles& tiles, Index rows, Index inputs, Index outputs) {
  const Floats x = numbers(rows * inputs, 1);
  const Floats w = numbers(outputs * inputs, 2);
  const Floats bias = numbers(outputs, 3);
  std::vector<Index> row_at, inner_at;
  for (Index r = 0; r < rows; ++r) row_at.push_back(r * inputs);
  for (Index i = 0; i < inputs; ++i) inner_at.push_back(i);
  Floats packed(static_cast<std::size_t>(inputs * ((outputs + tiles.lanes - 1) / tiles.lanes * tiles.lanes)));
  Floats out(static_cast<std::size_t>(rows * outputs));
  tiles.pack_transposed(w.data(), outputs, inputs, packed.data());
  for (const bool add : {false, true})
    tiles.gathered({x.data(), row_at.data(), inner_at.data()}, rows, packed.data(), inputs, outputs, bias.data(),
                   Activation::kIdentity, add, {out.data(), outputs});
  return out;
}

void a_gathered_product_is_the_sum_over_its_tables_and_is_added_to_what_is_there() {
  for (const Index rows : {1, 7, 20})
    for (const Index inputs : {1, 65, 300})
      for (const Index outputs : {3, 16, 70}) {
        const Floats x = numbers(rows * inputs, 1);
        const Floats w = numbers(outputs * inputs, 2);
        Floats expected;
        for (Index r = 0; r < rows; ++r)
          for (Index o = 0; o < outputs; ++o) {
            float sum = numbers(outputs, 3)[static_cast<std::size_t>(o)];
            for (int pass = 0; pass < 2; ++pass)  // a bias is of the first alone
              for (Index i = 0; i < inputs; ++i)
                sum = std::fma(x[static_cast<std::size_t>(r * inputs + i)], w[static_cast<std::size_t>(o * inputs + i)],
                               sum);
            expected.push_back(sum);
          }
        CHECK(same_bits(gathered(tiles_of_8(), rows, inputs, outputs), expected));
        if (tiles_of_16() != nullptr) CHECK(same_bits(gathered(*tiles_of_16(), rows, inputs, outputs), expected));
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
  a_gathered_product_is_the_sum_over_its_tables_and_is_added_to_what_is_there();
  a_gradient_is_the_sum_over_rows_one_by_one();
  if (tiles_of_16() != nullptr) {
    wide_registers_change_no_bit();
    wide_registers_finish_a_layer_with_the_same_bits();
  } else {
    std::printf("this processor has no registers of 16 numbers: nothing to compare\n");
  }
  return test::finish();
}
