// Weights that change often and are drawn from in proportion: a binary tree of sums of which every third level is kept,
// so that the eight values a kept sum is made of are one cache line.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace slipstream {

// Draws leaf i with probability weight[i] / total. A sum is always computed again from the eight below it, never
// adjusted by a difference: the tree is a function of its leaves, whatever was set before. A leaf of weight 0 is never
// drawn, whatever the rounding.
class SumTree {
 public:
  // Throws std::invalid_argument for a capacity below 1.
  explicit SumTree(std::int64_t capacity);

  // weight[index[k]] = value[k] in order, so that the last of equal indices counts. Throws std::invalid_argument and
  // changes nothing for an index outside the tree or a value that is negative or not finite.
  void set(std::span<const std::int64_t> index, std::span<const double> value);
  void get(std::span<const std::int64_t> index, std::span<double> value) const;
  // index[k] = the leaf in which u[k] * total falls when weights are laid end to end; weight[k] is its weight. Throws
  // std::invalid_argument for u outside [0, 1) and where all weights are 0.
  void sample(std::span<const double> u, std::span<std::int64_t> index, std::span<double> weight) const;

  [[nodiscard]] double total() const;
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }

 private:
  static constexpr std::size_t kWidth = 8;
  struct alignas(kWidth * sizeof(double)) Node {
    std::array<double, kWidth> below{};
  };

  static double sum(const Node& node);
  static std::size_t descend(const Node& node, double& x);
  void check(std::span<const std::int64_t> index) const;

  std::int64_t capacity_;
  std::vector<std::vector<Node>> levels_;  // [0] holds the leaves, the last is one node
  std::vector<std::size_t> touched_;       // scratch of set(): nodes whose sum is out of date
};

}  // namespace slipstream
