// The part of CUDA's runtime that the library calls: one device, whose memory is the host's.
#include "runtime.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <vector>

using Work = std::function<void()>;
using Clock = std::chrono::steady_clock;

struct CUgraph_st {
  std::vector<Work> works;
};
struct CUgraphExec_st {
  std::vector<Work> works;
};
struct CUstream_st {
  CUgraph_st* captured = nullptr;
};
struct CUevent_st {
  Clock::time_point time;
  bool recorded = false, timing = true;
};

namespace normgrad::emulator {

cudaError_t enqueue(cudaStream_t stream, const Work& work) {
  if (stream != nullptr && stream->captured != nullptr) {
    stream->captured->works.push_back(work);
    return cudaSuccess;
  }
  try {
    work();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "emulator: %s\n", error.what());
    return cudaErrorLaunchFailure;
  }
  return cudaSuccess;
}

}  // namespace normgrad::emulator

using normgrad::emulator::enqueue;

namespace {

cudaError_t new_memory(void** memory, size_t bytes) {
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes > size_t{1} << 36) return cudaErrorMemoryAllocation;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

template <class T, class... Arguments>
cudaError_t make(T*& object, Arguments... arguments) {
  object = new (std::nothrow) T{arguments...};
  return object != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

template <class T>
cudaError_t destroy(T* object) {
  delete object;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int id) { return id == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDevice(int* id) {
  *id = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory"
         : error == cudaErrorLaunchFailure  ? "launch failure"
                                            : "error of the emulator";
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

// An H200's figures where kernels depend on them, but for the compute capability, which may be
// given: 80.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  const char* given = std::getenv("NORMGRAD_EMULATED_CAPABILITY");
  const int capability = given != nullptr ? std::atoi(given) : 90;
  *properties = {};
  std::strcpy(properties->name, "emulator");
  properties->major = capability / 10;
  properties->minor = capability % 10;
  properties->multiProcessorCount = 132;
  properties->l2CacheSize = 50 << 20;
  properties->totalGlobalMem = size_t{1} << 36;
  properties->sharedMemPerBlockOptin = (capability >= 90 ? 227 : 163) * 1024;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int id) {
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, id);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *free_bytes = *total = size_t{1} << 36;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaMalloc(void** memory, size_t bytes) { return new_memory(memory, bytes); }
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return new_memory(memory, bytes); }
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t) {
  return new_memory(memory, bytes);
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaFreeAsync(void* memory, cudaStream_t) { return cudaFree(memory); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return enqueue(stream, [=] { std::memmove(to, from, bytes); });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] { std::memset(memory, byte, bytes); });
}
cudaError_t cudaMemset(void* memory, int byte, size_t bytes) {
  return cudaMemsetAsync(memory, byte, bytes, nullptr);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return make(*stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return destroy(stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return make(*event, Clock::time_point{}, false, (flags & cudaEventDisableTiming) == 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return destroy(event); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return enqueue(stream, [=] {
    event->time = Clock::now();
    event->recorded = true;
  });
}
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (!start->timing || !end->timing || !start->recorded || !end->recorded) {
    return cudaErrorInvalidResourceHandle;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || stream->captured != nullptr) {
    return cudaErrorStreamCaptureUnsupported;
  }
  return make(stream->captured);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (stream == nullptr || stream->captured == nullptr) return cudaErrorIllegalState;
  *graph = stream->captured;
  stream->captured = nullptr;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  return make(*executable, graph->works);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (const Work& work : executable->works) work();
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return destroy(graph); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return destroy(executable); }

}  // extern "C"
