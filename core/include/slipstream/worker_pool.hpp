// A persistent pool of threads that share out a range of indices. One owner calls run(); two pools never touch.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace slipstream {

class WorkerPool {
 public:
  // Between two steps of a world a learner needs about this long (some 40 us); waking a sleeping thread costs as much.
  static constexpr int kSpins = 2000;

  // `threads` counts the caller, so 1 starts no thread at all. A worker looks this often for more work before it
  // sleeps: bounded, so an idle pool costs nothing and a busy machine loses at most this per run.
  explicit WorkerPool(int threads, int spins = kSpins);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Calls job(context, begin, end) over disjoint pieces of [0, count) until all are done. Does not allocate. Every
  // thread starts with the same part of the range each time, so that its cache stays useful, and then helps others.
  using Job = void (*)(void* context, int begin, int end);
  void run(int count, int grain, Job job, void* context);

  [[nodiscard]] int threads() const { return static_cast<int>(workers_.size()) + 1; }

 private:
  // One thread's part of a run. `claims` holds the number of pieces (high half) and the next one to take (low half) in
  // one word: a thread that comes late to a finished run finds nothing to take and touches nothing else, so run()
  // waits for pieces, never for threads.
  struct alignas(64) Part {
    std::atomic<std::uint64_t> claims{0};
    int begin = 0;
    int end = 0;
  };

  void worker_loop(std::size_t own);
  void take_pieces(std::size_t own);

  std::vector<Part> parts_;  // [threads]; part 0 is the caller's
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint64_t> ticket_{0};  // increases with every run(); workers wait for a new one
  std::atomic<bool> stop_{false};
  const int spins_;
  int grain_ = 1;
  Job job_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<std::uint64_t> done_{0};  // pieces of this run
};

}  // namespace slipstream
