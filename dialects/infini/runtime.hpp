// Runtime: the seam between libinfinirt's C functions and a type of device. Pointers that the
// functions here get are not null, unless they are streams or sizes of 0 go with them; results are
// written on success only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "infinirt.h"
#include "normgrad/status.hpp"

namespace normgrad::infini {

struct Runtime {
  int (*count)();
  // Makes it the calling thread's; `id` is one of the count's, on the CPU any.
  Status (*select)(int id);
  Status (*synchronize)();
  Status (*memory_info)(int id, size_t& free, size_t& total);

  Status (*create_stream)(void*& stream);
  Status (*destroy_stream)(void* stream);
  Status (*synchronize_stream)(void* stream);
  Status (*wait_event)(void* stream, void* event);

  Status (*create_event)(uint32_t flags, void*& event);
  Status (*destroy_event)(void* event);
  Status (*record_event)(void* event, void* stream);
  Status (*query_event)(void* event, bool& complete);
  Status (*synchronize_event)(void* event);
  Status (*elapsed_time)(void* start, void* end, float& milliseconds);

  Status (*allocate)(size_t bytes, void*& memory);
  Status (*allocate_host)(size_t bytes, void*& memory);
  Status (*allocate_async)(size_t bytes, void* stream, void*& memory);
  Status (*release)(void* memory);
  Status (*release_host)(void* memory);
  Status (*release_async)(void* memory, void* stream);
  Status (*copy)(void* to, const void* from, size_t bytes);
  Status (*copy_async)(void* to, const void* from, size_t bytes, void* stream);
  Status (*fill)(void* memory, int byte, size_t bytes);
  Status (*fill_async)(void* memory, int byte, size_t bytes, void* stream);

  // Null where a device has no graphs.
  Status (*begin_capture)(void* stream, infinirtStreamCaptureMode_t mode);
  Status (*end_capture)(void* stream, void*& graph);
  Status (*instantiate)(void* graph, void*& executable);
  Status (*launch)(void* executable, void* stream);
  Status (*destroy_graph)(void* graph);
  Status (*destroy_executable)(void* executable);
};

extern const Runtime kCpuRuntime;
extern const Runtime kNvidiaRuntime;

}  // namespace normgrad::infini
