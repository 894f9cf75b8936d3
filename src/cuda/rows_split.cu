// LayerNorm and RMSNorm backward for rows too long for a cluster of blocks: in passes over memory.
//
// The sums of segments of rows, then the scalars of rows, then dx and the terms of the columns. x
// and dy are read twice: per element 4 reads and 1 write of the data type, less what the second
// look finds in the cache.
#include <algorithm>
#include <string>

#include "cuda/finish.hpp"
#include "cuda/kernels.hpp"
#include "cuda/launch.cuh"
#include "cuda/rows_scalars.cuh"
#include "ops/operands.hpp"

namespace normgrad::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSegmentUnits = 8 * kThreads;
constexpr int kRowsAtOnce = 32;  // of a thread, in the last kernel

// What the last kernel needs of a row.
struct SplitRow {
  RowScalars scalars;
  bool wide;  // take these instead, in float64
  Normalizer normalizer;
  double c1, c2;
};

struct SplitLaunch {
  RowsLaunch rows;  // the problem, the buffers and where rows lie
  int64_t segments;
  int64_t blocks;     // of columns, in the last kernel
  double2* sums;      // rows x segments
  SplitRow* scalars;  // rows
};

// In the order of the workspace.
struct SplitWorkspace {
  explicit SplitWorkspace(const RowsProblem& problem) {
    const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
    const int64_t units = divide_up(problem.cols, unit);
    segments = divide_up(units, kSegmentUnits);
    blocks = divide_up(units, kThreads);
    padded_cols = divide_up(problem.cols, 32) * 32;
    parts = static_cast<int>(std::max<int64_t>(1, divide_up(problem.rows, kRowsAtOnce)));
    sums = sizeof(double2) * problem.rows * segments;
    scalars = sizeof(SplitRow) * problem.rows;
    offsets = problem.lead_rank > 1 ? sizeof(int64_t) * kRowTensors * problem.rows : 0;
    partials = sizeof(float) * 2 * parts * padded_cols;
  }
  int64_t segments, blocks, padded_cols;
  int parts;
  size_t sums, scalars, offsets, partials;
  size_t bytes() const { return sums + scalars + offsets + partials; }
};

// A unit of a row at any address; zeros from element `count` on.
template <class T>
__device__ void load_unit(const T* from, int64_t count, float (&values)[kUnit<T>]) {
  if (count >= kUnit<T> && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    return unpack<T>(*reinterpret_cast<const uint4*>(from), values);
  }
#pragma unroll
  for (int e = 0; e < kUnit<T>; ++e) values[e] = e < count ? widen(from[e]) : 0;
}

__device__ inline float gamma_at(const RowsLaunch& launch, int64_t column) {
  const Vector& gamma = launch.problem.gamma;
  return gamma.present ? static_cast<float>(load_value(gamma, launch.buffers.gamma, column)) : 1;
}

// Ones where there is no gamma.
template <class T>
__device__ void load_gamma(const RowsLaunch& launch, int64_t column, int64_t count,
                           float (&values)[kUnit<T>]) {
  const Vector& gamma = launch.problem.gamma;
  if (gamma.present && gamma.dtype == dtype_of<T>() && gamma.stride == 1) {
    return load_unit(static_cast<const T*>(launch.buffers.gamma) + column, count, values);
  }
#pragma unroll
  for (int e = 0; e < kUnit<T>; ++e) {
    values[e] = e < count ? gamma_at(launch, column + e) : 0;
  }
}

template <class T>
__device__ const T* row_of(const RowsLaunch& launch, RowTensor tensor, int64_t row) {
  const void* data = tensor == kRowX    ? launch.buffers.x
                     : tensor == kRowDy ? launch.buffers.dy
                                        : launch.buffers.dh;
  return static_cast<const T*>(data) + row_offset<false>(launch, tensor, row);
}

// The same on all threads of a block.
__device__ double2 block_sum(double2 value) {
  __shared__ double2 terms[kThreads];
  __syncthreads();
  terms[threadIdx.x] = value;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      terms[threadIdx.x].x += terms[threadIdx.x + half].x;
      terms[threadIdx.x].y += terms[threadIdx.x + half].y;
    }
  }
  __syncthreads();
  return terms[0];
}

