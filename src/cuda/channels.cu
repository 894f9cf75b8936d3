// Which kernel a BatchNorm takes: a function of shape, dtype and the axis that is contiguous.
#include <cuda_runtime_api.h>

#include <string>

#include "cuda/channel.cuh"
#include "cuda/channels.hpp"

namespace normgrad::cuda {

Status check_fused(const char* kernel, const ChannelsProblem& problem) {
  if (problem.step == ChannelsStep::kAll && problem.has_dx && needs_sums(problem) &&
      problem.channels > 0) {
    return {};
  }
  return {Code::kUnsupportedDevice,
          std::string(kernel) + ": expected dx and sums to make it of, in one step"};
}

int multiprocessors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

Status choose_channels(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel) {
  for (const auto choose : {&choose_channels_cluster, &choose_channels_team}) {
    if (choose(problem, kernel).ok()) return {};
  }
  return choose_channels_two_pass(problem, kernel);
}

}  // namespace normgrad::cuda
