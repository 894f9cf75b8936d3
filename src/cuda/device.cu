#include <cuda_runtime_api.h>

#include <string>

#include "cuda/device.hpp"
#include "cuda/rows_geometry.hpp"
#include "cuda/status.cuh"
#include "ops/operands.hpp"

namespace normgrad::cuda {
namespace {

// 80 for compute capability 8.0.
constexpr int kHopper = 90;

Status get(cudaDeviceAttr which, int& value) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, which, device);
  return status_of(error, "cudaDeviceGetAttribute");
}

Status get_capability(int& value) {
  int major = 0, minor = 0;
  NORMGRAD_RETURN_IF_ERROR(get(cudaDevAttrComputeCapabilityMajor, major));
  NORMGRAD_RETURN_IF_ERROR(get(cudaDevAttrComputeCapabilityMinor, minor));
  value = major * 10 + minor;
  return {};
}

std::string name_of(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

}  // namespace

int multiprocessors() {
  int count = 0;
  return get(cudaDevAttrMultiProcessorCount, count).ok() ? count : 0;
}

Status check_gpu() {
  int capability = 0;
  NORMGRAD_RETURN_IF_ERROR(get_capability(capability));
  if (capability >= NORMGRAD_CUDA_LOWEST) return {};
  return {Code::kUnsupportedDevice, "device: expected a GPU of compute capability " +
                                        name_of(NORMGRAD_CUDA_LOWEST) + " or newer, got " +
                                        name_of(capability)};
}

Status check_hopper(const char* kernel) {
  int capability = 0, shared = 0;
  NORMGRAD_RETURN_IF_ERROR(get_capability(capability));
  NORMGRAD_RETURN_IF_ERROR(get(cudaDevAttrMaxSharedMemoryPerBlockOptin, shared));
  if (capability >= kHopper && shared >= RowsMemory::kMost) return {};
  return {Code::kUnsupportedDevice,
          std::string(kernel) +
              ": expected a GPU with clusters and 227 KiB of shared memory, as compute "
              "capability 9.0 has"};
}

}  // namespace normgrad::cuda
