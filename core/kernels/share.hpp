// Sharing out a kernel's work over the threads of all kernels; the pieces are fixed, so threads change no bit.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
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

  static KernelPool& get();
};

constexpr std::size_t kWorthSharing = 1U << 18U;  // multiply-adds below which waking a second thread costs more

// Calls work(i) for every i of [0, count), over threads where `cost` multiply-adds are worth it.
template <class Work>
void share(int count, std::size_t cost, Work&& work) {
  if (count > 1 && cost >= kWorthSharing) {
    KernelPool& pool = KernelPool::get();
    const std::unique_lock lock(pool.mutex, std::try_to_lock);
    if (lock.owns_lock() && pool.workers != nullptr) {
      pool.workers->run(
          count, 1,
          [](void* context, int begin, int end) {
            for (int i = begin; i < end; ++i) (*static_cast<std::remove_reference_t<Work>*>(context))(i);
          },
          &work);
      return;
    }
  }
  for (int i = 0; i < count; ++i) work(i);
}

}  // namespace slipstream
