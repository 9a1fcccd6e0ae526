// By hand here; against the paper's sum on generated slabs in tests/core/test_vtrace.py.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "check.hpp"
#include "kernels/vtrace.hpp"

using namespace slipstream;

namespace {

bool close(float a, double b) { return std::abs(a - b) < 1e-6; }

struct Slab {
  std::vector<std::uint8_t> decided;
  std::vector<float> value;
  std::vector<std::uint8_t> paid;
  std::vector<float> reward;
  std::vector<std::int32_t> duration;
  std::vector<std::uint8_t> terminated;
  std::vector<std::uint8_t> truncated;
  std::vector<float> end_value;
  std::vector<float> last_value;
};

struct Result {
  std::vector<float> advantage;
  std::vector<float> target;
  std::vector<std::uint8_t> complete;
};

// One column, gamma 0.5, lambda 0.5, rho_bar 2, c_bar 1.
Result run(const Slab& slab, const std::vector<float>& log_ratio) {
  const std::size_t rows = slab.decided.size();
  Result out{std::vector<float>(rows, -1.0F), std::vector<float>(rows, -1.0F), std::vector<std::uint8_t>(rows, 9)};
  vtrace({static_cast<int>(rows), 1, slab.decided.data(), slab.value.data(), slab.paid.data(), slab.reward.data(),
          slab.duration.data(), slab.terminated.data(), slab.truncated.data(), slab.end_value.data(),
          slab.last_value.data(), 0.5, 0.5},
         {log_ratio.data(), 2.0, 1.0}, out.advantage.data(), out.target.data(), out.complete.data());
  return out;
}

// Ratios: 4 (rho 2, c 1/2), 1/2 (rho 1/2, c 1/4), 1, 1, 1.
//   row 4 decides (V 8), pays 1, bootstraps from last_value 10: delta -2; v = 6; advantage -2
//   row 3 decides (V 1), terminated with reward 2: delta 1; v = 2; advantage 1 (even if flagged truncated as well)
//   row 2 decides (V 4), truncated with reward 2, V(final) = 6: delta 1, times rho 1/2; v = 4.5; advantage 1
//   row 0 decides (V 2), paid 3 on row 1 after 2 ticks (Gamma 1/4): delta = 3 + 4/4 - 2 = 2
//     v = 2 + 2 * 2 + 1/4 * 1/2 * (4.5 - 4) = 6.0625; advantage = 3 + 1/4 * 4.5 - 2 = 2.125
void targets_of_a_slab_worked_by_hand() {
  const Slab slab{{1, 0, 1, 1, 1},  {2, 99, 4, 1, 8}, {0, 1, 1, 1, 1},
                  {77, 3, 2, 2, 1}, {1, 2, 1, 1, 1},  {0, 0, 0, 1, 0},
                  {0, 0, 1, 1, 0},  {0, 0, 6, 55, 0}, {10}};
  const Result out = run(slab, {std::log(4.0F), 99.0F, std::log(0.5F), 0.0F, 0.0F});
  CHECK(close(out.target[0], 6.0625));
  CHECK(close(out.advantage[0], 2.125));
  CHECK(out.advantage[1] == 0.0F && out.target[1] == 0.0F && out.complete[1] == 0);
  CHECK(close(out.target[2], 4.5));
  CHECK(close(out.advantage[2], 1.0));
  CHECK(close(out.target[3], 2.0));
  CHECK(close(out.advantage[3], 1.0));
  CHECK(close(out.target[4], 6.0));
  CHECK(close(out.advantage[4], -2.0));
  CHECK(out.complete[0] == 1 && out.complete[2] == 1 && out.complete[3] == 1 && out.complete[4] == 1);
}

void a_decision_not_yet_paid_is_incomplete_and_bootstraps_the_one_before() {
  const Slab slab{{1, 1}, {2, 4}, {1, 0}, {1, 0}, {1, 1}, {0, 0}, {0, 0}, {0, 0}, {0}};
  const Result out = run(slab, {0.0F, 0.0F});
  CHECK(out.complete[0] == 1 && out.complete[1] == 0);
  CHECK(close(out.target[0], 1 + 0.5 * 4));
}

void a_ratio_that_is_not_a_number_is_not_clipped_away() {
  const Slab slab{{1}, {2}, {1}, {1}, {1}, {0}, {0}, {0}, {4}};
  CHECK(std::isnan(run(slab, {std::numeric_limits<float>::quiet_NaN()}).target[0]));
  CHECK(close(run(slab, {1000.0F}).target[0], 2 + 2 * (1 + 0.5 * 4 - 2)));  // exp overflows; rho_bar holds
  CHECK(close(run(slab, {-1000.0F}).target[0], 2.0));
}

}  // namespace

int main() {
  targets_of_a_slab_worked_by_hand();
  a_decision_not_yet_paid_is_incomplete_and_bootstraps_the_one_before();
  a_ratio_that_is_not_a_number_is_not_clipped_away();
  return test::finish();
}
