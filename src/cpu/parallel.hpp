// Threads: the only place that knows about OpenMP. And the floating-point environment they work in.
#pragma once

#include <fenv.h>

#include <cstdint>
#include <memory>

namespace normgrad::cpu {

// Below this many bytes a parallel region costs more than it saves: waking a second thread takes
// 1 us if it still spins and 5 to 50 us if it sleeps, in which one core moves 256 KiB from its
// cache.
inline constexpr int64_t kSerialBytes = 256 * 1024;

// In which a thread takes its tasks: backwards, it first meets what it read last in its caches.
enum class Order { kForward, kBackward };

// Calls body(context, task) for every task, on the threads OpenMP gives the caller. Neighbours run
// on the same thread, in every call for as many tasks, unless it lags behind. Tasks must write to
// places of their own; which thread runs one must not matter.
void run_tasks(int64_t tasks, int64_t bytes, Order order, void (*body)(void* context, int64_t task),
               void* context);

template <class Body>
void parallel_for(int64_t tasks, int64_t bytes, const Body& body, Order order = Order::kForward) {
  run_tasks(
      tasks, bytes, order,
      [](void* context, int64_t task) { (*static_cast<const Body*>(context))(task); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

// How many threads a call of the caller may use.
int threads();

// libgomp's threads do not exist in a forked child, and a parallel region there waits for them for
// ever (gcc bug 60035). From this call on, children of fork() run everything on their one thread.
void watch_forks();

// The default environment (to nearest, subnormals kept) for a scope, then the caller's again: the
// caller may have asked for flushed subnormals or another rounding, and a pool thread has whatever
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

}  // namespace normgrad::cpu
