#include "cpu/parallel.hpp"

#include <fenv.h>
#include <omp.h>
#include <pthread.h>

#include <atomic>

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace normgrad::cpu {
namespace {

// libgomp's threads do not exist in a forked child, and a parallel region there waits for them for
// ever (gcc bug 60035). A child therefore runs everything on its one thread.
std::atomic<bool> g_forked_child{false};

bool may_use_threads() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { g_forked_child.store(true); });
  return registered == 0 && !g_forked_child.load(std::memory_order_relaxed);
}

// ThreadSanitizer cannot see the synchronization inside libgomp; these two say what it does: what
// happened before a region is visible in it, and what it did is visible after.
class RegionEdges {
 public:
#if defined(__SANITIZE_THREAD__)
  void release() { __tsan_release(this); }
  void acquire() { __tsan_acquire(this); }
#else
  void release() {}
  void acquire() {}
#endif
};

// The caller may have asked for flushed subnormals or another rounding; a pool thread has whatever
// its creator had. Bits must not depend on either.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    fegetenv(&saved_);
    fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  fenv_t saved_;
};

}  // namespace

void run_tasks(int64_t tasks, int64_t bytes, void (*body)(void*, int64_t), void* context) {
  const int64_t threads = omp_get_max_threads();
  if (tasks <= 1 || threads <= 1 || bytes < kSerialBytes || !may_use_threads()) {
    const DefaultFloatEnvironment environment;
    for (int64_t task = 0; task < tasks; ++task) body(context, task);
    return;
  }
  RegionEdges edges;
  edges.release();
#pragma omp parallel num_threads(static_cast <int>(threads < tasks ? threads : tasks))
  {
    edges.acquire();
    const DefaultFloatEnvironment environment;
    // Tasks are dealt out one at a time: a thread that the system interrupts delays one task.
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < tasks; ++task) body(context, task);
    edges.release();
  }
  edges.acquire();
}

}  // namespace normgrad::cpu
