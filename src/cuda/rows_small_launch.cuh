// What the kernels of rows_small.cu get, and how they read it.
#pragma once

#include <cmath>
#include <type_traits>

#include "cuda/rows_scalars.cuh"

namespace normgrad::cuda {

struct SmallOutput {
  void* data = nullptr;  // null: not wanted
  int64_t stride = 1;
  DType dtype = DType::kF32;
  bool in_units = false;  // as x: of its type, aligned; nothing is added to
  bool accumulate = false;

  __device__ void store(int column, double value) const {
    if (data != nullptr) store_value({true, dtype, stride, accumulate}, data, column, value);
  }
};

// What every thread reads, side by side and in this order: parameters come from memory, too. No
// number is there to divide by: a division takes 50 ns.
struct SmallLaunch {
  const void *x, *dy;
  int column_blocks;     // the first ones of the grid
  int part_bits, tiles;  // SmallDeal's parts are a power of 2
  struct {
    int rows, cols;
    RowStatistics statistics;
    double eps;
  } problem;  // with the names of RowsLaunch
  int strides[kRowTensors];
  bool has_scales;  // r, or made from x
  const void *mean, *spread;
  bool mean_is_float, spread_is_float;  // or of the data's type
  RowsGeometry geometry;
  int warp_share;     // of a crew: in 256ths, rounded up
  int row_lane_bits;  // of a team's lanes, a power of 2
  const void* gamma;  // null: ones
  double per_col;
  void* dx;          // null: not wanted
  bool is_only_row;  // then the threads that have it make dgamma and dbeta, too
  SmallOutput outputs[2];
  double* mean_squares;  // of the rows, where no statistics are given,
  float* scales;         // and r
};

// NaN where float32 does not serve.
__device__ inline float scale_from(double variance) {
  const auto r = static_cast<float>(quick_rsqrt(variance));
  return r > 0 ? r : NAN;
}

// Rows of x and dy in units of 16 bytes, and their statistics. kPlain: units are aligned, offsets
// fit 32 bits and statistics are float32 or of the data's type.
template <class T, bool kPlain>
struct SmallData {
  static constexpr int kE = kUnit<T>;

  const SmallLaunch& launch;
  const RowsLaunch& rest;

  using Offset = std::conditional_t<kPlain, int, int64_t>;
  __device__ Offset offset(RowTensor tensor, int row) const {
    if constexpr (kPlain) return row * launch.strides[tensor];
    return row_offset<false>(rest, tensor, row);
  }
  // Zeros behind `end`; kPlain: the row's last unit instead of those behind it.
  __device__ uint4 load(RowTensor tensor, int row, int column, int end) const {
    const void* all = tensor == kRowX ? launch.x : launch.dy;
    const T* data = static_cast<const T*>(all) + offset(tensor, row);
    if constexpr (kPlain) {
      return *reinterpret_cast<const uint4*>(data + min(column, launch.problem.cols - kE));
    } else {
      T values[kE];
#pragma unroll
      for (int e = 0; e < kE; ++e) values[e] = column + e < end ? data[column + e] : T(0.0f);
      return reinterpret_cast<const uint4&>(values);
    }
  }
  // The statistics of a row, where there are any: on their way, and there.
  __device__ StatsBits ask(int row) const {
    if constexpr (!kPlain) return stats_bits<false>(rest, row);
    StatsBits bits;
    if (launch.mean != nullptr) {
      bits.mean = Halves(mean_type(), launch.mean, row * launch.strides[kRowMean]);
    }
    bits.spread = Halves(spread_type(), launch.spread, row * launch.strides[kRowSpread]);
    return bits;
  }
  __device__ RowStats values(const StatsBits& bits) const {
    if constexpr (!kPlain) return bits.values(rest.problem);
    return {bits.mean.value(mean_type()), bits.spread.value(spread_type())};
  }

 private:
  __device__ DType mean_type() const { return launch.mean_is_float ? DType::kF32 : dtype_of<T>(); }
  __device__ DType spread_type() const {
    return launch.spread_is_float ? DType::kF32 : dtype_of<T>();
  }
};

}  // namespace normgrad::cuda
