#include "cpu/parallel.hpp"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>

#include "hwy/cache_control.h"

namespace normgrad::cpu {
namespace {

std::atomic<bool> g_single_threaded{false};

// The end of a region, for a thread that has no task left. libgomp's own barrier spins for
// milliseconds: on a machine with more runnable threads than cores, that keeps from running the
// very thread it waits for (64x4096: 16 ms instead of 50 us). So this one spins for the
// microseconds that a task may take, then sleeps; at libgomp's barrier all meet at once.
void meet(std::atomic<int>& arrived, int threads) {
  constexpr int kSpins = 2000;
  if (arrived.fetch_add(1) + 1 == threads) {
    arrived.notify_all();
    return;
  }
  for (int spin = 0; spin < kSpins; ++spin) {
    if (arrived.load() == threads) return;
    hwy::Pause();
  }
  for (int seen = arrived.load(); seen != threads; seen = arrived.load()) arrived.wait(seen);
}

// Deals the tasks out. Each thread has a share of neighbours, the same in every region of as many
// tasks, so that it finds in its caches what it left there: cores need not share a third level. A
// thread that is done helps the next ones out, one task at a time: one that the system interrupts
// delays one task.
class Shares {
 public:
  template <class Body>
  void work(int thread, int team, int64_t tasks, Order order, const Body& body) {
    const int shares = std::min(team, kMostShares);
    for (int k = 0; k < shares; ++k) {
      const int share = (thread + k) % shares;
      const int64_t begin = tasks * share / shares, end = tasks * (share + 1) / shares;
      for (;;) {
        const int64_t taken = taken_[share].tasks.fetch_add(1, std::memory_order_relaxed);
        if (taken >= end - begin) break;
        body(order == Order::kForward ? begin + taken : end - 1 - taken);
      }
    }
  }

 private:
  static constexpr int kMostShares = 64;  // further threads help from the beginning
  struct alignas(64) Taken {              // a cache line of its own
    std::atomic<int64_t> tasks{0};
  };
  Taken taken_[kMostShares];
};

}  // namespace

void watch_forks() {
  const int failed = pthread_atfork(nullptr, nullptr, [] { g_single_threaded.store(true); });
  if (failed != 0) g_single_threaded.store(true);
}

int threads() {
  return g_single_threaded.load(std::memory_order_relaxed) ? 1 : omp_get_max_threads();
}

void run_tasks(int64_t tasks, int64_t bytes, Order order, void (*body)(void*, int64_t),
               void* context) {
  if (tasks <= 1 || bytes < kSerialBytes || threads() <= 1) {
    for (int64_t k = 0; k < tasks; ++k) {
      body(context, order == Order::kForward ? k : tasks - 1 - k);
    }
    return;
  }
  // Always the whole team, even for few tasks: libgomp ends the threads that a smaller team does
  // not need and makes them again for the next region.
  Shares shares;
  std::atomic<int> arrived{0};
#pragma omp parallel
  {
    const DefaultFloatEnvironment environment;
    const int team = omp_get_num_threads();
    shares.work(omp_get_thread_num(), team, tasks, order,
                [&](int64_t task) { body(context, task); });
    meet(arrived, team);
  }
}

}  // namespace normgrad::cpu
