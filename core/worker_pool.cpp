#include "slipstream/worker_pool.hpp"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace slipstream {
namespace {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

WorkerPool::WorkerPool(int threads, int spins) : parts_(static_cast<std::size_t>(std::max(1, threads))), spins_(spins) {
  for (std::size_t own = 1; own < parts_.size(); ++own) workers_.emplace_back([this, own] { worker_loop(own); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    ++ticket_;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void WorkerPool::run(int count, int grain, Job job, void* context) {
  if (workers_.empty() || count <= grain) {
    if (count > 0) job(context, 0, count);
    return;
  }
  grain_ = grain;
  job_ = job;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  std::uint64_t pieces = 0;
  int begin = 0;
  for (std::size_t t = 0; t < parts_.size(); ++t) {
    Part& part = parts_[t];
    part.begin = begin;
    part.end = begin = static_cast<int>(static_cast<std::size_t>(count) * (t + 1) / parts_.size());
    const auto own = static_cast<std::uint64_t>((part.end - part.begin + grain - 1) / grain);
    pieces += own;
    part.claims.store(own << 32, std::memory_order_release);
  }
  {
    const std::lock_guard lock(mutex_);
    ticket_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  take_pieces(0);
  // Where threads outnumber cores, the worker we wait for may need this one.
  for (int i = 0; done_.load(std::memory_order_acquire) != pieces; ++i)
    i < kSpins ? relax() : std::this_thread::yield();
}

void WorkerPool::take_pieces(std::size_t own) {
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    Part& part = parts_[(own + k) % parts_.size()];
    for (;;) {
      const std::uint64_t claim = part.claims.fetch_add(1, std::memory_order_acq_rel);
      const auto piece = static_cast<std::uint32_t>(claim);
      if (piece >= claim >> 32) break;
      const int begin = part.begin + static_cast<int>(piece) * grain_;
      job_(context_, begin, std::min(begin + grain_, part.end));
      done_.fetch_add(1, std::memory_order_release);
    }
  }
}

void WorkerPool::worker_loop(std::size_t own) {
  std::uint64_t seen = 0;
  for (;;) {
    for (int i = 0; i < spins_ && ticket_.load(std::memory_order_acquire) == seen; ++i) relax();
    if (ticket_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return ticket_.load(std::memory_order_acquire) != seen; });
    }
    seen = ticket_.load(std::memory_order_acquire);
    if (stop_) return;
    take_pieces(own);
  }
}

}  // namespace slipstream
