// What the kernels of rows_small.cu get, and how they read it.
#pragma once

#include "cuda/rows_scalars.cuh"

namespace normgrad::cuda {

struct SmallOutput {
  void* data = nullptr;  // null: not wanted
  int64_t stride = 1;
  DType dtype = DType::kF32;
};

// What every thread reads, side by side and in this order: parameters come from memory, too.
struct SmallLaunch {
  const void *x, *dy;
  int column_blocks;  // the first blocks of the grid
  int lanes, parts, tiles;
  struct {
    int rows, cols;
    RowStatistics statistics;
    double eps;
  } problem;  // with the names of RowsLaunch
  int strides[kRowTensors];
  RowsGeometry geometry;
  const float *mean, *spread;
  const void* gamma;  // null: ones
  double per_col;
  void* dx;
  double* mean_squares;  // of the rows, where no statistics are given
  SmallOutput outputs[2];
};

// Rows of x and dy in units of 16 bytes, and their statistics. kPlain: units are aligned, strides
// fit 32 bits and statistics are float32.
template <class T, bool kPlain>
struct SmallData {
  static constexpr int kE = kUnit<T>;

  const SmallLaunch& launch;
  const RowsLaunch& rest;

  __device__ int64_t offset(RowTensor tensor, int row) const {
    if constexpr (kPlain) return static_cast<int64_t>(row) * launch.strides[tensor];
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
  // Nobody waits here for one before asking for the other.
  __device__ RowStats statistics(int row) const {
    RowStats stats;
    if (launch.problem.statistics == RowStatistics::kFromX) return stats;
    if constexpr (!kPlain) return load_stats<false>(rest, row);
    if (launch.mean != nullptr) stats.mean = launch.mean[offset(kRowMean, row)];
    stats.spread = launch.spread[offset(kRowSpread, row)];
    return stats;
  }
};

}  // namespace normgrad::cuda
