// Frames that are held once; what a replay makes of them is in tests/replay/test_frames.py.
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "check.hpp"
#include "kernels/frame_pool.hpp"

using namespace slipstream;

namespace {

using Bytes = std::vector<std::byte>;

// Against a map that keeps every frame as it is: 41 bytes, so that the end of a frame is no whole word.
void holds_and_releases_at_random_keep_the_bytes_of_every_frame() {
  constexpr std::size_t kSize = 41;
  std::mt19937 bits(1);
  FramePool pool(kSize, 3);
  std::vector<std::pair<FramePool::Id, Bytes>> held;
  for (int round = 0; round < 2000; ++round) {
    if (held.empty() || bits() % 5 < 3) {
      Bytes frame(kSize, std::byte{7});
      frame[bits() % 2 == 0 ? 0 : kSize - 1] = static_cast<std::byte>(bits() % 12);
      std::array<FramePool::Id, 1> id{};
      pool.hold(frame.data(), id);
      held.emplace_back(id[0], frame);
    } else {
      const std::size_t which = bits() % held.size();
      pool.release(std::array{held[which].first});
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    }
    std::map<Bytes, int> different;
    std::vector<FramePool::Id> ids;
    Bytes expected;
    for (const auto& [id, frame] : held) {
      ++different[frame];
      ids.push_back(id);
      expected.insert(expected.end(), frame.begin(), frame.end());
    }
    CHECK(pool.frames() == different.size());
    Bytes out(expected.size());
    pool.gather(ids, out.data());
    CHECK(out == expected);
  }
}

void no_frame_reads_as_zeros_and_a_cleared_pool_begins_anew() {
  FramePool pool(2, 1);
  std::array<FramePool::Id, 1> id{};
  const Bytes frame{std::byte{1}, std::byte{2}};
  pool.hold(frame.data(), id);
  Bytes out(4, std::byte{9});
  pool.gather(std::array<FramePool::Id, 2>{0, id[0]}, out.data());
  CHECK(out == Bytes({std::byte{0}, std::byte{0}, std::byte{1}, std::byte{2}}));
  pool.release(std::array<FramePool::Id, 1>{0});
  CHECK(pool.frames() == 1);
  pool.clear();
  CHECK(pool.frames() == 0);
  CHECK(!pool.knows(id[0]));
  pool.hold(frame.data(), id);
  CHECK(id[0] == 1);
}

}  // namespace

int main() {
  holds_and_releases_at_random_keep_the_bytes_of_every_frame();
  no_frame_reads_as_zeros_and_a_cleared_pool_begins_anew();
  return test::finish();
}
