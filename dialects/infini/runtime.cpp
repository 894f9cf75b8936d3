// libinfinirt's functions. Each checks its pointers and hands over to the calling thread's current
// device, a table of runtime.hpp.
#include "runtime.hpp"

#include <cstdio>
#include <string>

#include "error.hpp"
#include "infiniop/normgrad.h"

#undef infinirtGetAllDeviceCount

namespace normgrad::infini {
namespace {

struct Current {
  infiniDevice_t device = INFINI_DEVICE_CPU;
  int id = 0;
  const Runtime* runtime = &kCpuRuntime;  // null: it was asked for and cannot be had
};
constinit thread_local Current current;
constinit thread_local char last_error[kSentence] = "";

constexpr int kOldTypeCount = 9;  // infinirt.h says why

infiniStatus_t null_pointer(const char* function, const char* argument) {
  return fail(INFINI_STATUS_NULL_POINTER, "%s: %s is null", function, argument);
}

infiniStatus_t answer(const char* function, const Status& status) {
  infiniStatus_t code = INFINI_STATUS_INTERNAL_ERROR;
  if (status.ok()) return INFINI_STATUS_SUCCESS;
  if (status.code() == Code::kNullPointer) code = INFINI_STATUS_NULL_POINTER;
  if (status.code() == Code::kBadArgument) code = INFINI_STATUS_BAD_PARAM;
  if (status.code() == Code::kUnsupportedDevice) code = INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED;
  return fail(code, "%s: %s", function, status.message().c_str());
}

// Sets `runtime` to the table of a device that is there, or refuses. The CPU has any id.
infiniStatus_t find_device(const char* function, infiniDevice_t device, int id,
                           const Runtime*& runtime) {
  const Runtime* found = device == INFINI_DEVICE_CPU      ? &kCpuRuntime
                         : device == INFINI_DEVICE_NVIDIA ? &kNvidiaRuntime
                                                          : nullptr;
  const int count = found ? found->count() : 0;
  if (count == 0) {
    return fail(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED,
                "%s: device type %d is not in this build, or not in this machine", function,
                static_cast<int>(device));
  }
  if (device != INFINI_DEVICE_CPU && (id < 0 || id >= count)) {
    return fail(INFINI_STATUS_DEVICE_NOT_FOUND,
                "%s: device id: expected 0 to %d for device type %d, got %d", function, count - 1,
                static_cast<int>(device), id);
  }
  runtime = found;
  return INFINI_STATUS_SUCCESS;
}

// Why nothing runs on the current device: as infinirtSetDevice said.
infiniStatus_t refuse_current(const char* function) {
  const Runtime* runtime = nullptr;
  if (infiniStatus_t status = find_device(function, current.device, current.id, runtime)) {
    return status;
  }
  return fail(INFINI_STATUS_DEVICE_NOT_INITIALIZED, "%s: device %d could not be selected", function,
              current.id);
}

// What every function that acts on the current device does. call: Status(const Runtime&).
template <class Call>
infiniStatus_t on_device(const char* function, const Call& call) noexcept {
  return guard([&] {
    if (!current.runtime) return refuse_current(function);
    return answer(function, call(*current.runtime));
  });
}

template <class Call>
infiniStatus_t on_device_with_graphs(const char* function, const Call& call) noexcept {
  return on_device(function, [&](const Runtime& runtime) -> Status {
    if (!runtime.begin_capture) return {Code::kUnsupportedDevice, "the CPU has no graphs"};
    return call(runtime);
  });
}

Status null(const char* argument) {
  return {Code::kNullPointer, std::string(argument) + " is null"};
}

// Calls `make` for something that `result` is to point to; a failure leaves it as it was.
template <class Make>
Status make_into(const char* argument, void** result, const Make& make) {
  if (!result) return null(argument);
  void* made = nullptr;
  Status status = make(made);
  if (status.ok()) *result = made;
  return status;
}

infiniStatus_t create_event(const char* function, infinirtEvent_t* event_ptr, uint32_t flags) {
  return on_device(function, [&](const Runtime& runtime) {
    return make_into("event_ptr", event_ptr,
                     [&](void*& event) { return runtime.create_event(flags, event); });
  });
}

// make: Status(const Runtime&, void*& memory).
template <class Make>
infiniStatus_t allocate(const char* function, void** p_ptr, size_t size, const Make& make) {
  return on_device(function, [&](const Runtime& runtime) -> Status {
    const Status status =
        make_into("p_ptr", p_ptr, [&](void*& memory) { return make(runtime, memory); });
    if (status.ok() || !p_ptr) return status;
    return {status.code(), "size " + std::to_string(size) + ": " + status.message()};
  });
}

Status check_copy(const void* dst, const void* src) {
  return dst && src ? Status() : null(dst ? "src" : "dst");
}

}  // namespace
}  // namespace normgrad::infini

