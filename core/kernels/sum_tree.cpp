#include "kernels/sum_tree.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace slipstream {
namespace {

// Descents that run side by side, so that one waits for memory while the others compute.
constexpr std::size_t kLanes = 16;
// How many places ahead a walk over scattered leaves asks for memory.
constexpr std::size_t kAhead = 16;

using Four = double __attribute__((vector_size(4 * sizeof(double))));  // understood by GCC and Clang on any processor

std::size_t zu(std::int64_t value) { return static_cast<std::size_t>(value); }

void check_sizes(std::size_t indices, std::size_t values) {
  if (indices != values) {
    throw std::invalid_argument(std::to_string(indices) + " indices and " + std::to_string(values) +
                                " values: a sum tree needs one per index");
  }
}

}  // namespace

SumTree::SumTree(std::int64_t capacity) : capacity_(capacity) {
  if (capacity < 1) {
    throw std::invalid_argument("capacity " + std::to_string(capacity) + ": a sum tree needs at least 1");
  }
  std::size_t entries = zu(capacity);
  do {
    entries = (entries + kWidth - 1) / kWidth;
    levels_.emplace_back(entries);
  } while (entries > 1);
}

double SumTree::sum(const Node& node) {
  const auto& w = node.below;
  return ((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7]));
}

double SumTree::total() const { return sum(levels_.back().front()); }

void SumTree::check(std::span<const std::int64_t> index) const {
  for (const std::int64_t i : index) {
    if (i < 0 || i >= capacity_) {
      throw std::invalid_argument("index " + std::to_string(i) + " is outside a sum tree of " +
                                  std::to_string(capacity_));
    }
  }
}

void SumTree::set(std::span<const std::int64_t> index, std::span<const double> value) {
  check_sizes(index.size(), value.size());
  check(index);
  for (const double v : value) {
    if (!(v >= 0.0) || !std::isfinite(v)) {
      throw std::invalid_argument("weight " + std::to_string(v) + ": weights are finite and not negative");
    }
  }

  touched_.clear();
  auto touch = [&](std::size_t node) {
    if (touched_.empty() || touched_.back() != node) touched_.push_back(node);
  };
  for (std::size_t k = 0; k < index.size(); ++k) {
    if (k + kAhead < index.size()) __builtin_prefetch(&levels_[0][zu(index[k + kAhead]) / kWidth], 1);
    const std::size_t at = zu(index[k]);
    levels_[0][at / kWidth].below[at % kWidth] = value[k];
    touch(at / kWidth);
  }
  for (std::size_t level = 0; level + 1 < levels_.size(); ++level) {
    const std::vector<Node>& nodes = levels_[level];
    std::vector<Node>& above = levels_[level + 1];
    // Where paths have met more often than not, walking the level is cheaper than walking the paths.
    if (touched_.size() >= nodes.size()) {
      touched_.resize(nodes.size());
      for (std::size_t node = 0; node < nodes.size(); ++node) touched_[node] = node;
    }
    std::size_t kept = 0;
    for (std::size_t k = 0; k < touched_.size(); ++k) {
      const std::size_t node = touched_[k];
      above[node / kWidth].below[node % kWidth] = sum(nodes[node]);
      if (kept == 0 || touched_[kept - 1] != node / kWidth) touched_[kept++] = node / kWidth;
    }
    touched_.resize(kept);
  }
}

void SumTree::get(std::span<const std::int64_t> index, std::span<double> value) const {
  check_sizes(index.size(), value.size());
  check(index);
  for (std::size_t k = 0; k < index.size(); ++k) {
    value[k] = levels_[0][zu(index[k]) / kWidth].below[zu(index[k]) % kWidth];
  }
}

// Which of the eight below x falls into; x becomes what is left of it there. Without branches, because which way a draw
// goes cannot be predicted.
std::size_t SumTree::descend(const Node& node, double& x) {
  // Sums of the first 1, 2, ... 8, added up in the order of sum(): where a weight is 0 its running sum is, to the last
  // bit, the one before, so that no x can fall between the two.
  auto running = [](const double* below) {
    Four w;
    std::memcpy(&w, below, sizeof w);
    w += __builtin_shufflevector(w, Four{}, 4, 0, 4, 2);
    return w + __builtin_shufflevector(w, Four{}, 4, 4, 1, 1);
  };
  const Four low = running(node.below.data());
  const Four high = running(node.below.data() + 4) + low[3];
  const auto low_passed = x >= low;  // -1 for each sum that x has reached
  const auto high_passed = x >= high;
  const auto passed = low_passed + high_passed;
  const auto at = static_cast<std::size_t>(-(passed[0] + passed[1] + passed[2] + passed[3]));
  if (at == kWidth) [[unlikely]] {  // rounding has put x past the end: it belongs to the last that is not 0
    std::size_t last = kWidth - 1;
    while (node.below[last] == 0.0) --last;
    return last;
  }
  const Four low_sums = low_passed ? low : Four{};
  const Four high_sums = high_passed ? high : Four{};
  const Four largest = low_sums > high_sums ? low_sums : high_sums;
  x -= std::max(std::max(largest[0], largest[1]), std::max(largest[2], largest[3]));
  return at;
}

void SumTree::sample(std::span<const double> u, std::span<std::int64_t> index, std::span<double> weight) const {
  if (index.size() != u.size() || weight.size() != u.size()) {
    throw std::invalid_argument("a sum tree needs one index and one weight per draw");
  }
  const double whole = total();
  if (!u.empty() && !(whole > 0.0)) {
    throw std::invalid_argument("the total of the weights is 0: there is nothing to draw");
  }
  const auto wrong = std::find_if_not(u.begin(), u.end(), [](double v) { return v >= 0.0 && v < 1.0; });
  if (wrong != u.end()) throw std::invalid_argument("draw " + std::to_string(*wrong) + ": draws are in [0, 1)");
  std::array<double, kLanes> x{};
  std::array<std::size_t, kLanes> at{};
  for (std::size_t first = 0; first < u.size(); first += kLanes) {
    const std::size_t lanes = std::min(kLanes, u.size() - first);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      x[lane] = u[first + lane] * whole;
    }
    at.fill(0);
    for (std::size_t level = levels_.size() - 1; level > 0; --level) {
      const Node* nodes = levels_[level].data();
      const Node* below = levels_[level - 1].data();
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        at[lane] = at[lane] * kWidth + descend(nodes[at[lane]], x[lane]);
        __builtin_prefetch(below + at[lane]);
      }
    }
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const Node& node = levels_[0][at[lane]];
      const std::size_t leaf = descend(node, x[lane]);
      index[first + lane] = static_cast<std::int64_t>(at[lane] * kWidth + leaf);
      weight[first + lane] = node.below[leaf];
    }
  }
}

}  // namespace slipstream
