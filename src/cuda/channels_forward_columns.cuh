// BatchNorm forward along the channels: rows of columns, of which a thread keeps four.
#pragma once

#include "cuda/channels_forward.cuh"
#include "cuda/channels_two_pass_columns.cuh"

namespace normgrad::cuda {

// A thread's place: its columns, and the first of its rows.
struct ColumnsPlace {
  int64_t part, c;
  int line, lines, columns, rows;

  __device__ ColumnsPlace(const two_pass::Cut& cut, int64_t block, int64_t channels) {
    part = block / cut.tiles;
    const int64_t tile = block - part * cut.tiles;
    line = threadIdx.x / cut.width;
    lines = two_pass::kThreads / cut.width;
    c = (tile * cut.width + threadIdx.x % cut.width) * two_pass::kColumns;
    columns = static_cast<int>(max(int64_t{0}, min(int64_t{two_pass::kColumns}, channels - c)));
    rows = columns > 0 ? two_pass::rows_of(cut, part, line, lines) : 0;
  }
};

// Block (part, tile of columns). The pivots are the part's first row.
template <class T>
__global__ void __launch_bounds__(two_pass::kThreads, 2)
    column_moments_kernel(const __grid_constant__ ChannelsForwardProblem problem,
                          const __grid_constant__ Buffers buffers,
                          const __grid_constant__ two_pass::Cut cut, bool aligned,
                          Moments* moments) {
  using namespace two_pass;
  __shared__ PivotSums scratch[kThreads];
  const ColumnsPlace place(cut, blockIdx.x, problem.channels);
  const int64_t first = place.part * cut.part, row = first + place.line;
  const auto at = [&](int64_t index) {
    const int64_t sample = index / cut.inner, position = index - sample * cut.inner;
    return Row<const char>(static_cast<const T*>(buffers.x), problem.x, place.c, sample, position);
  };
  float firsts[kColumns] = {};
  if (place.columns > 0) {
    unpack_quad<T>(load_quad(reinterpret_cast<const T*>(at(first).at), place.columns, aligned),
                   firsts);
  }
  double pivots[kColumns];
#pragma unroll
  for (int k = 0; k < kColumns; ++k) pivots[k] = pivot_of(firsts[k]);
  PivotSums sums[kColumns];
  Row<const char> x = at(row);
  int64_t position = row % cut.inner;
  for (int group = 0; group < place.rows; group += kBatch) {
    Quad<T> quads[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int count = group + i < place.rows ? place.columns : 0;
      quads[i] = load_quad(reinterpret_cast<const T*>(x.at), count, aligned);
      position += cut.positions;
      const bool wraps = position >= cut.inner;
      if (wraps) position -= cut.inner;
      x.advance(cut.x, wraps);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (group + i >= place.rows) break;
      float values[kColumns];
      unpack_quad<T>(quads[i], values);
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        sums[k].add(values[k] - pivots[k]);
      }
    }
  }
  const auto count = static_cast<double>(min(cut.part, cut.items - first));
#pragma unroll
  for (int k = 0; k < kColumns; ++k) {
    scratch[threadIdx.x] = sums[k];
    __syncthreads();
    if (place.line == 0 && k < place.columns) {
      PivotSums total = sums[k];
      for (int other = 1; other < place.lines; ++other) {
        total.sum += scratch[threadIdx.x + other * cut.width].sum;
        total.squares += scratch[threadIdx.x + other * cut.width].squares;
      }
      moments[place.part * problem.channels + place.c + k] = total.moments(pivots[k], count);
    }
    __syncthreads();
  }
}

// Backwards, to meet what is still in the cache.
template <class T>
__global__ void __launch_bounds__(two_pass::kThreads, 2)
    column_y_kernel(const __grid_constant__ ChannelsForwardProblem problem,
                    const __grid_constant__ Buffers buffers,
                    const __grid_constant__ two_pass::Cut cut, bool x_aligned, bool y_aligned,
                    const ChannelScale* scales) {
  using namespace two_pass;
  const ColumnsPlace place(cut, gridDim.x - 1 - blockIdx.x, problem.channels);
  if (place.columns == 0) return;
  const int64_t row = place.part * cut.part + place.line;
  const int64_t sample = row / cut.inner;
  int64_t position = row - sample * cut.inner;
  Row<const char> x(static_cast<const T*>(buffers.x), problem.x, place.c, sample, position);
  Row<char> y(static_cast<T*>(buffers.y), problem.y, place.c, sample, position);
  wait_for_previous_kernel();
  // Those of float64 stay in memory.
  bool wide = false;
  Centre centred[kColumns];
  float gain[kColumns], beta[kColumns];
#pragma unroll
  for (int k = 0; k < kColumns; ++k) {
    const ChannelScale& scale = scales[min(place.c + k, problem.channels - 1)];
    wide = wide || scale.wide;
    centred[k] = scale.centred;
    gain[k] = scale.gain;
    beta[k] = scale.beta;
  }
#pragma unroll 1
  for (int group = 0; group < place.rows; group += kBatch) {
    Quad<T> quads[kBatch];
    bool wraps[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int count = group + i < place.rows ? place.columns : 0;
      quads[i] = load_quad(reinterpret_cast<const T*>(x.at), count, x_aligned);
      position += cut.positions;
      wraps[i] = position >= cut.inner;
      if (wraps[i]) position -= cut.inner;
      x.advance(cut.x, wraps[i]);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float values[kColumns], results[kColumns];
      unpack_quad<T>(quads[i], values);
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        results[k] = fmaf(centred[k](values[k]), gain[k], beta[k]);
        if (wide && k < place.columns) results[k] = scales[place.c + k].y(values[k]);
      }
      if (group + i < place.rows) {
        store_quad(reinterpret_cast<T*>(y.at), results, place.columns, y_aligned);
      }
      y.advance(cut.dx, wraps[i]);
    }
  }
}

}  // namespace normgrad::cuda