using namespace normgrad::infini;  // NOLINT: the C functions below are this namespace's face
using normgrad::Status;

extern "C" {

void normgradSetLastError(const char* sentence) noexcept {
  std::snprintf(last_error, sizeof(last_error), "%s", sentence);
}

const char* normgradGetLastError() { return last_error; }

infiniStatus_t infinirtInit() { return INFINI_STATUS_SUCCESS; }

infiniStatus_t infinirtGetDeviceCount(infiniDevice_t device, int* count_ptr) {
  if (!count_ptr) return null_pointer(__func__, "count_ptr");
  if (device < INFINI_DEVICE_CPU || device >= INFINI_DEVICE_TYPE_COUNT) {
    return fail(INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED,
                "%s: device type: expected 0 to %d, got %d", __func__, INFINI_DEVICE_TYPE_COUNT - 1,
                static_cast<int>(device));
  }
  *count_ptr = device == INFINI_DEVICE_CPU      ? kCpuRuntime.count()
               : device == INFINI_DEVICE_NVIDIA ? kNvidiaRuntime.count()
                                                : 0;
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
  const char* function = __func__;
  current = {device, device_id, nullptr};
  return guard([&] {
    const Runtime* runtime = nullptr;
    if (infiniStatus_t status = find_device(function, device, device_id, runtime)) return status;
    const infiniStatus_t status = answer(function, runtime->select(device_id));
    if (status == INFINI_STATUS_SUCCESS) current.runtime = runtime;
    return status;
  });
}

infiniStatus_t infinirtGetDevice(infiniDevice_t* device_ptr, int* device_id_ptr) {
  if (!device_ptr && !device_id_ptr) return null_pointer(__func__, "device_ptr and device_id_ptr");
  if (device_ptr) *device_ptr = current.device;
  if (device_id_ptr) *device_id_ptr = current.id;
  return INFINI_STATUS_SUCCESS;
}

infiniStatus_t infinirtDeviceSynchronize() {
  return on_device(__func__, [](const Runtime& runtime) { return runtime.synchronize(); });
}

infiniStatus_t infinirtStreamCreate(infinirtStream_t* stream_ptr) {
  return on_device(__func__, [&](const Runtime& runtime) {
    return make_into("stream_ptr", stream_ptr, runtime.create_stream);
  });
}

infiniStatus_t infinirtStreamDestroy(infinirtStream_t stream) {
  return on_device(__func__,
                   [&](const Runtime& runtime) { return runtime.destroy_stream(stream); });
}

infiniStatus_t infinirtStreamSynchronize(infinirtStream_t stream) {
  return on_device(__func__,
                   [&](const Runtime& runtime) { return runtime.synchronize_stream(stream); });
}

infiniStatus_t infinirtStreamWaitEvent(infinirtStream_t stream, infinirtEvent_t event) {
  return on_device(__func__, [&](const Runtime& runtime) {
    return event ? runtime.wait_event(stream, event) : null("event");
  });
}

infiniStatus_t infinirtEventCreate(infinirtEvent_t* event_ptr) {
  return create_event(__func__, event_ptr, INFINIRT_EVENT_DEFAULT);
}

infiniStatus_t infinirtEventCreateWithFlags(infinirtEvent_t* event_ptr, uint32_t flags) {
  return create_event(__func__, event_ptr, flags);
}

infiniStatus_t infinirtEventRecord(infinirtEvent_t event, infinirtStream_t stream) {
  return on_device(__func__, [&](const Runtime& runtime) {
    return event ? runtime.record_event(event, stream) : null("event");
  });
}

infiniStatus_t infinirtEventQuery(infinirtEvent_t event, infinirtEventStatus_t* status_ptr) {
  return on_device(__func__, [&](const Runtime& runtime) -> Status {
    if (!event || !status_ptr) return null(event ? "status_ptr" : "event");
    bool complete = false;
    Status status = runtime.query_event(event, complete);
    if (status.ok()) *status_ptr = complete ? INFINIRT_EVENT_COMPLETE : INFINIRT_EVENT_NOT_READY;
    return status;
  });
}

infiniStatus_t infinirtEventSynchronize(infinirtEvent_t event) {
  return on_device(__func__, [&](const Runtime& runtime) {
    return event ? runtime.synchronize_event(event) : null("event");
  });
}

infiniStatus_t infinirtEventDestroy(infinirtEvent_t event) {
  return on_device(__func__, [&](const Runtime& runtime) {
    return event ? runtime.destroy_event(event) : Status();
  });
}

infiniStatus_t infinirtEventElapsedTime(float* ms_ptr, infinirtEvent_t start, infinirtEvent_t end) {
  return on_device(__func__, [&](const Runtime& runtime) -> Status {
    if (!ms_ptr) return null("ms_ptr");
    if (!start || !end) return null(start ? "end" : "start");
    float milliseconds = 0;
    Status status = runtime.elapsed_time(start, end, milliseconds);
    if (status.ok()) *ms_ptr = milliseconds;
    return status;
  });
}

infiniStatus_t infinirtMalloc(void** p_ptr, size_t size) {
  return allocate(__func__, p_ptr, size, [&](const Runtime& runtime, void*& memory) {
    return runtime.allocate(size, memory);
  });
}

infiniStatus_t infinirtMallocHost(void** p_ptr, size_t size) {
  return allocate(__func__, p_ptr, size, [&](const Runtime& runtime, void*& memory) {
    return runtime.allocate_host(size, memory);
  });
}

infiniStatus_t infinirtMallocAsync(void** p_ptr, size_t size, infinirtStream_t stream) {
  return allocate(__func__, p_ptr, size, [&](const Runtime& runtime, void*& memory) {
    return runtime.allocate_async(size, stream, memory);
  });
}

infiniStatus_t infinirtFree(void* ptr) {
  return on_device(__func__,
                   [&](const Runtime& runtime) { return ptr ? runtime.release(ptr) : Status(); });
}

infiniStatus_t infinirtFreeHost(void* ptr) {
  return on_device(
      __func__, [&](const Runtime& runtime) { return ptr ? runtime.release_host(ptr) : Status(); });
}

infiniStatus_t infinirtFreeAsync(void* ptr, infinirtStream_t stream) {
  return on_device(__func__, [&](const Runtime& runtime) {
    return ptr ? runtime.release_async(ptr, stream) : Status();
  });
}

infiniStatus_t infinirtMemcpy(void* dst, const void* src, size_t size, infinirtMemcpyKind_t) {
  return on_device(__func__, [&](const Runtime& runtime) -> Status {
    if (size == 0) return {};
    if (Status status = check_copy(dst, src); !status.ok()) return status;
    return runtime.copy(dst, src, size);
  });
}

infiniStatus_t infinirtMemcpyAsync(void* dst, const void* src, size_t size, infinirtMemcpyKind_t,
                                   infinirtStream_t stream) {
  return on_device(__func__, [&](const Runtime& runtime) -> Status {
    if (size == 0) return {};
    if (Status status = check_copy(dst, src); !status.ok()) return status;
    return runtime.copy_async(dst, src, size, stream);
  });
}

infiniStatus_t infinirtMemset(void* ptr, int value, size_t count) {
  return on_device(__func__, [&](const Runtime& runtime) -> Status {
    if (count == 0) return {};
    return ptr ? runtime.fill(ptr, value, count) : null("ptr");
  });
}

infiniStatus_t infinirtMemsetAsync(void* ptr, int value, size_t count, infinirtStream_t stream) {
  return on_device(__func__, [&](const Runtime& runtime) -> Status {
    if (count == 0) return {};
    return ptr ? runtime.fill_async(ptr, value, count, stream) : null("ptr");
  });
}

infiniStatus_t infinirtGetMemInfo(infiniDevice_t device, int device_id, size_t* free_mem,
                                  size_t* total_mem) {
  const char* function = __func__;
  if (!free_mem || !total_mem) return null_pointer(function, free_mem ? "total_mem" : "free_mem");
  return guard([&] {
    const Runtime* runtime = nullptr;
    if (infiniStatus_t status = find_device(function, device, device_id, runtime)) return status;
    return answer(function, runtime->memory_info(device_id, *free_mem, *total_mem));
  });
}

infiniStatus_t infinirtGetDeviceResourceSnapshot(infiniDevice_t device, int device_id,
                                                 infinirtDeviceResourceSnapshot_t* snapshot) {
  const char* function = __func__;
  if (!snapshot) return null_pointer(function, "snapshot");
  return guard([&] {
    const Runtime* runtime = nullptr;
    if (infiniStatus_t status = find_device(function, device, device_id, runtime)) return status;
    infinirtDeviceResourceSnapshot_t known = {};
    known.device_type = device;
    known.device_id = device_id;
    known.valid_fields = INFINIRT_RESOURCE_FIELD_MEMORY_CAPACITY;
    const Status status = runtime->memory_info(device_id, known.free_bytes, known.total_bytes);
    known.used_bytes = known.total_bytes - known.free_bytes;
    if (status.ok()) *snapshot = known;
    return answer(function, status);
  });
}

infiniStatus_t infinirtStreamBeginCapture(infinirtStream_t stream,
                                          infinirtStreamCaptureMode_t mode) {
  return on_device_with_graphs(
      __func__, [&](const Runtime& runtime) { return runtime.begin_capture(stream, mode); });
}

infiniStatus_t infinirtStreamEndCapture(infinirtStream_t stream, infinirtGraph_t* graph_ptr) {
  return on_device_with_graphs(__func__, [&](const Runtime& runtime) {
    return make_into("graph_ptr", graph_ptr,
                     [&](void*& graph) { return runtime.end_capture(stream, graph); });
  });
}

infiniStatus_t infinirtGraphDestroy(infinirtGraph_t graph) {
  return on_device_with_graphs(__func__, [&](const Runtime& runtime) {
    return graph ? runtime.destroy_graph(graph) : Status();
  });
}

// CUDA names neither a node nor a text of its own any more: the log is the sentence.
infiniStatus_t infinirtGraphInstantiate(infinirtGraphExec_t* graph_exec_ptr, infinirtGraph_t graph,
                                        infinirtGraphNode_t* node_ptr, char* log_buffer,
                                        size_t buffer_size) {
  const infiniStatus_t status = on_device_with_graphs(__func__, [&](const Runtime& runtime) {
    if (node_ptr) *node_ptr = nullptr;
    if (!graph) return null("graph");
    return make_into("graph_exec_ptr", graph_exec_ptr,
                     [&](void*& executable) { return runtime.instantiate(graph, executable); });
  });
  if (log_buffer && buffer_size > 0) {
    std::snprintf(log_buffer, buffer_size, "%s", status ? last_error : "");
  }
  return status;
}

infiniStatus_t infinirtGraphExecDestroy(infinirtGraphExec_t graph_exec) {
  return on_device_with_graphs(__func__, [&](const Runtime& runtime) {
    return graph_exec ? runtime.destroy_executable(graph_exec) : Status();
  });
}

infiniStatus_t infinirtGraphLuanch(infinirtGraphExec_t graph_exec, infinirtStream_t stream) {
  return on_device_with_graphs(__func__, [&](const Runtime& runtime) {
    return graph_exec ? runtime.launch(graph_exec, stream) : null("graph_exec");
  });
}

}  // extern "C"
