// libinfinirt: devices, streams, events and memory of the CPU. Work on the CPU is complete when the
// call that asked for it returns: there is one stream, NULL, and waiting is never needed.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "error.hpp"
#include "infiniop/normgrad.h"
#include "infinirt.h"

#undef infinirtGetAllDeviceCount

using normgrad::infini::fail;

namespace {

struct Current {
  infiniDevice_t device = INFINI_DEVICE_CPU;
  int id = 0;
};
constinit thread_local Current current;
constinit thread_local char last_error[normgrad::infini::kSentence] = "";

constexpr int kOldTypeCount = 9;  // infinirt.h says why

infiniStatus_t unsupported(const char* function, infiniDevice_t device) {
  return fail(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED,
              "%s: device type %d is not in this build, expected 0 (CPU)", function,
              static_cast<int>(device));
}

infiniStatus_t null_pointer(const char* function, const char* argument) {
  return fail(INFINI_STATUS_NULL_POINTER, "%s: %s is null", function, argument);
}

// What every function that acts on the current device asks first.
infiniStatus_t on_cpu(const char* function) {
  if (current.device == INFINI_DEVICE_CPU) return INFINI_STATUS_SUCCESS;
  return unsupported(function, current.device);
}

// A moment in nanoseconds, or kNever. Atomic: one thread may record what another one reads.
struct Event {
  static constexpr int64_t kNever = INT64_MIN;
  std::atomic<int64_t> time{kNever};
};

infiniStatus_t create_event(const char* function, infinirtEvent_t* event_ptr) {
  if (infiniStatus_t status = on_cpu(function)) return status;
  if (!event_ptr) return null_pointer(function, "event_ptr");
  Event* event = new (std::nothrow) Event;
  if (!event) return fail(INFINI_STATUS_INTERNAL_ERROR, "%s: out of memory", function);
  *event_ptr = event;
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t on_event(const char* function, infinirtEvent_t event) {
  if (infiniStatus_t status = on_cpu(function)) return status;
  return event ? INFINI_STATUS_SUCCESS : null_pointer(function, "event");
}

// 64 bytes: a cache line, and the widest vector.
infiniStatus_t allocate(const char* function, void** p_ptr, size_t size) {
  if (infiniStatus_t status = on_cpu(function)) return status;
  if (!p_ptr) return null_pointer(function, "p_ptr");
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, size) != 0) {
    return fail(INFINI_STATUS_INTERNAL_ERROR, "%s: no memory for size %zu", function, size);
  }
  *p_ptr = memory;
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t release(const char* function, void* memory) {
  if (infiniStatus_t status = on_cpu(function)) return status;
  std::free(memory);
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t copy(const char* function, void* dst, const void* src, size_t size) {
  if (infiniStatus_t status = on_cpu(function)) return status;
  if (size == 0) return INFINI_STATUS_SUCCESS;
  if (!dst || !src) return null_pointer(function, dst ? "src" : "dst");
  std::memmove(dst, src, size);
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t set(const char* function, void* ptr, int value, size_t count) {
  if (infiniStatus_t status = on_cpu(function)) return status;
  if (count == 0) return INFINI_STATUS_SUCCESS;
  if (!ptr) return null_pointer(function, "ptr");
  std::memset(ptr, value, count);
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t memory_of_host(const char* function, size_t& free, size_t& total) {
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
  if (total_kb == 0) {
    return fail(INFINI_STATUS_INTERNAL_ERROR, "%s: /proc/meminfo cannot be read", function);
  }
  free = static_cast<size_t>(available_kb) * 1024;
  total = static_cast<size_t>(total_kb) * 1024;
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t no_graphs(const char* function) {
  if (infiniStatus_t status = on_cpu(function)) return status;
  return fail(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "%s: the CPU has no graphs", function);
}

}  // namespace

extern "C" {

void normgradSetLastError(const char* sentence) noexcept {
  std::snprintf(last_error, sizeof(last_error), "%s", sentence);
}

const char* normgradGetLastError() { return last_error; }

infiniStatus_t infinirtInit() { return INFINI_STATUS_SUCCESS; }

infiniStatus_t infinirtGetDeviceCount(infiniDevice_t device, int* count_ptr) {
  if (!count_ptr) return null_pointer(__func__, "count_ptr");
  if (device < INFINI_DEVICE_CPU || device >= INFINI_DEVICE_TYPE_COUNT) {
    return unsupported(__func__, device);
  }
  *count_ptr = device == INFINI_DEVICE_CPU ? 1 : 0;
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t infinirtGetAllDeviceCount(int* count_array) {
  if (!count_array) return null_pointer(__func__, "count_array");
  for (int type = 0; type < kOldTypeCount; ++type) {
    infiniStatus_t status =
        infinirtGetDeviceCount(static_cast<infiniDevice_t>(type), &count_array[type]);
    if (status != INFINI_STATUS_SUCCESS) return status;
  }
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t infinirtSetDevice(infiniDevice_t device, int device_id) {
  current = {device, device_id};
  return on_cpu(__func__);
}

infiniStatus_t infinirtGetDevice(infiniDevice_t* device_ptr, int* device_id_ptr) {
  if (!device_ptr && !device_id_ptr) return null_pointer(__func__, "device_ptr and device_id_ptr");
  if (device_ptr) *device_ptr = current.device;
  if (device_id_ptr) *device_id_ptr = current.id;
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t infinirtDeviceSynchronize() { return on_cpu(__func__); }

infiniStatus_t infinirtStreamCreate(infinirtStream_t* stream_ptr) {
  if (infiniStatus_t status = on_cpu(__func__)) return status;
  if (!stream_ptr) return null_pointer(__func__, "stream_ptr");
  *stream_ptr = nullptr;
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t infinirtStreamDestroy(infinirtStream_t) { return on_cpu(__func__); }

infiniStatus_t infinirtStreamSynchronize(infinirtStream_t) { return on_cpu(__func__); }

// Success: whatever the event stands for is complete, so the wait is over before it begins.
infiniStatus_t infinirtStreamWaitEvent(infinirtStream_t, infinirtEvent_t event) {
  return on_event(__func__, event);
}

infiniStatus_t infinirtEventCreate(infinirtEvent_t* event_ptr) {
  return create_event(__func__, event_ptr);
}

infiniStatus_t infinirtEventCreateWithFlags(infinirtEvent_t* event_ptr, uint32_t) {
  return create_event(__func__, event_ptr);
}

infiniStatus_t infinirtEventRecord(infinirtEvent_t event, infinirtStream_t) {
  if (infiniStatus_t status = on_event(__func__, event)) return status;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  static_cast<Event*>(event)->time = std::chrono::nanoseconds(now).count();
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t infinirtEventQuery(infinirtEvent_t event, infinirtEventStatus_t* status_ptr) {
  if (infiniStatus_t status = on_event(__func__, event)) return status;
  if (!status_ptr) return null_pointer(__func__, "status_ptr");
  *status_ptr = INFINIRT_EVENT_COMPLETE;
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t infinirtEventSynchronize(infinirtEvent_t event) { return on_event(__func__, event); }

infiniStatus_t infinirtEventDestroy(infinirtEvent_t event) {
  if (infiniStatus_t status = on_cpu(__func__)) return status;
  delete static_cast<Event*>(event);
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t infinirtEventElapsedTime(float* ms_ptr, infinirtEvent_t start, infinirtEvent_t end) {
  if (infiniStatus_t status = on_cpu(__func__)) return status;
  if (!ms_ptr) return null_pointer(__func__, "ms_ptr");
  if (!start || !end) return null_pointer(__func__, start ? "end" : "start");
  const int64_t from = static_cast<Event*>(start)->time, to = static_cast<Event*>(end)->time;
  if (from == Event::kNever || to == Event::kNever) {
    return fail(INFINI_STATUS_BAD_PARAM, "%s: %s has not been recorded", __func__,
                from == Event::kNever ? "start" : "end");
  }
  *ms_ptr = static_cast<float>(static_cast<double>(to - from) * 1e-6);
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t infinirtMalloc(void** p_ptr, size_t size) { return allocate(__func__, p_ptr, size); }

infiniStatus_t infinirtMallocHost(void** p_ptr, size_t size) {
  return allocate(__func__, p_ptr, size);
}

infiniStatus_t infinirtMallocAsync(void** p_ptr, size_t size, infinirtStream_t) {
  return allocate(__func__, p_ptr, size);
}

infiniStatus_t infinirtFree(void* ptr) { return release(__func__, ptr); }

infiniStatus_t infinirtFreeHost(void* ptr) { return release(__func__, ptr); }

infiniStatus_t infinirtFreeAsync(void* ptr, infinirtStream_t) { return release(__func__, ptr); }

// Host and device are the same memory here, whatever the kind says.
infiniStatus_t infinirtMemcpy(void* dst, const void* src, size_t size, infinirtMemcpyKind_t) {
  return copy(__func__, dst, src, size);
}

infiniStatus_t infinirtMemcpyAsync(void* dst, const void* src, size_t size, infinirtMemcpyKind_t,
                                   infinirtStream_t) {
  return copy(__func__, dst, src, size);
}

infiniStatus_t infinirtMemset(void* ptr, int value, size_t count) {
  return set(__func__, ptr, value, count);
}

infiniStatus_t infinirtMemsetAsync(void* ptr, int value, size_t count, infinirtStream_t) {
  return set(__func__, ptr, value, count);
}

infiniStatus_t infinirtGetMemInfo(infiniDevice_t device, int, size_t* free_mem, size_t* total_mem) {
  if (!free_mem || !total_mem) return null_pointer(__func__, free_mem ? "total_mem" : "free_mem");
  if (device != INFINI_DEVICE_CPU) return unsupported(__func__, device);
  return memory_of_host(__func__, *free_mem, *total_mem);
}

infiniStatus_t infinirtGetDeviceResourceSnapshot(infiniDevice_t device, int device_id,
                                                 infinirtDeviceResourceSnapshot_t* snapshot) {
  if (!snapshot) return null_pointer(__func__, "snapshot");
  if (device != INFINI_DEVICE_CPU) return unsupported(__func__, device);
  infinirtDeviceResourceSnapshot_t known = {};
  known.device_type = device;
  known.device_id = device_id;
  known.valid_fields = INFINIRT_RESOURCE_FIELD_MEMORY_CAPACITY;
  if (infiniStatus_t status = memory_of_host(__func__, known.free_bytes, known.total_bytes)) {
    return status;
  }
  known.used_bytes = known.total_bytes - known.free_bytes;
  *snapshot = known;
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t infinirtStreamBeginCapture(infinirtStream_t, infinirtStreamCaptureMode_t) {
  return no_graphs(__func__);
}

infiniStatus_t infinirtStreamEndCapture(infinirtStream_t, infinirtGraph_t*) {
  return no_graphs(__func__);
}

infiniStatus_t infinirtGraphDestroy(infinirtGraph_t) { return no_graphs(__func__); }

infiniStatus_t infinirtGraphInstantiate(infinirtGraphExec_t*, infinirtGraph_t, infinirtGraphNode_t*,
                                        char*, size_t) {
  return no_graphs(__func__);
}

infiniStatus_t infinirtGraphExecDestroy(infinirtGraphExec_t) { return no_graphs(__func__); }

infiniStatus_t infinirtGraphLuanch(infinirtGraphExec_t, infinirtStream_t) {
  return no_graphs(__func__);
}

}  // extern "C"
