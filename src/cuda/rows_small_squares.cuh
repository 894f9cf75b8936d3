// Means of squares of very few rows, where RMSNorm takes r from x: each block that has columns
// makes them for itself, which takes less time than to wait for a kernel that does.
#pragma once

#include "cuda/rows_small_deal.hpp"
#include "cuda/rows_small_launch.cuh"

namespace normgrad::cuda {

template <class T, bool kPlain>
class FewSquares {
 public:
  static constexpr int kBytes = 2 * SmallDeal::kFewRows * static_cast<int>(sizeof(double));

  __device__ FewSquares(const SmallLaunch& launch, const RowsLaunch& rest, char* memory)
      : launch_(launch),
        data_{launch, rest},
        means_(reinterpret_cast<double*>(memory)),
        sums_(means_ + SmallDeal::kFewRows) {}

  // By all threads of the block.
  __device__ const double* make() const {
    if (__builtin_expect(!add<false>(), 0)) add_exactly(launch_, data_.rest, means_);
    return means_;
  }

 private:
  static constexpr int kE = kUnit<T>;

  // Out of the way of the others, which must stay in registers.
  __device__ __noinline__ static void add_exactly(const SmallLaunch& launch, const RowsLaunch& rest,
                                                  void* memory) {
    FewSquares(launch, rest, static_cast<char*>(memory)).template add<true>();
  }

  // Each row has as many warps as the others, at least one. Whether float32 serves: as for other
  // rows its products are fp32, and so are the sums over a unit.
  template <bool kExact>
  __device__ bool add() const {
    const int thread = static_cast<int>(threadIdx.x), bits = launch_.few_bits;
    const int width = SmallDeal::kThreads >> bits, row = thread / 32 >> (3 - bits);
    double sum = 0;
    if (row < launch_.problem.rows) {
#pragma unroll(kExact ? 1 : 4)
      for (int c = (thread & (width - 1)) * kE; c < launch_.problem.cols; c += width * kE) {
        float x[kE];
        unpack<T>(data_.load(kRowX, row, c, launch_.problem.cols), x);
        if constexpr (kExact) {
#pragma unroll
          for (const float each : x) sum += static_cast<double>(each) * each;
        } else {
          sum += tree_sum(x, x);
        }
      }
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
    if (thread % 32 == 0) sums_[thread / 32] = sum;
    __syncthreads();
    bool served = true;
    if (thread < launch_.problem.rows) {
      double total = 0;
      for (int i = 0; i < 8 >> bits; ++i) total += sums_[(thread << (3 - bits)) + i];
      means_[thread] = total * launch_.per_col;
      served = is_safe(means_[thread]);
    }
    return !__syncthreads_or(!served);
  }

  const SmallLaunch& launch_;
  const SmallData<T, kPlain> data_;
  double* const means_;
  double* const sums_;  // of each warp
};

}  // namespace normgrad::cuda
