// CUDA devices, for front ends that bring a runtime of their own: memory, copies, streams, events
// and graphs. Programs that use CUDA themselves do not need this: plans take their pointers and
// streams as they are.
//
// Every call acts on the calling thread's current device. Streams, events and graphs are CUDA's
// own objects; a null stream is the legacy default stream. In a build without CUDA, and on a
// machine without a driver, there are 0 devices and everything else fails with kUnsupportedDevice.
#pragma once

#include <cstddef>
#include <string>

#include "normgrad/export.hpp"
#include "normgrad/status.hpp"

namespace normgrad::cuda {

NORMGRAD_EXPORT int device_count();
NORMGRAD_EXPORT Status set_device(int id);
NORMGRAD_EXPORT Status get_device(int& id);
NORMGRAD_EXPORT Status synchronize();

struct DeviceInfo {
  std::string name;
  std::string driver, runtime;  // versions: "13.0"
  int compute_capability = 0;   // 90
  int multiprocessors = 0;
  size_t l2_bytes = 0;
  size_t free_bytes = 0, total_bytes = 0;
};
NORMGRAD_EXPORT Status describe(int id, DeviceInfo& info);

// Memory. Copies find out by themselves on which side a pointer lies.
NORMGRAD_EXPORT Status allocate(size_t bytes, void*& memory);
NORMGRAD_EXPORT Status allocate(size_t bytes, void* stream, void*& memory);
NORMGRAD_EXPORT Status allocate_host(size_t bytes, void*& memory);
NORMGRAD_EXPORT Status release(void* memory);
NORMGRAD_EXPORT Status release(void* memory, void* stream);
NORMGRAD_EXPORT Status release_host(void* memory);
NORMGRAD_EXPORT Status copy(void* to, const void* from, size_t bytes);
NORMGRAD_EXPORT Status copy(void* to, const void* from, size_t bytes, void* stream);
NORMGRAD_EXPORT Status fill(void* memory, int byte, size_t bytes);
NORMGRAD_EXPORT Status fill(void* memory, int byte, size_t bytes, void* stream);

NORMGRAD_EXPORT Status create_stream(void*& stream);
NORMGRAD_EXPORT Status destroy_stream(void* stream);
NORMGRAD_EXPORT Status synchronize_stream(void* stream);
NORMGRAD_EXPORT Status query_stream(void* stream, bool& complete);
NORMGRAD_EXPORT Status wait_event(void* stream, void* event);

struct EventOptions {
  bool timing = true;
  bool blocking = false;  // waiting threads sleep instead of spinning
};
NORMGRAD_EXPORT Status create_event(const EventOptions& options, void*& event);
NORMGRAD_EXPORT Status destroy_event(void* event);
NORMGRAD_EXPORT Status record_event(void* event, void* stream);
NORMGRAD_EXPORT Status query_event(void* event, bool& complete);
NORMGRAD_EXPORT Status synchronize_event(void* event);
NORMGRAD_EXPORT Status elapsed_time(void* start, void* end, float& milliseconds);

// What else may be called while a stream is captured: CUDA's three modes.
enum class CaptureMode { kGlobal, kThreadLocal, kRelaxed };
NORMGRAD_EXPORT Status begin_capture(void* stream, CaptureMode mode);
NORMGRAD_EXPORT Status end_capture(void* stream, void*& graph);
NORMGRAD_EXPORT Status instantiate(void* graph, void*& executable);
NORMGRAD_EXPORT Status launch(void* executable, void* stream);
NORMGRAD_EXPORT Status destroy_graph(void* graph);
NORMGRAD_EXPORT Status destroy_executable(void* executable);

}  // namespace normgrad::cuda
