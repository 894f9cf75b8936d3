// Device: the seam between the runtime's API and what is behind it. The CPU is in cpu.cpp, NVIDIA's
// GPUs are in cuda.cpp; another device is another table.
#pragma once

#include <cstddef>
#include <utility>

#include "normgrad/status.hpp"
#include "runtime.hpp"

namespace normgrad::acl {

// Pointers are not null, unless they are streams; results are written on success only.
struct Device {
  const char* soc_name;
  int (*count)();
  // Makes it the calling thread's; `id` is one of the count's.
  Status (*select)(int id);
  Status (*synchronize)();
  Status (*memory_info)(size_t& free, size_t& total);

  Status (*allocate)(size_t bytes, void*& memory);  // a multiple of 64
  Status (*allocate_host)(size_t bytes, void*& memory);
  Status (*release)(void* memory);
  Status (*release_host)(void* memory);
  Status (*copy)(void* to, const void* from, size_t bytes);
  Status (*copy_async)(void* to, const void* from, size_t bytes, void* stream);
  Status (*fill)(void* memory, int byte, size_t bytes);
  Status (*fill_async)(void* memory, int byte, size_t bytes, void* stream);

  // A device without streams of its own makes null ones.
  Status (*create_stream)(void*& stream);
  Status (*destroy_stream)(void* stream);
  Status (*synchronize_stream)(void* stream);
  Status (*query_stream)(void* stream, bool& complete);
  Status (*wait_event)(void* stream, void* event);

  Status (*create_event)(void*& event);
  Status (*destroy_event)(void* event);
  Status (*record_event)(void* event, void* stream);
  Status (*query_event)(void* event, bool& complete);
  Status (*synchronize_event)(void* event);
  Status (*elapsed_time)(void* start, void* end, float& milliseconds);
};

extern const Device kCpu;
extern const Device kCuda;

// The device that NORMGRAD_ACL_DEVICE asks for. Where there is none: null, with the refusal,
// ACL_ERROR_RT_NO_DEVICE, told on behalf of `function`.
const Device* find_device(const char* function);

// What the device answered; `code` for whatever it refuses.
inline aclError answer(const char* function, const Status& status,
                       aclError code = ACL_ERROR_RT_INTERNAL_ERROR) {
  if (status.ok()) return ACL_SUCCESS;
  if (status.code() == Code::kUnsupportedDevice) code = ACL_ERROR_RT_NO_DEVICE;
  return fail(code, "EE9999: %s: %s", function, status.message().c_str());
}

// Runs call(device), which answers with a Status.
template <class Call>
aclError on_device(const char* function, const Call& call) noexcept {
  return guarded(function, [&]() -> aclError {
    const Device* device = find_device(function);
    return device ? answer(function, call(*device)) : ACL_ERROR_RT_NO_DEVICE;
  });
}

}  // namespace normgrad::acl
