// Saving and restoring plain values as bytes. A world lists its members once, in `archive(ar)`; the same list serves
// both directions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace slipstream {

template <class T>
concept Plain = std::is_trivially_copyable_v<T>;

class SnapshotWriter {
 public:
  explicit SnapshotWriter(std::vector<std::byte>& out) : out_(out) {}

  template <class... T>
  void operator()(T&... values) {
    (put(values), ...);
  }

 private:
  template <Plain T>
  void put(const T& value) {
    append(&value, sizeof(T));
  }
  template <Plain T>
  void put(const std::vector<T>& values) {
    const std::uint64_t count = values.size();
    append(&count, sizeof count);
    append(values.data(), count * sizeof(T));
  }
  void append(const void* data, std::size_t size) {
    if (size == 0) return;
    const std::size_t at = out_.size();
    out_.resize(at + size);
    std::memcpy(out_.data() + at, data, size);
  }

  std::vector<std::byte>& out_;
};

class SnapshotReader {
 public:
  explicit SnapshotReader(std::span<const std::byte> in) : in_(in) {}

  template <class... T>
  void operator()(T&... values) {
    (get(values), ...);
  }
  [[nodiscard]] bool at_end() const { return in_.empty(); }

 private:
  template <Plain T>
  void get(T& value) {
    take(&value, sizeof(T));
  }
  // Sizes are fixed when a world is constructed, so a different count means a snapshot of another configuration.
  template <Plain T>
  void get(std::vector<T>& values) {
    std::uint64_t count = 0;
    take(&count, sizeof count);
    if (count != values.size()) throw std::invalid_argument("snapshot was taken from a different configuration");
    take(values.data(), count * sizeof(T));
  }
  void take(void* data, std::size_t size) {
    if (size > in_.size()) throw std::invalid_argument("snapshot is truncated");
    if (size > 0) std::memcpy(data, in_.data(), size);
    in_ = in_.subspan(size);
  }

  std::span<const std::byte> in_;
};

}  // namespace slipstream
