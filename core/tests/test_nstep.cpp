// By hand here; against episodes walked one agent at a time in tests/data/test_chain.py.
#include <cmath>
#include <cstdint>
#include <vector>

#include "check.hpp"
#include "kernels/nstep.hpp"

using namespace slipstream;

namespace {

using Flags = std::vector<std::uint8_t>;
using Rows = std::vector<std::int32_t>;

struct Spans {
  explicit Spans(std::size_t size)
      : reward(size, 9.0F), discount(size, 9.0F), outcome(size, 9), last(size, 9), next(size, 9), complete(size, 9) {}
  std::vector<float> reward, discount;
  Rows outcome, last, next;
  Flags complete;
};

struct Slab {
  Flags decided, paid;
  std::vector<float> reward;
  Rows duration;
  Flags terminated, truncated;
};

Spans spans_of(const Slab& slab, int columns, int steps) {
  Spans out(slab.decided.size());
  const int rows = static_cast<int>(slab.decided.size()) / columns;
  nstep({rows, columns, slab.decided.data(), slab.paid.data(), slab.reward.data(), slab.duration.data(),
         slab.terminated.data(), slab.truncated.data(), 0.5, steps},
        {out.reward.data(), out.discount.data(), out.outcome.data(), out.last.data(), out.next.data(),
         out.complete.data()});
  return out;
}

bool close(const std::vector<float>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::abs(a[i] - b[i]) > 1e-6) return false;
  }
  return true;
}

// One column, gamma 0.5. Row 0 decides and is paid 4 on row 1, after 2 ticks: discount 0.25. Rows 2 and 3 decide and
// are paid 8 and 16 at once. Row 4 decides, is paid 2 and terminates; row 5 decides and is cut off with 1; row 6
// decides and is paid 3; row 7 decides and is not paid.
const Slab kSlab{{1, 0, 1, 1, 1, 1, 1, 1},   {0, 1, 1, 1, 1, 1, 1, 0}, {77, 4, 8, 16, 2, 1, 3, 77},
                 {77, 2, 1, 1, 1, 1, 1, 77}, {0, 0, 0, 0, 1, 0, 0, 0}, {0, 0, 0, 0, 0, 1, 0, 0}};
constexpr std::int32_t kT = kTerminated;
constexpr std::int32_t kC = kTruncated;

void one_step_is_the_outcome_itself() {
  const Spans spans = spans_of(kSlab, 1, 1);
  CHECK(spans.complete == (Flags{1, 0, 1, 1, 1, 1, 1, 0}));
  CHECK(close(spans.reward, {4, 0, 8, 16, 2, 1, 3, 0}));
  CHECK(close(spans.discount, {0.25, 0, 0.5, 0.5, 0, 0.5, 0.5, 0}));
  CHECK(spans.outcome == (Rows{1, -1, 2, 3, 4, 5, 6, -1}));
  CHECK(spans.last == (Rows{1, -1, 2, 3, 4, 5, 6, -1}));
  CHECK(spans.next == (Rows{2, -1, 3, 4, kT, kC, 7, -1}));
}

// Three steps: 4 + 8/4 + 16/8, discount 1/16; then 8 + 16/2 + 2/4, terminated; 16 + 2/2, terminated; 2; 1, cut off. The
// span of row 6 has only one of its three outcomes.
void three_steps_multiply_the_discounts_and_stop_at_ends() {
  const Spans spans = spans_of(kSlab, 1, 3);
  CHECK(spans.complete == (Flags{1, 0, 1, 1, 1, 1, 0, 0}));
  CHECK(close(spans.reward, {8, 0, 16.5, 17, 2, 1, 0, 0}));
  CHECK(close(spans.discount, {1.0 / 16, 0, 0, 0, 0, 0.5, 0, 0}));
  CHECK(spans.outcome == (Rows{1, -1, 2, 3, 4, 5, 6, -1}));
  CHECK(spans.last == (Rows{3, -1, 4, 4, 4, 5, -1, -1}));
  CHECK(spans.next == (Rows{4, -1, kT, kT, kT, kC, -1, -1}));
}

// Both flags mean a termination; outcomes without a decision are passed over; the last row leads out of the slab.
void columns_do_not_mix_and_a_paid_last_row_leads_after_the_slab() {
  const Slab slab{{0, 1, 1, 1, 0, 1},  {1, 1, 1, 1, 1, 1}, {5, 1, 2, 3, 77, 4},
                  {3, 1, 1, 1, 77, 1}, {0, 0, 0, 1, 0, 0}, {0, 0, 0, 1, 0, 0}};
  const Spans spans = spans_of(slab, 2, 1);  // columns: (-, 2, -) and (1, 3, 4)
  CHECK(spans.complete == (Flags{0, 1, 1, 1, 0, 1}));
  CHECK(close(spans.reward, {0, 1, 2, 3, 0, 4}));
  CHECK(close(spans.discount, {0, 0.5, 0.5, 0, 0, 0.5}));
  CHECK(spans.next == (Rows{-1, 1, 3, kT, -1, 3}));
}

}  // namespace

int main() {
  one_step_is_the_outcome_itself();
  three_steps_multiply_the_discounts_and_stop_at_ends();
  columns_do_not_mix_and_a_paid_last_row_leads_after_the_slab();
  return test::finish();
}
