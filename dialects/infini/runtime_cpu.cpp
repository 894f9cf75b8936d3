// The CPU as a device. Its work is complete when the call that asked for it returns: there is one
// stream, NULL, and waiting is never needed. Host and device are the same memory.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "runtime.hpp"

namespace normgrad::infini {
namespace {

// A moment in nanoseconds, or kNever. Atomic: one thread may record what another one reads.
struct Event {
  static constexpr int64_t kNever = INT64_MIN;
  std::atomic<int64_t> time{kNever};
};

Status create_event(uint32_t, void*& event) {
  Event* made = new (std::nothrow) Event;
  if (!made) return {Code::kInternal, "out of memory"};
  event = made;
  return {};
}

Status destroy_event(void* event) {
  delete static_cast<Event*>(event);
  return {};
}

Status record_event(void* event, void*) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  static_cast<Event*>(event)->time = std::chrono::nanoseconds(now).count();
  return {};
}

Status query_event(void*, bool& complete) {
  complete = true;
  return {};
}

Status elapsed_time(void* start, void* end, float& milliseconds) {
  const int64_t from = static_cast<Event*>(start)->time, to = static_cast<Event*>(end)->time;
  if (from == Event::kNever) return {Code::kBadArgument, "start has not been recorded"};
  if (to == Event::kNever) return {Code::kBadArgument, "end has not been recorded"};
  milliseconds = static_cast<float>(static_cast<double>(to - from) * 1e-6);
  return {};
}

// 64 bytes: a cache line, and the widest vector.
Status allocate(size_t bytes, void*& memory) {
  if (posix_memalign(&memory, 64, bytes) != 0) return {Code::kInternal, "no memory"};
  return {};
}

Status release(void* memory) {
  std::free(memory);
  return {};
}

// memmove: programs copy within a buffer.
Status copy(void* to, const void* from, size_t bytes) {
  std::memmove(to, from, bytes);
  return {};
}

Status fill(void* memory, int byte, size_t bytes) {
  std::memset(memory, byte, bytes);
  return {};
}

Status memory_info(int, size_t& free, size_t& total) {
  unsigned long long available_kb = 0, total_kb = 0;
  if (FILE* file = std::fopen("/proc/meminfo", "r")) {
    char line[128];
    while (std::fgets(line, sizeof(line), file)) {
      if (std::sscanf(line, "MemAvailable: %llu", &available_kb) != 1) {
        std::sscanf(line, "MemTotal: %llu", &total_kb);
      }
    }
    std::fclose(file);
  }
  if (total_kb == 0) return {Code::kInternal, "/proc/meminfo cannot be read"};
  free = static_cast<size_t>(available_kb) * 1024;
  total = static_cast<size_t>(total_kb) * 1024;
  return {};
}

}  // namespace

const Runtime kCpuRuntime = {
    .count = [] { return 1; },
    .select = [](int) { return Status(); },
    .synchronize = [] { return Status(); },
    .memory_info = memory_info,

    .create_stream =
        [](void*& stream) {
          stream = nullptr;
          return Status();
        },
    .destroy_stream = [](void*) { return Status(); },
    .synchronize_stream = [](void*) { return Status(); },
    // Whatever the event stands for is complete, so the wait is over before it begins.
    .wait_event = [](void*, void*) { return Status(); },

    .create_event = create_event,
    .destroy_event = destroy_event,
    .record_event = record_event,
    .query_event = query_event,
    .synchronize_event = [](void*) { return Status(); },
    .elapsed_time = elapsed_time,

    .allocate = allocate,
    .allocate_host = allocate,
    .allocate_async = [](size_t bytes, void*, void*& memory) { return allocate(bytes, memory); },
    .release = release,
    .release_host = release,
    .release_async = [](void* memory, void*) { return release(memory); },
    .copy = copy,
    .copy_async = [](void* to, const void* from, size_t bytes,
                     void*) { return copy(to, from, bytes); },
    .fill = fill,
    .fill_async = [](void* memory, int byte, size_t bytes,
                     void*) { return fill(memory, byte, bytes); },

    .begin_capture = nullptr,
    .end_capture = nullptr,
    .instantiate = nullptr,
    .launch = nullptr,
    .destroy_graph = nullptr,
    .destroy_executable = nullptr,
};

}  // namespace normgrad::infini
