#include "kernels/share.hpp"

namespace slipstream {
namespace {

// Between two passes of a minibatch torch computes a loss, for about half a millisecond. A worker that slept meanwhile
// is often woken on the caller's own core, and then the pass runs as if there were one thread.
constexpr int kSpins = 40000;

}  // namespace

KernelPool& KernelPool::get() {
  static KernelPool pool;
  return pool;
}

void set_kernel_threads(int threads) {
  KernelPool& pool = KernelPool::get();
  const std::lock_guard lock(pool.mutex);
  pool.threads = std::max(threads, 1);
  pool.workers = threads > 1 ? std::make_unique<WorkerPool>(threads, kSpins) : nullptr;
}

int kernel_threads() { return KernelPool::get().threads; }

}  // namespace slipstream
