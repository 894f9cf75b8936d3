#include "cuda/launch.cuh"
#include "cuda/rows_scalars.cuh"

namespace normgrad::cuda {
namespace {

__global__ void offsets_kernel(const __grid_constant__ RowsProblem problem, int64_t* offsets) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= problem.rows) return;
  const RowsProblem::LeadStrides* strides[] = {
      &problem.x, &problem.dy, &problem.dx, &problem.mean.lead, &problem.spread.lead, &problem.dh};
  for (int tensor = 0; tensor < kRowTensors; ++tensor) {
    int64_t offset = 0, rest = row;
    for (int axis = problem.lead_rank - 1; axis >= 0; --axis) {
      const int64_t quotient = rest / problem.lead_extent[axis];
      offset += (rest - quotient * problem.lead_extent[axis]) * (*strides[tensor])[axis];
      rest = quotient;
    }
    offsets[row * kRowTensors + tensor] = offset;
  }
}

}  // namespace

Status locate_rows(RowsLaunch& launch, int64_t* offsets, void* stream) {
  const RowsProblem& problem = launch.problem;
  const RowsProblem::LeadStrides* strides[] = {
      &problem.x, &problem.dy, &problem.dx, &problem.mean.lead, &problem.spread.lead, &problem.dh};
  for (int i = 0; i < kRowTensors; ++i) launch.strides[i] = (*strides[i])[0];
  if (problem.lead_rank <= 1 || problem.rows == 0) return {};
  launch.offsets = offsets;
  const Launch shape = {static_cast<unsigned>((problem.rows + 255) / 256), 256};
  return launch_kernel(offsets_kernel, shape, stream, problem, offsets);
}

}  // namespace normgrad::cuda