template <class T>
__global__ void sums_kernel(const __grid_constant__ SplitLaunch launch) {
  constexpr int kE = kUnit<T>;
  const RowsProblem& problem = launch.rows.problem;
  const int64_t row = blockIdx.x / launch.segments, segment = blockIdx.x % launch.segments;
  const bool rms = is_rms(problem.statistics);
  const T* x_row = row_of<T>(launch.rows, kRowX, row);
  const T* dy_row = row_of<T>(launch.rows, kRowDy, row);
  const float mean = load_stats<false>(launch.rows, row).mean;
  double2 sums = {0, 0};
#pragma unroll 2
  for (int i = 0; i < kSegmentUnits / kThreads; ++i) {
    const int64_t c = (segment * kSegmentUnits + i * kThreads + threadIdx.x) * kE;
    if (c >= problem.cols) break;
    float x[kE], dy[kE], gamma[kE], first[kE], g_x[kE];
    load_gamma<T>(launch.rows, c, problem.cols - c, gamma);
    load_unit(x_row + c, problem.cols - c, x);
    load_unit(dy_row + c, problem.cols - c, dy);
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      const float g = dy[e] * gamma[e];
      g_x[e] = g * (x[e] - mean);
      first[e] = rms ? x[e] * x[e] : g;
    }
    sums.x += tree_sum(first);
    sums.y += tree_sum(g_x);
  }
  sums = block_sum(sums);
  if (threadIdx.x == 0) launch.sums[blockIdx.x] = sums;
}

// A block per row: the segments in order, and everything again in float64 where that is needed.
template <class T>
__global__ void scalars_kernel(const __grid_constant__ SplitLaunch launch) {
  const RowsProblem& problem = launch.rows.problem;
  const int64_t row = blockIdx.x;
  const bool rms = is_rms(problem.statistics);
  double2 sums = {0, 0};
  for (int64_t i = 0; i < launch.segments; ++i) {
    sums.x += launch.sums[row * launch.segments + i].x;
    sums.y += launch.sums[row * launch.segments + i].y;
  }
  const RowStats stats = load_stats<false>(launch.rows, row);
  const RowScales scales = make_scales(launch.rows, stats);
  SplitRow result = {};
  result.wide = rms ? !make_scalars<true>(launch.rows, scales, sums, result.scalars) &&
                          !is_served<true>(launch.rows, result.scalars, sums)
                    : !make_scalars<false>(launch.rows, scales, sums, result.scalars) &&
                          !is_served<false>(launch.rows, result.scalars, sums);
  if (result.wide) {
    const T* x = row_of<T>(launch.rows, kRowX, row);
    const T* dy = row_of<T>(launch.rows, kRowDy, row);
    double squares = 0;
    for (int64_t c = threadIdx.x; c < problem.cols; c += kThreads) {
      const double value = widen(x[c]);
      squares += value * value;
    }
    squares = block_sum({squares, 0}).x * launch.rows.per_col;
    const Normalizer n = normalizer_of(problem, stats, squares);
    double2 exact = {0, 0};
    for (int64_t c = threadIdx.x; c < problem.cols; c += kThreads) {
      const double g = static_cast<double>(widen(dy[c])) * gamma_at(launch.rows, c);
      exact.x += g;
      exact.y += g * n.x_hat(widen(x[c]));
    }
    exact = block_sum(exact);
    result.normalizer = n;
    result.c1 = rms ? 0 : exact.x * launch.rows.per_col;
    result.c2 = exact.y * launch.rows.per_col;
  }
  if (threadIdx.x == 0) launch.scalars[row] = result;
}

