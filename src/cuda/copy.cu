// Copies of strided tensors into the workspace and out of it, with a change of type where asked.
//
// One element per thread, in row-major order. Such layouts are rare and these copies not tuned: a
// transposed side costs a sector of 32 bytes per element.
#include <algorithm>

#include "cuda/kernels.hpp"
#include "cuda/launch.cuh"
#include "cuda/types.cuh"

namespace normgrad::cuda {
namespace {

constexpr int kThreads = 256;

template <class To, class From>
__device__ To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;  // numbers move as bits of their size: nobody looks at the value
  } else {
    return narrow<To>(widen(value));
  }
}

template <class From, class To>
__global__ void copy_kernel(const __grid_constant__ CopyProblem problem, int64_t elements,
                            const From* from, To* to) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements;
       i += step) {
    int64_t rest = i, source = 0, target = 0;
    for (int axis = problem.rank - 1; axis >= 0; --axis) {
      const int64_t quotient = rest / problem.extents[axis];
      const int64_t index = rest - quotient * problem.extents[axis];
      rest = quotient;
      source += index * problem.from[axis];
      target += index * problem.to[axis];
    }
    To element = convert<To>(from[source]);
    if constexpr (std::is_same_v<To, float>) {
      if (problem.offset != 0) element += problem.offset;
    }
    to[target] = element;
  }
}

}  // namespace

Status copy(const CopyProblem& problem, const void* from, void* to, void* stream) {
  int64_t elements = 1;
  for (int axis = 0; axis < problem.rank; ++axis) elements *= problem.extents[axis];
  if (elements == 0) return {};
  const int64_t blocks = std::min<int64_t>((elements + kThreads - 1) / kThreads, 1 << 20);
  const Launch launch = {static_cast<unsigned>(blocks), kThreads};
  const auto run = [&](auto source, auto target) {
    using From = decltype(source);
    using To = decltype(target);
    return launch_kernel(copy_kernel<From, To>, launch, stream, problem, elements,
                         static_cast<const From*>(from), static_cast<To*>(to));
  };
  if (size_of(problem.from_dtype) == 8) return run(uint64_t{}, uint64_t{});
  if (problem.from_dtype == problem.to_dtype) {
    return with_type(problem.from_dtype, [&](auto type) { return run(type, type); });
  }
  if (problem.from_dtype == DType::kF32) {
    return with_type(problem.to_dtype, [&](auto type) { return run(float{}, type); });
  }
  return with_type(problem.from_dtype, [&](auto type) { return run(type, float{}); });
}

}  // namespace normgrad::cuda
