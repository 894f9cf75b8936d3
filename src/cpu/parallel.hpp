// Threads: the only place that knows about OpenMP.
#pragma once

#include <cstdint>
#include <memory>

namespace normgrad::cpu {

// Below this many bytes of x, dy and dx together a parallel region costs more than it saves: waking
// a second thread takes about 1 us, in which one core moves about 64 KiB from its cache.
inline constexpr int64_t kSerialBytes = 64 * 1024;

// Calls body(context, task) for every task, on the threads OpenMP gives the caller. Tasks must
// write to places of their own; which thread runs one must not matter. Each thread runs with the
// default floating-point environment (to nearest, subnormals kept) and gets its own back
// afterwards.
void run_tasks(int64_t tasks, int64_t bytes, void (*body)(void* context, int64_t task),
               void* context);

template <class Body>
void parallel_for(int64_t tasks, int64_t bytes, const Body& body) {
  run_tasks(
      tasks, bytes, [](void* context, int64_t task) { (*static_cast<const Body*>(context))(task); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

}  // namespace normgrad::cpu
