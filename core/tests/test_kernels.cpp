// By hand here; against slow references on generated slabs in tests/core/test_kernels.py.
#include <cmath>
#include <cstdint>
#include <vector>

#include "check.hpp"
#include "kernels/gae.hpp"
#include "kernels/noise.hpp"

using namespace slipstream;

namespace {

bool close(float a, double b) { return std::abs(a - b) < 1e-6; }

// One column, gamma 0.5, lambda 0.5:
//   row 0 decides (V 2), not paid; row 1 pays 3 after 2 ticks -> delta = 3 + 0.25 * V(row 2) - 2
//   row 2 decides (V 4), truncated with reward 1, V(final) = 6 -> delta = 1 + 0.5 * 6 - 4 = 0
//   row 3 decides (V 1), terminated with reward 2              -> delta = 2 - 1 = 1 (even if flagged truncated as well)
//   row 4 decides (V 8), pays 1, bootstraps from last_value 10 -> delta = 1 + 0.5 * 10 - 8 = -2
void advantages_of_a_slab_worked_by_hand() {
  const std::vector<std::uint8_t> decided{1, 0, 1, 1, 1};
  const std::vector<float> value{2, 99, 4, 1, 8};
  const std::vector<std::uint8_t> paid{0, 1, 1, 1, 1};
  const std::vector<float> reward{77, 3, 1, 2, 1};
  const std::vector<std::int32_t> duration{1, 2, 1, 1, 1};
  const std::vector<std::uint8_t> terminated{0, 0, 0, 1, 0};
  const std::vector<std::uint8_t> truncated{0, 0, 1, 1, 0};
  const std::vector<float> end_value{0, 0, 6, 55, 0};
  const std::vector<float> last_value{10};
  std::vector<float> advantage(5, -1.0F);
  std::vector<float> target(5, -1.0F);
  std::vector<std::uint8_t> complete(5, 9);
  gae({5, 1, decided.data(), value.data(), paid.data(), reward.data(), duration.data(), terminated.data(),
       truncated.data(), end_value.data(), last_value.data(), 0.5, 0.5},
      advantage.data(), target.data(), complete.data());
  CHECK(close(advantage[0], 3 + 0.25 * 4 - 2 + 0.25 * 0.5 * 0));
  CHECK(advantage[1] == 0.0F && target[1] == 0.0F && complete[1] == 0);
  CHECK(close(advantage[2], 0.0));
  CHECK(close(target[2], 4.0));
  CHECK(close(advantage[3], 1.0));
  CHECK(close(advantage[4], -2.0));
  CHECK(close(target[4], 6.0));
  CHECK(complete[0] == 1 && complete[2] == 1 && complete[3] == 1 && complete[4] == 1);
}

void a_decision_not_yet_paid_is_incomplete() {
  const std::vector<std::uint8_t> decided{1, 1};
  const std::vector<float> value{2, 4};
  const std::vector<std::uint8_t> paid{1, 0};
  const std::vector<float> reward{1, 0};
  const std::vector<std::int32_t> duration{1, 1};
  const std::vector<std::uint8_t> none{0, 0};
  const std::vector<float> zeros{0, 0};
  std::vector<float> advantage(2);
  std::vector<float> target(2);
  std::vector<std::uint8_t> complete(2);
  gae({2, 1, decided.data(), value.data(), paid.data(), reward.data(), duration.data(), none.data(), none.data(),
       zeros.data(), zeros.data(), 0.5, 0.5},
      advantage.data(), target.data(), complete.data());
  CHECK(complete[0] == 1 && complete[1] == 0);
  CHECK(close(advantage[0], 1 + 0.5 * 4 - 2));  // bootstraps from the value of the unpaid decision
}

void noise_of_a_batch_is_the_noise_of_its_parts() {
  const int agents = 3;
  const int width = 5;  // not a multiple of a Philox block
  std::vector<float> whole(std::size_t{64 * agents * width});
  std::vector<float> parts(whole.size());
  for (const auto fill : {&fill_normal, &fill_uniform}) {
    fill({11, 100, 7}, 64, agents, width, whole.data());
    for (int first = 0; first < 64; first += 16) {
      fill({11, static_cast<std::uint32_t>(100 + first), 7}, 16, agents, width, parts.data() + first * agents * width);
    }
    CHECK(whole == parts);
  }
}

}  // namespace

int main() {
  advantages_of_a_slab_worked_by_hand();
  a_decision_not_yet_paid_is_incomplete();
  noise_of_a_batch_is_the_noise_of_its_parts();
  return test::finish();
}
