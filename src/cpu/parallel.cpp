#include "cpu/parallel.hpp"

#include <omp.h>
#include <pthread.h>

#include <atomic>

namespace normgrad::cpu {
namespace {

std::atomic<bool> g_single_threaded{false};

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
#pragma omp parallel
  {
    const DefaultFloatEnvironment environment;
    // Tasks are dealt out one at a time: a thread that the system interrupts delays one task.
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < tasks; ++task) body(context, task);
  }
}

}  // namespace normgrad::cpu
