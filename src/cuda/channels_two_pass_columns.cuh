// The two passes of channels_two_pass.cu along the channels: rows of columns, a thread keeps its
// four.
#pragma once

#include <type_traits>

#include "cuda/channel_sums.cuh"
#include "cuda/channels_two_pass_cut.cuh"
#include "cuda/launch.cuh"

namespace normgrad::cuda::two_pass {

// Four elements of a row.
template <class T>
using Quad = std::conditional_t<sizeof(T) == 2, uint2, uint4>;

template <class T>
__device__ Quad<T> load_quad(const T* from, int count, bool aligned) {
  if (aligned && count == kColumns) return *reinterpret_cast<const Quad<T>*>(from);
  T values[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) values[i] = i < count ? from[i] : T(0.0f);
  return reinterpret_cast<const Quad<T>&>(values);
}
template <class T>
__device__ void unpack_quad(const Quad<T>& quad, float (&values)[kColumns]) {
  const T* elements = reinterpret_cast<const T*>(&quad);
#pragma unroll
  for (int i = 0; i < kColumns; ++i) values[i] = widen(elements[i]);
}
template <class T>
__device__ void store_quad(T* to, const float (&values)[kColumns], int count, bool aligned) {
  T elements[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) elements[i] = narrow<T>(values[i]);
  if (aligned && count == kColumns) {
    *reinterpret_cast<Quad<T>*>(to) = reinterpret_cast<const Quad<T>&>(elements);
    return;
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    if (i < count) to[i] = elements[i];
  }
}

// The rows of a part that a line of threads has.
__device__ inline int rows_of(const Cut& cut, int64_t part, int line, int lines) {
  const int64_t rows = min(cut.part, cut.items - part * cut.part);
  return static_cast<int>((rows - line + lines - 1) / lines);
}

// Rows of channels: block (part, tile of columns); a thread keeps its columns.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    column_sums_kernel(const __grid_constant__ ChannelsProblem problem,
                       const __grid_constant__ Buffers buffers, const __grid_constant__ Cut cut,
                       Aligned aligned, Sums* partial) {
  __shared__ Sums scratch[kThreads];
  const int64_t part = blockIdx.x / cut.tiles, tile = blockIdx.x - part * cut.tiles;
  const int lane = threadIdx.x % cut.width, line = threadIdx.x / cut.width;
  const int lines = kThreads / cut.width;
  const int64_t c = (tile * cut.width + lane) * kColumns;
  const int columns = static_cast<int>(max(0L, min(int64_t{kColumns}, problem.channels - c)));
  Centring centring[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    if (i < columns) centring[i] = centring_of(problem, load_given(problem, buffers, c + i));
  }
  Sums sums[kColumns];
  const int64_t row = part * cut.part + line;
  const int64_t sample = row / cut.inner;
  int64_t position = row - sample * cut.inner;
  Row<const char> x(static_cast<const T*>(buffers.x), problem.x, c, sample, position);
  Row<const char> dy(static_cast<const T*>(buffers.dy), problem.dy, c, sample, position);
  const int rows = columns > 0 ? rows_of(cut, part, line, lines) : 0;
  for (int first = 0; first < rows; first += 8) {
    float dy_sums[kColumns] = {}, dy_t_sums[kColumns] = {};
#pragma unroll 1
    for (int group = first; group < first + 8; group += kBatch) {
      Quad<T> x_quads[kBatch], dy_quads[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        // A row that is not there has dy = 0, and x = 0, which is as good as any.
        const int count = group + i < rows ? columns : 0;
        x_quads[i] = load_quad(reinterpret_cast<const T*>(x.at), count, aligned.x);
        dy_quads[i] = load_quad(reinterpret_cast<const T*>(dy.at), count, aligned.dy);
        position += cut.positions;
        const bool wraps = position >= cut.inner;
        if (wraps) position -= cut.inner;
        x.advance(cut.x, wraps);
        dy.advance(cut.dy, wraps);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        float x_values[kColumns], dy_values[kColumns];
        unpack_quad<T>(x_quads[i], x_values);
        unpack_quad<T>(dy_quads[i], dy_values);
#pragma unroll
        for (int k = 0; k < kColumns; ++k) {
          dy_sums[k] += dy_values[k];
          dy_t_sums[k] = fmaf(dy_values[k], centring[k](x_values[k]), dy_t_sums[k]);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kColumns; ++k) sums[k].add({dy_sums[k], dy_t_sums[k]});
  }
#pragma unroll
  for (int k = 0; k < kColumns; ++k) {
    scratch[threadIdx.x] = sums[k];
    __syncthreads();
    if (line == 0 && k < columns) {
      Sums total = sums[k];
      for (int other = 1; other < lines; ++other) total.add(scratch[other * cut.width + lane]);
      partial[part * problem.channels + c + k] = total;
    }
    __syncthreads();
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    column_dx_kernel(const __grid_constant__ ChannelsProblem problem,
                     const __grid_constant__ Buffers buffers, const __grid_constant__ Cut cut,
                     Aligned aligned, const Channel* channels) {
  const int64_t block = gridDim.x - 1 - blockIdx.x;
  const int64_t part = block / cut.tiles, tile = block - part * cut.tiles;
  const int lane = threadIdx.x % cut.width, line = threadIdx.x / cut.width;
  const int lines = kThreads / cut.width;
  const int64_t c = (tile * cut.width + lane) * kColumns;
  const int columns = static_cast<int>(max(0L, min(int64_t{kColumns}, problem.channels - c)));
  if (columns == 0) return;
  const int64_t row = part * cut.part + line;
  const int64_t sample = row / cut.inner;
  int64_t position = row - sample * cut.inner;
  Row<const char> x(static_cast<const T*>(buffers.x), problem.x, c, sample, position);
  Row<const char> dy(static_cast<const T*>(buffers.dy), problem.dy, c, sample, position);
  Row<char> dx(static_cast<T*>(buffers.dx), problem.dx, c, sample, position);
  const int rows = rows_of(cut, part, line, lines);
  wait_for_previous_kernel();
  // The scalars stay in registers but for those of float64, which the compiler leaves in memory.
  bool wide = false;
  DxScalars scalars[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const Channel& channel = channels[min(c + i, problem.channels - 1)];
    wide = wide || channel.wide;
    scalars[i] = channel.scalars;
  }
#pragma unroll 1
  for (int first = 0; first < rows; first += kBatch) {
    Quad<T> x_quads[kBatch], dy_quads[kBatch];
    bool wraps[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int count = first + i < rows ? columns : 0;
      x_quads[i] =
          load_quad(reinterpret_cast<const T*>(x.at), problem.frozen ? 0 : count, aligned.x);
      dy_quads[i] = load_quad(reinterpret_cast<const T*>(dy.at), count, aligned.dy);
      position += cut.positions;
      wraps[i] = position >= cut.inner;
      if (wraps[i]) position -= cut.inner;
      x.advance(cut.x, wraps[i]);
      dy.advance(cut.dy, wraps[i]);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float x_values[kColumns], dy_values[kColumns], values[kColumns];
      unpack_quad<T>(x_quads[i], x_values);
      unpack_quad<T>(dy_quads[i], dy_values);
#pragma unroll
      for (int k = 0; k < kColumns; ++k) values[k] = scalars[k].dx(x_values[k], dy_values[k]);
      if (wide) {
#pragma unroll
        for (int k = 0; k < kColumns; ++k) {
          if (k >= columns || !channels[c + k].wide) continue;
          values[k] = static_cast<float>(channels[c + k].wide_dx(x_values[k], dy_values[k]));
        }
      }
      if (first + i < rows) store_quad(reinterpret_cast<T*>(dx.at), values, columns, aligned.dx);
      dx.advance(cut.dx, wraps[i]);
    }
  }
}

}  // namespace normgrad::cuda::two_pass
