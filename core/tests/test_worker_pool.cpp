#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "check.hpp"
#include "slipstream/worker_pool.hpp"

using namespace slipstream;

namespace {

struct Tally {
  std::vector<std::atomic<int>> visits;
  explicit Tally(int count) : visits(static_cast<std::size_t>(count)) {}

  static void visit(void* context, int begin, int end) {
    auto& tally = *static_cast<Tally*>(context);
    for (int i = begin; i < end; ++i) tally.visits[static_cast<std::size_t>(i)].fetch_add(1);
  }
  [[nodiscard]] bool all_are(int times) const {
    for (const auto& v : visits) {
      if (v.load() != times) return false;
    }
    return true;
  }
};

void every_index_runs_once_per_run() {
  for (const int threads : {1, 2, 3, 8}) {
    WorkerPool pool(threads);
    CHECK(pool.threads() == threads);
    for (const int count : {0, 1, 2, 7, 64, 1000}) {
      for (const int grain : {1, 3, 64}) {
        Tally tally(count);
        const int runs = 50;
        for (int r = 0; r < runs; ++r) pool.run(count, grain, &Tally::visit, &tally);
        CHECK(tally.all_are(runs));
      }
    }
  }
}

void many_short_runs_lose_nothing() {
  WorkerPool pool(2);
  Tally tally(16);
  const int runs = 20000;
  for (int r = 0; r < runs; ++r) pool.run(16, 1, &Tally::visit, &tally);
  CHECK(tally.all_are(runs));
}

void sleeping_workers_wake_up() {
  WorkerPool pool(3);
  Tally tally(100);
  for (int r = 0; r < 5; ++r) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // far longer than a worker spins
    pool.run(100, 1, &Tally::visit, &tally);
  }
  CHECK(tally.all_are(5));
}

void pools_can_be_destroyed_at_once_and_after_work() {
  Tally tally(10);
  for (int r = 0; r < 200; ++r) {
    auto pool = std::make_unique<WorkerPool>(1 + r % 4);
    if (r % 2 == 0) pool->run(10, 1, &Tally::visit, &tally);
  }
  CHECK(tally.all_are(100));
}

void two_pools_do_not_touch() {
  Tally one(50);
  Tally two(50);
  const int runs = 2000;
  const auto work = [](Tally& tally) {
    WorkerPool pool(2);
    for (int r = 0; r < runs; ++r) pool.run(50, 5, &Tally::visit, &tally);
  };
  std::thread other([&] { work(two); });
  work(one);
  other.join();
  CHECK(one.all_are(runs));
  CHECK(two.all_are(runs));
}

}  // namespace

int main() {
  every_index_runs_once_per_run();
  many_short_runs_lose_nothing();
  sleeping_workers_wake_up();
  pools_can_be_destroyed_at_once_and_after_work();
  two_pools_do_not_touch();
  return test::finish();
}
