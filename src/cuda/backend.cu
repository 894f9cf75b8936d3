// The GPU's backends: "cuda:auto", which takes the best kernel for a shape, and one for each kernel
// that can be forced by its name.
#include <cuda_runtime_api.h>

#include "cuda/channels.hpp"
#include "cuda/kernels.hpp"
#include "cuda/status.cuh"
#include "normgrad/cuda.hpp"
#include "ops/operands.hpp"

namespace normgrad::cuda {
namespace {

// The kernels are compiled for Hopper and newer: bulk copies, clusters.
constexpr int kCapability = 90;

Status check_gpu() {
  int id = 0, major = 0, minor = 0;
  cudaError_t error = cudaGetDevice(&id);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id);
  }
  if (error != cudaSuccess) return status_of(error, "cudaDeviceGetAttribute");
  if (major * 10 + minor >= kCapability) return {};
  return {Code::kUnsupportedDevice,
          "device: expected a GPU of compute capability 9.0 or newer, got " +
              std::to_string(major) + "." + std::to_string(minor)};
}

// The kernel that kChoose has for the problem, if the current GPU is one for it.
template <auto kChoose, class Problem>
Status choose(const Problem& problem, Kernel<Problem>& kernel) {
  NORMGRAD_RETURN_IF_ERROR(check_gpu());
  return kChoose(problem, kernel);
}

template <auto kRows = &choose_rows, auto kChannels = &choose_channels>
constexpr Backend make_backend(const char* name) {
  return {name, Device::kCuda, &choose<kRows, RowsProblem>, &choose<kChannels, ChannelsProblem>,
          &copy};
}

}  // namespace

std::span<const Backend> backends() {
  static constexpr Backend kBackends[] = {
      make_backend("cuda:auto"),
      make_backend<&choose_split_rows>("cuda:rows_split"),
      make_backend<&choose_rows, &choose_channels_columns>("cuda:channels_columns"),
      make_backend<&choose_rows, &choose_channels_cluster>("cuda:channels_cluster"),
      make_backend<&choose_rows, &choose_channels_team>("cuda:channels_team"),
      make_backend<&choose_rows, &choose_channels_two_pass>("cuda:channels_two_pass"),
  };
  static const size_t count = device_count() > 0 ? std::size(kBackends) : 0;
  return {kBackends, count};
}

}  // namespace normgrad::cuda
