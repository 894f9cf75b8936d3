// How kernels are launched: on the caller's stream, any failure a status.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/status.cuh"

namespace normgrad::cuda {

struct Launch {
  dim3 grid, block;
  size_t shared = 0;         // bytes of dynamic shared memory
  unsigned cluster = 1;      // blocks
  bool cooperative = false;  // all blocks at once, for a barrier over the grid
  bool dependent = false;    // may start while the kernel before it ends, and waits for it itself
};

// More dynamic shared memory than 48 KiB has to be asked for. Always as much as there is: another
// thread may be about to launch the same kernel with more than this call needs.
inline cudaError_t allow_shared(const void* function, size_t bytes) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, function);
  if (error != cudaSuccess) return error;
  if (static_cast<size_t>(attributes.maxDynamicSharedSizeBytes) >= bytes) return cudaSuccess;
  int device = 0, most = 0;
  error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              most - static_cast<int>(attributes.sharedSizeBytes));
}

// Whether a kernel was compiled for Hopper or newer, which lets kernels overlap.
inline bool is_for_hopper(const void* function) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, function) == cudaSuccess && attributes.ptxVersion >= 90;
}

template <class... Parameters, class... Arguments>
Status launch_kernel(void (*kernel)(Parameters...), const Launch& launch, void* stream,
                     const Arguments&... arguments) {
  const void* function = reinterpret_cast<const void*>(kernel);
  cudaError_t error = launch.shared > 0 ? allow_shared(function, launch.shared) : cudaSuccess;
  if (error == cudaSuccess && launch.cluster > 8) {
    error = cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  if (error != cudaSuccess) return status_of(error, "cudaFuncSetAttribute");
  cudaLaunchAttribute attributes[3];
  unsigned count = 0;
  if (launch.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {launch.cluster, 1, 1};
  }
  if (launch.cooperative) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  }
  if (launch.dependent && is_for_hopper(function)) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config = {launch.grid,   launch.block,
                               launch.shared, static_cast<cudaStream_t>(stream),
                               attributes,    count};
  return status_of(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), "launch");
}

// In a kernel that was launched as dependent: what the kernel before it wrote is there from here
// on.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}
// In the kernel before it: its blocks may come up now.
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

}  // namespace normgrad::cuda
