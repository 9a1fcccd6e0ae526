#include "kernels/frame_pool.hpp"

#include <algorithm>
#include <cstring>

namespace slipstream {
namespace {

constexpr std::size_t kAhead = 4;  // frames between asking for memory and using it
constexpr std::size_t kCacheLine = 64;

std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 32U;
  x *= 0xE9846AF9B1A615DULL;
  x ^= x >> 32U;
  x *= 0xE9846AF9B1A615DULL;
  return x ^ x >> 28U;
}

// Four sums side by side, so that they do not wait for each other.
std::uint64_t hash_of(const std::byte* data, std::size_t size) {
  std::uint64_t lanes[4] = {1, 2, 3, 4};
  std::size_t at = 0;
  for (; at + 32 <= size; at += 32) {
    std::uint64_t words[4];
    std::memcpy(words, data + at, 32);
    for (int i = 0; i < 4; ++i) {
      lanes[i] = (lanes[i] ^ words[i]) * 0x9E3779B97F4A7C15ULL;
      lanes[i] ^= lanes[i] >> 29U;
    }
  }
  std::uint64_t rest[4] = {};
  std::memcpy(rest, data + at, size - at);
  std::uint64_t hash = size;
  for (int i = 0; i < 4; ++i) hash = mixed(hash ^ lanes[i]) + mixed(rest[i] + static_cast<std::uint64_t>(i));
  return hash;
}

}  // namespace

FramePool::FramePool(std::size_t size, std::size_t chunk) : size_(size), chunk_(chunk) {}

std::byte* FramePool::at(Id id) const {
  const std::size_t place = id - 1;
  return chunks_[place / chunk_].get() + place % chunk_ * size_;
}

FramePool::Id FramePool::add(const std::byte* frame, std::uint64_t hash) {
  Id id = 0;
  if (free_.empty()) {
    if (count_ == chunks_.size() * chunk_) chunks_.push_back(std::make_unique<std::byte[]>(chunk_ * size_));
    id = static_cast<Id>(++count_);
    frames_.push_back({});
  } else {
    id = free_.back();
    free_.pop_back();
  }
  std::memcpy(at(id), frame, size_);
  frames_[id - 1] = {hash, 1};
  by_hash_.try_emplace(hash, id);  // of two frames with one hash the second is not found again
  return id;
}

void FramePool::hold(const std::byte* frames, std::span<Id> ids) {
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const std::byte* const frame = frames + k * size_;
    const std::uint64_t hash = hash_of(frame, size_);
    const auto found = by_hash_.find(hash);
    if (found != by_hash_.end() && std::memcmp(at(found->second), frame, size_) == 0) {
      ids[k] = found->second;
      ++frames_[ids[k] - 1].holds;
    } else {
      ids[k] = add(frame, hash);
    }
  }
}

void FramePool::release(std::span<const Id> ids) {
  for (const Id id : ids) {
    if (id == 0) continue;
    Frame& frame = frames_[id - 1];
    if (--frame.holds > 0) continue;
    const auto found = by_hash_.find(frame.hash);
    if (found != by_hash_.end() && found->second == id) by_hash_.erase(found);
    free_.push_back(id);
  }
}

void FramePool::gather(std::span<const Id> ids, std::byte* out) const {
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (k + kAhead < ids.size() && ids[k + kAhead] != 0) {
      const std::byte* const later = at(ids[k + kAhead]);
      for (std::size_t byte = 0; byte < size_; byte += kCacheLine) __builtin_prefetch(later + byte);
    }
    std::byte* const to = out + k * size_;
    if (ids[k] == 0) {
      std::fill_n(to, size_, std::byte{0});
    } else {
      std::memcpy(to, at(ids[k]), size_);
    }
  }
}

void FramePool::clear() {
  chunks_.clear();
  frames_.clear();
  free_.clear();
  by_hash_.clear();
  count_ = 0;
}

std::size_t FramePool::bytes() const {
  constexpr std::size_t kNode = 4 * sizeof(void*);  // of the map: an entry, its place in a list and in a bucket
  return chunks_.size() * chunk_ * size_ + frames_.capacity() * sizeof(Frame) + free_.capacity() * sizeof(Id) +
         by_hash_.size() * kNode + by_hash_.bucket_count() * sizeof(void*);
}

}  // namespace slipstream
