// Frames of a replay, each held once however many rows show it.
//
// An observation of the next step is the observation of the next row, and a stack of frames is the one before shifted
// by one. Which row shares what need not be told: frames of the same bytes are one frame, found by a hash and compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace slipstream {

class FramePool {
 public:
  using Id = std::uint32_t;  // 0: no frame, which reads as zeros

  // Frames of `size` bytes; memory is taken for `chunk` of them at a time, and kept.
  FramePool(std::size_t size, std::size_t chunk);
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  // Holds these frames (one behind the other) once more each; their ids.
  void hold(const std::byte* frames, std::span<Id> ids);
  // Gives up as many holds; a frame that nothing holds makes room for another.
  void release(std::span<const Id> ids);
  // Copies frames to out, one behind the other.
  void gather(std::span<const Id> ids, std::byte* out) const;
  void clear();

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t frames() const { return count_ - free_.size(); }  // different ones that are held
  [[nodiscard]] bool knows(Id id) const { return id <= count_; }
  [[nodiscard]] std::size_t bytes() const;

 private:
  struct Frame {
    std::uint64_t hash;
    std::uint32_t holds;
  };

  [[nodiscard]] std::byte* at(Id id) const;
  [[nodiscard]] Id add(const std::byte* frame, std::uint64_t hash);

  std::size_t size_;
  std::size_t chunk_;
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::vector<Frame> frames_;  // by id - 1
  std::vector<Id> free_;
  std::unordered_map<std::uint64_t, Id> by_hash_;
  std::size_t count_ = 0;  // ids that were ever given
};

}  // namespace slipstream
