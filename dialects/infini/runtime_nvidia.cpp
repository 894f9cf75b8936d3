// NVIDIA GPUs. Streams, events and graphs are CUDA's own, so that programs may mix these calls with
// CUDA's. What is said here is only what InfiniCore promises and CUDA does not.
#include <string>

#include "normgrad/cuda.hpp"
#include "runtime.hpp"

namespace normgrad::infini {
namespace {

Status memory_info(int id, size_t& free, size_t& total) {
  cuda::DeviceInfo info;
  Status status = cuda::describe(id, info);
  if (status.ok()) {
    free = info.free_bytes;
    total = info.total_bytes;
  }
  return status;
}

// The stream that is always there cannot be destroyed; on the CPU it is the only one.
Status destroy_stream(void* stream) { return stream ? cuda::destroy_stream(stream) : Status(); }

Status create_event(uint32_t flags, void*& event) {
  constexpr uint32_t kKnown = INFINIRT_EVENT_DISABLE_TIMING | INFINIRT_EVENT_BLOCKING_SYNC;
  if ((flags & ~kKnown) != 0) {
    return {Code::kBadArgument, "flags: expected 0 to 3, got " + std::to_string(flags)};
  }
  return cuda::create_event({.timing = (flags & INFINIRT_EVENT_DISABLE_TIMING) == 0,
                             .blocking = (flags & INFINIRT_EVENT_BLOCKING_SYNC) != 0},
                            event);
}

// A size of 0 succeeds in all three ways, and gives null.
Status allocate(size_t bytes, void*& memory) {
  return bytes > 0 ? cuda::allocate(bytes, memory) : Status();
}
Status allocate_host(size_t bytes, void*& memory) {
  return bytes > 0 ? cuda::allocate_host(bytes, memory) : Status();
}
Status allocate_async(size_t bytes, void* stream, void*& memory) {
  return bytes > 0 ? cuda::allocate(bytes, stream, memory) : Status();
}

Status begin_capture(void* stream, infinirtStreamCaptureMode_t mode) {
  if (!stream) {
    return {Code::kBadArgument,
            "stream: expected one of infinirtStreamCreate, got null, which cannot be captured"};
  }
  switch (mode) {
    case INFINIRT_STREAM_CAPTURE_MODE_GLOBAL:
      return cuda::begin_capture(stream, cuda::CaptureMode::kGlobal);
    case INFINIRT_STREAM_CAPTURE_MODE_THREAD_LOCAL:
      return cuda::begin_capture(stream, cuda::CaptureMode::kThreadLocal);
    case INFINIRT_STREAM_CAPTURE_MODE_RELAXED:
      return cuda::begin_capture(stream, cuda::CaptureMode::kRelaxed);
  }
  return {Code::kBadArgument, "mode: expected 0 to 2, got " + std::to_string(mode)};
}

}  // namespace

// The kind of a copy is not asked: CUDA knows on which side a pointer lies.
const Runtime kNvidiaRuntime = {
    .count = cuda::device_count,
    .select = cuda::set_device,
    .synchronize = cuda::synchronize,
    .memory_info = memory_info,

    .create_stream = cuda::create_stream,
    .destroy_stream = destroy_stream,
    .synchronize_stream = cuda::synchronize_stream,
    .wait_event = cuda::wait_event,

    .create_event = create_event,
    .destroy_event = cuda::destroy_event,
    .record_event = cuda::record_event,
    .query_event = cuda::query_event,
    .synchronize_event = cuda::synchronize_event,
    .elapsed_time = cuda::elapsed_time,

    .allocate = allocate,
    .allocate_host = allocate_host,
    .allocate_async = allocate_async,
    .release = cuda::release,
    .release_host = cuda::release_host,
    .release_async = cuda::release,
    .copy = cuda::copy,
    .copy_async = cuda::copy,
    .fill = cuda::fill,
    .fill_async = cuda::fill,

    .begin_capture = begin_capture,
    .end_capture = cuda::end_capture,
    .instantiate = cuda::instantiate,
    .launch = cuda::launch,
    .destroy_graph = cuda::destroy_graph,
    .destroy_executable = cuda::destroy_executable,
};

}  // namespace normgrad::infini