// A thread has a unit of columns in up to kRowsAtOnce rows: block (part, columns).
template <class T>
__global__ void grads_kernel(const __grid_constant__ SplitLaunch launch) {
  constexpr int kE = kUnit<T>;
  const RowsProblem& problem = launch.rows.problem;
  const int64_t part = blockIdx.x / launch.blocks;
  const int64_t c = ((blockIdx.x - part * launch.blocks) * kThreads + threadIdx.x) * kE;
  if (c >= problem.cols) return;
  const int count = static_cast<int>(min(problem.cols - c, static_cast<int64_t>(kE)));
  float gamma[kE];
  double dgamma[kE] = {}, dbeta[kE] = {};
  load_gamma<T>(launch.rows, c, count, gamma);
  const int64_t begin = part * kRowsAtOnce;
  const int64_t end = min(begin + kRowsAtOnce, problem.rows);
  for (int64_t row = begin; row < end; ++row) {
    const SplitRow& known = launch.scalars[row];
    float x[kE], dy[kE], dx[kE], dh[kE] = {};
    load_unit(row_of<T>(launch.rows, kRowX, row) + c, count, x);
    load_unit(row_of<T>(launch.rows, kRowDy, row) + c, count, dy);
    if (problem.has_dh) load_unit(row_of<T>(launch.rows, kRowDh, row) + c, count, dh);
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      if (!known.wide) {
        const RowScalars& s = known.scalars;
        const float centred = x[e] - s.mean;
        dx[e] = s.dx(dy[e], gamma[e], centred);
        if (problem.has_dh) dx[e] += dh[e];
        dgamma[e] += dy[e] * s.scale * centred;
      } else {
        const Normalizer& n = known.normalizer;
        const double x_hat = n.x_hat(x[e]), g = static_cast<double>(dy[e]) * gamma[e];
        const double value = n.r * (g - known.c1 - x_hat * known.c2);
        dx[e] = static_cast<float>(problem.has_dh ? value + dh[e] : value);
        dgamma[e] += dy[e] * x_hat;
      }
      dbeta[e] += dy[e];
    }
    if (!problem.has_dx) continue;
    T* to =
        static_cast<T*>(launch.rows.buffers.dx) + row_offset<false>(launch.rows, kRowDx, row) + c;
    if (count == kE && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
      *reinterpret_cast<uint4*>(to) = pack<T>(dx);
    } else {
      for (int e = 0; e < count; ++e) to[e] = narrow<T>(dx[e]);
    }
  }
  float* partial = launch.rows.partials + 2 * part * launch.rows.padded_cols + c;
#pragma unroll
  for (int e = 0; e < kE; ++e) {  // the rows of partial sums are padded, but not to whole units
    if (e >= count) break;
    partial[e] = static_cast<float>(dgamma[e]);
    partial[launch.rows.padded_cols + e] = static_cast<float>(dbeta[e]);
  }
}

template <class T>
Status launch_split(const SplitLaunch& launch, const SplitWorkspace& layout, void* stream) {
  const RowsProblem& problem = launch.rows.problem;
  const auto rows = static_cast<unsigned>(problem.rows);
  if (rows > 0) {
    const Launch sums = {static_cast<unsigned>(problem.rows * layout.segments), kThreads};
    NORMGRAD_RETURN_IF_ERROR(launch_kernel(sums_kernel<T>, sums, stream, launch));
    NORMGRAD_RETURN_IF_ERROR(
        launch_kernel(scalars_kernel<T>, Launch{rows, kThreads}, stream, launch));
  }
  const Launch grads = {static_cast<unsigned>(layout.parts * layout.blocks), kThreads};
  return launch_kernel(grads_kernel<T>, grads, stream, launch);
}

Status launch_split_rows(const RowsProblem& problem, const Buffers& buffers, void* workspace,
                         void* stream) {
  const SplitWorkspace layout(problem);
  char* memory = static_cast<char*>(workspace);
  SplitLaunch launch = {};
  launch.rows.problem = problem;
  launch.rows.buffers = buffers;
  launch.rows.per_col = 1 / static_cast<double>(problem.cols);
  launch.rows.padded_cols = layout.padded_cols;
  launch.segments = layout.segments;
  launch.blocks = layout.blocks;
  launch.sums = reinterpret_cast<double2*>(memory);
  launch.scalars = reinterpret_cast<SplitRow*>(memory + layout.sums);
  auto* offsets = reinterpret_cast<int64_t*>(memory + layout.sums + layout.scalars);
  launch.rows.partials =
      reinterpret_cast<float*>(memory + layout.sums + layout.scalars + layout.offsets);
  NORMGRAD_RETURN_IF_ERROR(locate_rows(launch.rows, offsets, stream));
  NORMGRAD_RETURN_IF_ERROR(with_type(problem.dtype, [&](auto type) {
    return launch_split<decltype(type)>(launch, layout, stream);
  }));
  return finish_columns({launch.rows.partials,
                         layout.parts,
                         problem.cols,
                         layout.padded_cols,
                         {problem.dgamma, problem.dbeta},
                         {buffers.dgamma, buffers.dbeta}},
                        stream);
}

}  // namespace

Status choose_split_rows(const RowsProblem& problem, Kernel<RowsProblem>& kernel) {
  constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;  // of a grid
  const SplitWorkspace layout(problem);
  if (problem.rows > kMostBlocks / layout.segments) {
    return {Code::kUnsupportedDevice, "rows_split: expected at most " +
                                          std::to_string(kMostBlocks / layout.segments) +
                                          " rows of such a length"};
  }
  kernel = {"rows_split", layout.bytes(), &launch_split_rows};
  return {};
}

}  // namespace normgrad::cuda
