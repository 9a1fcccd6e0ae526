// Sharing out a kernel's work over the threads of all kernels; the pieces are fixed, so threads change no bit.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <type_traits>

#include "slipstream/worker_pool.hpp"

namespace slipstream {

// Threads that the kernels share out their work over, the caller included.
void set_kernel_threads(int threads);
[[nodiscard]] int kernel_threads();

// The one pool. A kernel that finds it busy (a collector acting while a learner learns) works alone.
struct KernelPool {
  std::mutex mutex;
  std::unique_ptr<WorkerPool> workers;  // null: one thread
  std::atomic<int> threads{1};

  static KernelPool& get();
};

constexpr std::size_t kWorthSharing = 1U << 18U;  // multiply-adds below which waking a second thread costs more

// While one is there, this thread is doing a piece of shared work: what that shares out in turn, it does alone.
class Piece {
 public:
  Piece() { ++depth_; }
  ~Piece() { --depth_; }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  [[nodiscard]] static bool is_being_done() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

// Calls work(i) for every i of [0, count), over threads where `cost` multiply-adds are worth it.
template <class Work>
void share(int count, std::size_t cost, Work&& work) {
  if (count > 1 && cost >= kWorthSharing && !Piece::is_being_done()) {
    KernelPool& pool = KernelPool::get();
    const std::unique_lock lock(pool.mutex, std::try_to_lock);
    if (lock.owns_lock() && pool.workers != nullptr) {
      pool.workers->run(
          count, 1,
          [](void* context, int begin, int end) {
            const Piece piece;
            for (int i = begin; i < end; ++i) (*static_cast<std::remove_reference_t<Work>*>(context))(i);
          },
          &work);
      return;
    }
  }
  for (int i = 0; i < count; ++i) work(i);
}

// Calls work(i) for jobs that share out their own work. Where one of them is no more than a thread's part of all, they
// run side by side, a thread for each, whose data then stay in its own cache; else in turn, each on all threads.
template <class Work>
void share_jobs(std::span<const std::size_t> costs, Work&& work) {
  const auto count = static_cast<int>(costs.size());
  const std::size_t total = std::accumulate(costs.begin(), costs.end(), std::size_t{0});
  const auto threads = static_cast<std::size_t>(KernelPool::get().threads.load(std::memory_order_relaxed));
  if (count > 1 && *std::max_element(costs.begin(), costs.end()) * threads <= total + total / 4) {
    share(count, total, work);
  } else {
    for (int i = 0; i < count; ++i) work(i);
  }
}

}  // namespace slipstream
