#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "check.hpp"
#include "slipstream/rng.hpp"

using namespace slipstream;

namespace {

// Known answers of the Random123 distribution (Salmon et al. 2011), philox4x32-10.
void philox_gives_the_published_answers() {
  CHECK(philox({0, 0, 0, 0}, 0) == (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xffffffff;
  CHECK(philox({ones, ones, ones, ones}, ~std::uint64_t{0}) ==
        (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822) ==
        (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

void streams_of_different_keys_do_not_repeat() {
  std::set<std::uint64_t> seen;
  int drawn = 0;
  for (const std::uint64_t seed : {0ULL, 1ULL, 1ULL << 32}) {
    for (const Domain domain : {Domain::kWorld, Domain::kEvaluation, Domain::kActionNoise}) {
      for (std::uint32_t world = 0; world < 20; ++world) {
        for (std::uint32_t episode = 0; episode < 20; ++episode) {
          Rng rng(seed, domain, world, episode);
          for (int k = 0; k < 4; ++k, ++drawn) {
            const std::uint64_t high = rng.next_u32();
            seen.insert((high << 32) | rng.next_u32());
          }
        }
      }
    }
  }
  // Of 14,400 numbers of 64 bits two agree by chance once in 10^11 runs.
  CHECK(static_cast<int>(seen.size()) == drawn);
}

void a_copy_continues_where_the_original_stands() {
  Rng rng(7, Domain::kWorld, 3, 2);
  for (int k = 0; k < 5; ++k) rng.next_u32();
  Rng copy = rng;
  for (int k = 0; k < 10; ++k) CHECK(copy.next_u32() == rng.next_u32());
}

void draws_have_the_right_range_and_moments() {
  Rng rng(1, Domain::kWorld, 0, 0);
  const int n = 200000;
  double mean = 0.0;
  double normal_mean = 0.0;
  double normal_square = 0.0;
  std::vector<int> counts(7);
  for (int k = 0; k < n; ++k) {
    const double u = rng.uniform();
    CHECK(u >= 0.0 && u < 1.0);
    mean += u / n;
    const double z = rng.normal();
    normal_mean += z / n;
    normal_square += z * z / n;
    ++counts[rng.below(7)];
  }
  // Six standard errors each.
  CHECK(std::abs(mean - 0.5) < 6.0 * std::sqrt(1.0 / 12.0 / n));
  CHECK(std::abs(normal_mean) < 6.0 / std::sqrt(n));
  CHECK(std::abs(normal_square - 1.0) < 6.0 * std::sqrt(2.0 / n));
  for (const int count : counts) CHECK(std::abs(count - n / 7.0) < 6.0 * std::sqrt(n / 7.0));
}

}  // namespace

int main() {
  philox_gives_the_published_answers();
  streams_of_different_keys_do_not_repeat();
  a_copy_continues_where_the_original_stands();
  draws_have_the_right_range_and_moments();
  return test::finish();
}
