// NVIDIA's GPUs. Streams are CUDA's own, for operators and the graph engine pass them on.
#include "normgrad/cuda.hpp"

#include "device.hpp"

namespace normgrad::acl {
namespace {

Status memory_info(size_t& free, size_t& total) {
  int id = 0;
  if (Status status = cuda::get_device(id); !status.ok()) return status;
  cuda::DeviceInfo info;
  Status status = cuda::describe(id, info);
  if (status.ok()) {
    free = info.free_bytes;
    total = info.total_bytes;
  }
  return status;
}

}  // namespace

const Device kCuda = {
    .soc_name = "NormGrad-CUDA",
    .count = cuda::device_count,
    .select = cuda::set_device,
    .synchronize = cuda::synchronize,
    .memory_info = memory_info,

    .allocate = cuda::allocate,
    .allocate_host = cuda::allocate_host,
    .release = cuda::release,
    .release_host = cuda::release_host,
    // The kind is not asked: CUDA knows on which side a pointer lies.
    .copy = cuda::copy,
    .copy_async = cuda::copy,
    .fill = cuda::fill,
    .fill_async = cuda::fill,

    .create_stream = cuda::create_stream,
    .destroy_stream = cuda::destroy_stream,
    .synchronize_stream = cuda::synchronize_stream,
    .query_stream = cuda::query_stream,
    .wait_event = cuda::wait_event,

    .create_event = [](void*& event) { return cuda::create_event({}, event); },
    .destroy_event = cuda::destroy_event,
    .record_event = cuda::record_event,
    .query_event = cuda::query_event,
    .synchronize_event = cuda::synchronize_event,
    .elapsed_time = cuda::elapsed_time,
};

}  // namespace normgrad::acl
