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

// Lets the kernel have the shared memory and the clusters that a launch may ask for, on the current
// GPU. `overlaps`: whether it was compiled for Hopper or newer, which lets kernels overlap.
cudaError_t prepare(const void* function, bool& overlaps);

template <class... Parameters, class... Arguments>
Status launch_kernel(void (*kernel)(Parameters...), const Launch& launch, void* stream,
                     const Arguments&... arguments) {
  bool overlaps = false;
  const cudaError_t error = prepare(reinterpret_cast<const void*>(kernel), overlaps);
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
  if (launch.dependent && overlaps) {
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
