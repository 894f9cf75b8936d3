#include "cpu/parallel.hpp"

#include <omp.h>
#include <pthread.h>

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

}  // namespace

void watch_forks() {
  const int failed = pthread_atfork(nullptr, nullptr, [] { g_single_threaded.store(true); });
  if (failed != 0) g_single_threaded.store(true);
}

int threads() {
  return g_single_threaded.load(std::memory_order_relaxed) ? 1 : omp_get_max_threads();
}

void run_tasks(int64_t tasks, int64_t bytes, void (*body)(void*, int64_t), void* context) {
  if (tasks <= 1 || bytes < kSerialBytes || threads() <= 1) {
    for (int64_t task = 0; task < tasks; ++task) body(context, task);
    return;
  }
  // Always the whole team, even for few tasks: libgomp ends the threads that a smaller team does
  // not need and makes them again for the next region.
  std::atomic<int> arrived{0};
#pragma omp parallel
  {
    const DefaultFloatEnvironment environment;
    // Tasks are dealt out one at a time: a thread that the system interrupts delays one task.
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t task = 0; task < tasks; ++task) body(context, task);
    meet(arrived, omp_get_num_threads());
  }
}

}  // namespace normgrad::cpu
