// By hand here; against a plain reference and its law in tests/data/test_sum_tree.py.
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "kernels/sum_tree.hpp"

using namespace slipstream;

namespace {

using Index = std::vector<std::int64_t>;
using Weights = std::vector<double>;

constexpr double kAlmostOne = 1.0 - 0x1.0p-53;

template <class Fn>
bool refuses(Fn&& fn) {
  try {
    fn();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

Index all_of(std::int64_t capacity) {
  Index index(static_cast<std::size_t>(capacity));
  std::iota(index.begin(), index.end(), 0);
  return index;
}

Index draw(const SumTree& tree, const Weights& u) {
  Index index(u.size(), -1);
  Weights weight(u.size(), -1.0);
  tree.sample(u, index, weight);
  Weights expected(u.size());
  tree.get(index, expected);
  CHECK(weight == expected);
  return index;
}

// Weights 1, 0, 2, 5 laid end to end: [0, 1) is leaf 0, [1, 3) leaf 2, [3, 8) leaf 3.
void draws_fall_where_the_weights_lie_end_to_end() {
  SumTree tree(4);
  tree.set(all_of(4), Weights{1, 0, 2, 5});
  CHECK(tree.total() == 8.0);
  CHECK(draw(tree, {0.0, 0.9 / 8, 1.0 / 8, 2.9 / 8, 3.0 / 8, kAlmostOne}) == (Index{0, 0, 2, 2, 3, 3}));
}

void of_equal_indices_the_last_counts() {
  SumTree tree(10);
  tree.set(Index{3, 9, 3, 3}, Weights{7, 1, 5, 2});
  CHECK(tree.total() == 3.0);
  CHECK(draw(tree, {0.0, 0.66, 0.67}) == (Index{3, 3, 9}));
}

// The edges of every level: 8 is a whole node, 9 spills over, 64 and 512 likewise.
void any_capacity_from_1_on_works() {
  for (const std::int64_t capacity : {1, 2, 7, 8, 9, 63, 64, 65, 511, 512, 513, 1000, 4097}) {
    SumTree tree(capacity);
    tree.set(all_of(capacity), Weights(static_cast<std::size_t>(capacity), 1.0));
    CHECK(tree.total() == static_cast<double>(capacity));
    Weights middles;
    for (std::int64_t i = 0; i < capacity; ++i) {
      middles.push_back((static_cast<double>(i) + 0.5) / static_cast<double>(capacity));
    }
    CHECK(draw(tree, middles) == all_of(capacity));
    CHECK(draw(tree, {kAlmostOne}) == (Index{capacity - 1}));
  }
}

// Tenths are not exact in binary: sums round, and u * total can reach or pass the sum of what is there.
void a_leaf_of_weight_0_is_never_drawn_whatever_the_rounding() {
  const Weights ends{0.0, 0x1.0p-53, 0.25, 0.5, 0.75, kAlmostOne};
  for (const double unit : {0.1, 1.0 / 3.0, 1e-300, std::numeric_limits<double>::denorm_min(), 1e300}) {
    for (std::int64_t only = 0; only < 70; ++only) {
      SumTree tree(70);
      tree.set(Index{only}, Weights{unit});
      CHECK(draw(tree, ends) == Index(ends.size(), only));
    }
    for (std::int64_t kept = 1; kept < 70; ++kept) {
      SumTree tree(70);
      const Index index = all_of(kept);
      Weights weight(index.size());
      for (std::size_t i = 0; i < weight.size(); ++i)
        weight[i] = i % 3 == 1 ? 0.0 : unit * (1.0 + static_cast<double>(i));
      tree.set(index, weight);
      for (const std::int64_t i : draw(tree, ends)) CHECK(i < kept && i % 3 != 1);
    }
  }
}

// Every border between two leaves, and the numbers next to it on either side.
void no_number_at_a_border_falls_on_a_leaf_of_weight_0() {
  std::uint64_t state = 1;
  auto random = [&state] {  // splitmix64
    std::uint64_t z = state += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  };
  for (int trial = 0; trial < 2000; ++trial) {
    Weights weight(20);
    for (double& w : weight) w = random() % 3 == 0 ? 0.0 : static_cast<double>(random() >> 11) * 0x1.0p-53;
    weight[random() % 20] = 0.5;
    SumTree tree(20);
    tree.set(all_of(20), weight);
    Weights u;
    double before = 0.0;
    for (const double w : weight) {
      before += w;
      double at = before / tree.total();
      for (int step = 0; step < 3; ++step) at = std::nextafter(at, 0.0);
      for (int step = 0; step < 7; ++step, at = std::nextafter(at, 2.0)) {
        if (at < 1.0) u.push_back(at);
      }
    }
    for (const std::int64_t i : draw(tree, u)) CHECK(weight[static_cast<std::size_t>(i)] > 0.0);
  }
}

void the_tree_is_a_function_of_its_leaves_whatever_was_set_before() {
  SumTree worn(1000);
  for (int round = 0; round < 200; ++round) {
    Index index;
    Weights weight;
    for (int k = 0; k < 37; ++k) {
      index.push_back((round * 131 + k * k * 7) % 1000);
      weight.push_back(std::ldexp(1.0 + 0.1 * k, (round * 17 + k) % 60 - 30));
    }
    worn.set(index, weight);
  }
  worn.set(all_of(1000), Weights(1000, 0.1));  // the large ones are gone without a trace
  Weights leaves(1000);
  worn.get(all_of(1000), leaves);
  SumTree fresh(1000);
  fresh.set(all_of(1000), leaves);
  CHECK(worn.total() == fresh.total());
  Weights u;
  for (int k = 0; k < 1000; ++k) u.push_back(k / 1000.0);
  CHECK(draw(worn, u) == draw(fresh, u));
}

void what_makes_no_sense_is_refused_and_changes_nothing() {
  CHECK(refuses([] { SumTree tree(0); }));
  CHECK(refuses([] { SumTree tree(-3); }));
  SumTree tree(5);
  CHECK(refuses([&] { draw(tree, {0.5}); }));  // all weights are 0
  tree.set(Index{2}, Weights{1.5});
  for (const std::int64_t index : {std::int64_t{-1}, std::int64_t{5}}) {
    CHECK(refuses([&] { tree.set(Index{0, index}, Weights{1, 1}); }));
    Weights out(1);
    CHECK(refuses([&] { tree.get(Index{index}, out); }));
  }
  for (const double weight : {-1.0, std::nan(""), HUGE_VAL}) {
    CHECK(refuses([&] { tree.set(Index{0, 1}, Weights{1, weight}); }));
  }
  CHECK(refuses([&] { tree.set(Index{0, 1}, Weights{1}); }));
  for (const double u : {-0.1, 1.0, std::nan("")}) CHECK(refuses([&] { draw(tree, {0.0, u}); }));
  CHECK(tree.total() == 1.5);
  CHECK(draw(tree, {}).empty());
}

}  // namespace

int main() {
  draws_fall_where_the_weights_lie_end_to_end();
  of_equal_indices_the_last_counts();
  any_capacity_from_1_on_works();
  a_leaf_of_weight_0_is_never_drawn_whatever_the_rounding();
  no_number_at_a_border_falls_on_a_leaf_of_weight_0();
  the_tree_is_a_function_of_its_leaves_whatever_was_set_before();
  what_makes_no_sense_is_refused_and_changes_nothing();
  return test::finish();
}
