// Records written in a ring and gathered again; more in tests/data/test_replay.py.
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "kernels/rows.hpp"

using namespace slipstream;

namespace {

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Three records of two floats and a byte; rows (0, 1, 7), (2, 3, 8), (4, 5, 9) written from record 2 on.
void rows_written_over_the_end_of_the_ring_come_back_from_its_start() {
  std::array<std::byte, 27> memory{};
  const RowStore store{memory.data(), 3, 9};
  const auto pairs = bytes_of({0, 1, 2, 3, 4, 5});
  const std::array<std::byte, 3> singles{std::byte{7}, std::byte{8}, std::byte{9}};
  const std::array<const std::byte*, 2> arrays{pairs.data(), singles.data()};
  const std::array<std::size_t, 2> sizes{8, 1};
  write_rows(store, 2, 3, arrays, sizes);
  std::vector<std::byte> out(36);
  gather_rows(store, std::array<std::int64_t, 4>{2, 0, 1, 0}, sizes, out.data());
  auto expected = bytes_of({0, 1, 2, 3, 4, 5, 2, 3});
  for (const int last : {7, 8, 9, 8}) expected.push_back(static_cast<std::byte>(last));
  CHECK(out == expected);
}

void a_draw_number_always_means_the_same_numbers() {
  std::vector<double> many(101);
  std::vector<double> few(7);
  fill_draw(3, 5, many);
  fill_draw(3, 5, few);
  CHECK(std::vector<double>(many.begin(), many.begin() + 7) == few);
  for (const double u : many) CHECK(u >= 0.0 && u < 1.0);
  std::vector<double> other(7);
  for (const auto& [seed, draw] :
       std::vector<std::pair<std::uint64_t, std::uint64_t>>{{4, 5}, {3, 6}, {3, 5 + (1ULL << 32)}}) {
    fill_draw(seed, draw, other);
    for (std::size_t k = 0; k < few.size(); ++k) CHECK(other[k] != few[k]);
  }
}

}  // namespace

int main() {
  rows_written_over_the_end_of_the_ring_come_back_from_its_start();
  a_draw_number_always_means_the_same_numbers();
  return test::finish();
}
