// The CPU as a device: host memory, and work that is done at once. A stream is no more than a
// handle that is live, an event is a moment in time.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.hpp"

namespace normgrad::acl {
namespace {

Status memory_info(size_t& free, size_t& total) {
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

Status is_complete(void*, bool& complete) {
  complete = true;
  return {};
}

// In nanoseconds. Atomic: one thread may record what another one reads.
using Moment = std::atomic<int64_t>;

Status create_event(void*& event) {
  event = new Moment(0);
  return {};
}

Status destroy_event(void* event) {
  delete static_cast<Moment*>(event);
  return {};
}

Status record_event(void* event, void*) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  *static_cast<Moment*>(event) = std::chrono::nanoseconds(now).count();
  return {};
}

Status elapsed_time(void* start, void* end, float& milliseconds) {
  const int64_t nanoseconds = *static_cast<Moment*>(end) - *static_cast<Moment*>(start);
  milliseconds = static_cast<float>(static_cast<double>(nanoseconds) * 1e-6);
  return {};
}

}  // namespace

const Device kCpu = {
    .soc_name = "NormGrad-CPU",
    .count = [] { return 1; },
    .select = [](int) { return Status(); },
    .synchronize = [] { return Status(); },
    .memory_info = memory_info,

    .allocate = allocate,
    .allocate_host = allocate,
    .release = release,
    .release_host = release,
    .copy = copy,
    .copy_async = [](void* to, const void* from, size_t bytes,
                     void*) { return copy(to, from, bytes); },
    .fill = fill,
    .fill_async = [](void* memory, int byte, size_t bytes,
                     void*) { return fill(memory, byte, bytes); },

    .create_stream = [](void*&) { return Status(); },
    .destroy_stream = [](void*) { return Status(); },
    .synchronize_stream = [](void*) { return Status(); },
    .query_stream = is_complete,
    // Whatever an event stands for is complete when it is recorded.
    .wait_event = [](void*, void*) { return Status(); },

    .create_event = create_event,
    .destroy_event = destroy_event,
    .record_event = record_event,
    .query_event = is_complete,
    .synchronize_event = [](void*) { return Status(); },
    .elapsed_time = elapsed_time,
};

}  // namespace normgrad::acl
