#include "cuda/finish.hpp"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"
#include "cuda/types.cuh"

namespace normgrad::cuda {
namespace {

constexpr int kMaxGroups = 16;

// A thread adds every `groups`-th partial sum of a column; then the groups are added in order.
__global__ void finish_kernel(const __grid_constant__ FinishProblem problem) {
  __shared__ double sums[kMaxGroups][33];
  const int groups = blockDim.y, which = blockIdx.y;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  // The first access of a page takes longest.
  const Vector& output = problem.outputs[which];
  if (output.present && threadIdx.y == 0 && column < problem.cols) {
    const int64_t at = column * output.stride * static_cast<int64_t>(size_of(output.dtype));
    prefetch(static_cast<const char*>(problem.data[which]) + at);
  }
  wait_for_previous_kernel();
  double sum = 0;
  if (output.present && column < problem.cols) {
    const float* terms = problem.partials + which * problem.padded + column;
#pragma unroll 8
    for (int part = threadIdx.y; part < problem.parts; part += groups) {
      sum += terms[2 * part * problem.padded];
    }
  }
  if (groups > 1) {
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0) return;
    for (int i = 1; i < groups; ++i) sum += sums[i][threadIdx.x];
  }
  if (output.present && column < problem.cols) {
    store_value(output, problem.data[which], column, sum);
  }
}

}  // namespace

Status finish_columns(const FinishProblem& problem, void* stream) {
  const unsigned groups = problem.parts >= 64 ? kMaxGroups : problem.parts >= 16 ? 4 : 1;
  const unsigned width = groups > 1 ? 32 : 128;
  Launch launch;
  launch.grid = {static_cast<unsigned>((problem.cols + width - 1) / width), 2};
  launch.block = {width, groups};
  launch.dependent = true;
  return launch_kernel(finish_kernel, launch, stream, problem);
}

}  // namespace normgrad::cuda
