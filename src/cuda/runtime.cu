// normgrad/cuda.hpp, by the CUDA runtime. It is linked statically and finds the driver when the
// first call is made: a machine without one loads the library all the same.
#include "cuda/status.cuh"
#include "normgrad/cuda.hpp"

namespace normgrad::cuda {
namespace {

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

std::string version_of(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

// For the queries that say "not yet" by an error code.
Status complete_of(cudaError_t error, const char* what, bool& complete) {
  complete = error == cudaSuccess;
  if (error != cudaErrorNotReady) return status_of(error, what);
  (void)cudaGetLastError();
  return {};
}

}  // namespace

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

Status set_device(int id) { return status_of(cudaSetDevice(id), "cudaSetDevice"); }
Status get_device(int& id) { return status_of(cudaGetDevice(&id), "cudaGetDevice"); }
Status synchronize() { return status_of(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

Status describe(int id, DeviceInfo& info) {
  cudaDeviceProp properties;
  int driver = 0, runtime = 0, current = 0;
  cudaError_t error = cudaGetDeviceProperties(&properties, id);
  if (error == cudaSuccess) error = cudaDriverGetVersion(&driver);
  if (error == cudaSuccess) error = cudaRuntimeGetVersion(&runtime);
  if (error == cudaSuccess) error = cudaGetDevice(&current);
  // cudaMemGetInfo asks the current one, and selecting a device opens it.
  if (error == cudaSuccess && id != current) error = cudaSetDevice(id);
  if (error != cudaSuccess) return status_of(error, "cudaGetDeviceProperties");
  DeviceInfo found = {properties.name,
                      version_of(driver),
                      version_of(runtime),
                      properties.major * 10 + properties.minor,
                      properties.multiProcessorCount,
                      static_cast<size_t>(properties.l2CacheSize)};
  error = cudaMemGetInfo(&found.free_bytes, &found.total_bytes);
  if (id != current) {
    const cudaError_t restored = cudaSetDevice(current);
    if (error == cudaSuccess) error = restored;
  }
  if (error == cudaSuccess) info = found;
  return status_of(error, "cudaMemGetInfo");
}

Status allocate(size_t bytes, void*& memory) {
  return status_of(cudaMalloc(&memory, bytes), "cudaMalloc");
}
Status allocate(size_t bytes, void* stream, void*& memory) {
  return status_of(cudaMallocAsync(&memory, bytes, stream_of(stream)), "cudaMallocAsync");
}
Status allocate_host(size_t bytes, void*& memory) {
  return status_of(cudaMallocHost(&memory, bytes), "cudaMallocHost");
}
Status release(void* memory) { return status_of(cudaFree(memory), "cudaFree"); }
Status release(void* memory, void* stream) {
  return status_of(cudaFreeAsync(memory, stream_of(stream)), "cudaFreeAsync");
}
Status release_host(void* memory) { return status_of(cudaFreeHost(memory), "cudaFreeHost"); }
Status copy(void* to, const void* from, size_t bytes) {
  return status_of(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
}
Status copy(void* to, const void* from, size_t bytes, void* stream) {
  return status_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)),
                   "cudaMemcpyAsync");
}
Status fill(void* memory, int byte, size_t bytes) {
  return status_of(cudaMemset(memory, byte, bytes), "cudaMemset");
}
Status fill(void* memory, int byte, size_t bytes, void* stream) {
  return status_of(cudaMemsetAsync(memory, byte, bytes, stream_of(stream)), "cudaMemsetAsync");
}

Status create_stream(void*& stream) {
  return status_of(cudaStreamCreate(reinterpret_cast<cudaStream_t*>(&stream)), "cudaStreamCreate");
}
Status destroy_stream(void* stream) {
  return status_of(cudaStreamDestroy(stream_of(stream)), "cudaStreamDestroy");
}
Status synchronize_stream(void* stream) {
  return status_of(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize");
}
Status query_stream(void* stream, bool& complete) {
  return complete_of(cudaStreamQuery(stream_of(stream)), "cudaStreamQuery", complete);
}
Status wait_event(void* stream, void* event) {
  return status_of(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0),
                   "cudaStreamWaitEvent");
}

Status create_event(const EventOptions& options, void*& event) {
  const unsigned flags = (options.timing ? 0 : cudaEventDisableTiming) |
                         (options.blocking ? cudaEventBlockingSync : 0);
  return status_of(cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(&event), flags),
                   "cudaEventCreateWithFlags");
}
Status destroy_event(void* event) {
  return status_of(cudaEventDestroy(event_of(event)), "cudaEventDestroy");
}
Status record_event(void* event, void* stream) {
  return status_of(cudaEventRecord(event_of(event), stream_of(stream)), "cudaEventRecord");
}
Status query_event(void* event, bool& complete) {
  return complete_of(cudaEventQuery(event_of(event)), "cudaEventQuery", complete);
}
Status synchronize_event(void* event) {
  return status_of(cudaEventSynchronize(event_of(event)), "cudaEventSynchronize");
}
Status elapsed_time(void* start, void* end, float& milliseconds) {
  return status_of(cudaEventElapsedTime(&milliseconds, event_of(start), event_of(end)),
                   "cudaEventElapsedTime");
}

Status begin_capture(void* stream, CaptureMode mode) {
  const auto cuda_mode = mode == CaptureMode::kGlobal        ? cudaStreamCaptureModeGlobal
                         : mode == CaptureMode::kThreadLocal ? cudaStreamCaptureModeThreadLocal
                                                             : cudaStreamCaptureModeRelaxed;
  return status_of(cudaStreamBeginCapture(stream_of(stream), cuda_mode), "cudaStreamBeginCapture");
}
Status end_capture(void* stream, void*& graph) {
  return status_of(cudaStreamEndCapture(stream_of(stream), reinterpret_cast<cudaGraph_t*>(&graph)),
                   "cudaStreamEndCapture");
}
Status instantiate(void* graph, void*& executable) {
  return status_of(cudaGraphInstantiate(reinterpret_cast<cudaGraphExec_t*>(&executable),
                                        static_cast<cudaGraph_t>(graph), 0),
                   "cudaGraphInstantiate");
}
Status launch(void* executable, void* stream) {
  return status_of(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable), stream_of(stream)),
                   "cudaGraphLaunch");
}
Status destroy_graph(void* graph) {
  return status_of(cudaGraphDestroy(static_cast<cudaGraph_t>(graph)), "cudaGraphDestroy");
}
Status destroy_executable(void* executable) {
  return status_of(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable)),
                   "cudaGraphExecDestroy");
}

}  // namespace normgrad::cuda
