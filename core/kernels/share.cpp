#include "kernels/share.hpp"

namespace slipstream {

KernelPool& KernelPool::get() {
  static KernelPool pool;
  return pool;
}

void set_kernel_threads(int threads) {
  KernelPool& pool = KernelPool::get();
  const std::lock_guard lock(pool.mutex);
  pool.workers = threads > 1 ? std::make_unique<WorkerPool>(threads) : nullptr;
}

int kernel_threads() {
  KernelPool& pool = KernelPool::get();
  const std::lock_guard lock(pool.mutex);
  return pool.workers == nullptr ? 1 : pool.workers->threads();
}

}  // namespace slipstream
