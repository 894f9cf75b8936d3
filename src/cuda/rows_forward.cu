// LayerNorm and RMSNorm forward, a row in the registers of its threads:
//
//   h = x + residual, x_hat = (h - mean) * r, y = x_hat * gamma + beta
//
// Everything is read once and written once. 1 to 32 lanes of a warp share a row, or a block of up
// to 512 threads, or a cluster of up to 16 blocks, with up to 4 units of 16 bytes per thread; unit
// i is thread i's, and so on around the team. Which ones depends on the number of columns and the
// type alone, and so does the order of the sums. Rows at any address and of any length are put
// together from aligned pieces: the bits are those of aligned rows.
#include <algorithm>
#include <bit>
#include <string>

#include "cuda/device.hpp"
#include "cuda/kernels.hpp"
#include "cuda/launch.cuh"
#include "cuda/rows_forward.cuh"
#include "ops/operands.hpp"

namespace normgrad::cuda {
namespace {

constexpr int kSmallThreads = 128;  // of a block whose teams are parts of a warp

// kPlain: rows are evenly spaced, all start at multiples of 16 bytes and have whole units, and so
// do gamma and beta.
template <class T, bool kRms, int kUnits, bool kPlain>
struct RowsForward {
  static constexpr int kE = kUnit<T>;
  const RowsForwardLaunch& launch;
  const RowsForwardProblem& problem;
  int thread, threads;

  __device__ int64_t column(int i) const { return int64_t{kE} * (i * threads + thread); }
  // Elements of unit i.
  __device__ int count(int i) const {
    const int left = static_cast<int>(problem.cols) - static_cast<int>(column(i));
    return kPlain ? (left > 0 ? kE : 0) : max(0, min(left, kE));
  }

  __device__ void load(const RowPlaces<T>& row, uint4 (&h)[kUnits]) const {
    load(row.x, h);
    if (!problem.has_residual) return;
    uint4 residual[kUnits];
    load(row.residual, residual);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) h[i] = add_units<T>(h[i], residual[i]);
  }

  __device__ void load(const T* row, uint4 (&units)[kUnits]) const {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      units[i] = {};
      if (count(i) == 0) continue;
      const T* from = row + column(i);
      units[i] = kPlain ? *reinterpret_cast<const uint4*>(from) : load_unit_at(from, count(i));
    }
  }

  // Rows that start anywhere are stored by the lanes of a warp together, `active` or not.
  __device__ void store(T* row, const uint4& unit, int i, bool active) const {
    if constexpr (kPlain) {
      if (active) *reinterpret_cast<uint4*>(row + column(i)) = unit;
    } else {
      const int lanes = min(launch.team, 32);
      store_shifted(row, i * threads + thread, unit, static_cast<int>(problem.cols), thread % lanes,
                    lanes, active);
    }
  }

  __device__ void write(const RowPlaces<T>& row, const uint4 (&h)[kUnits], const Centre& centred,
                        float r, bool active) const {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const bool there = active && count(i) > 0;
      float values[kE];
      unpack<T>(h[i], values);
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        values[e] = (kRms ? values[e] : centred(values[e])) * r;
      }
      if (problem.has_h) store(row.h, h[i], i, there);
      if (problem.has_x_hat) store(row.x_hat, pack<T>(values), i, there);
      if (!problem.has_y) continue;
      if (there) {
        float gamma[kE], beta[kE];
        load_scales<T, kPlain>(launch, column(i), count(i), gamma, beta);
#pragma unroll
        for (int e = 0; e < kE; ++e) values[e] = fmaf(values[e], gamma[e], beta[e]);
      }
      store(row.y, pack<T>(values), i, there);
    }
  }
};

template <int kUnits>
constexpr int kMostThreads = kUnits < kForwardUnits ? kSmallThreads : kForwardThreads;

template <class T, bool kRms, int kUnits, bool kPlain>
__global__ void __launch_bounds__(kMostThreads<kUnits>, 1024 / kMostThreads<kUnits>)
    rows_forward_kernel(const __grid_constant__ RowsForwardLaunch launch) {
  const RowsForwardProblem& problem = launch.problem;
  const auto cols = static_cast<double>(problem.cols);
  Team team(launch.team, launch.cluster);
  const RowsForward<T, kRms, kUnits, kPlain> work = {launch, problem, team.thread(),
                                                     team.threads()};
  const int64_t index =
      int64_t{blockIdx.x / launch.cluster} * (blockDim.x / launch.team) + team.index();
  const bool there = index < problem.rows;
  const auto row = RowPlaces<T>::template of<kPlain>(launch, there ? index : 0);
  uint4 h[kUnits] = {};
  if (there) work.load(row, h);
  ForwardStatistics result;
  if (!kRms) {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) sum += sum_of<T>(h[i], work.count(i));
    result.mean = team.sum(sum) / cols;
  }
  double squares = 0;
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    squares += squares_of<T>(h[i], work.count(i), Centre(result.mean));
  }
  result.set_variance(team.sum(squares) / cols, problem.eps);
  const bool wide = there && !result.is_served(), served = there && !wide;
  if (served && work.thread == 0) store_statistics(launch, result, row.mean, row.spread);
  work.write(row, h, Centre(result.mean), static_cast<float>(result.r), served);
  if (__any_sync(~0u, wide)) wide_row<T, kRms>(launch, index, wide, team);
}

// Rows that no cluster has registers for: a block for each.
template <class T, bool kRms>
__global__ void __launch_bounds__(kForwardThreads)
    rows_forward_long_kernel(const __grid_constant__ RowsForwardLaunch launch) {
  wide_row<T, kRms>(launch, blockIdx.x, true, Team(launch.team, launch.cluster));
}

// How a row is dealt out.
struct Deal {
  int units = 1, team = 1, cluster = 1;

  explicit Deal(const RowsForwardProblem& problem) {
    const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
    const int64_t row = divide_up(problem.cols, unit);
    units = row <= 8 ? 1 : row <= 16 ? 2 : kForwardUnits;
    const int64_t threads = power_of_two(divide_up(row, units));
    team = static_cast<int>(std::min<int64_t>(threads, kForwardThreads));
    cluster = static_cast<int>(std::min<int64_t>(threads / team, 2 * kForwardCluster));
  }
  static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
  static int64_t power_of_two(int64_t least) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(least)));
  }
};

bool is_plain(const RowsForwardProblem& problem, const Buffers& buffers) {
  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  const auto aligned = [&](bool present, const void* data, const RowsShape::LeadStrides& strides) {
    return !present || (reinterpret_cast<uintptr_t>(data) % 16 == 0 && strides[0] % unit == 0);
  };
  return problem.lead_rank <= 1 && problem.cols % unit == 0 &&
         aligned(true, buffers.x, problem.x) &&
         aligned(problem.has_residual, buffers.residual, problem.residual) &&
         aligned(problem.has_y, buffers.y, problem.y) &&
         aligned(problem.has_h, buffers.h, problem.h) &&
         aligned(problem.has_x_hat, buffers.x_hat, problem.x_hat) &&
         has_plain_units(problem.gamma, buffers.gamma, problem.dtype) &&
         has_plain_units(problem.beta, buffers.beta, problem.dtype);
}

using RowsForwardKernel = void (*)(RowsForwardLaunch);

template <class T, bool kRms>
RowsForwardKernel find_kernel(int units, bool plain) {
  switch (units) {
    case 1:
      return plain ? rows_forward_kernel<T, kRms, 1, true> : rows_forward_kernel<T, kRms, 1, false>;
    case 2:
      return plain ? rows_forward_kernel<T, kRms, 2, true> : rows_forward_kernel<T, kRms, 2, false>;
    default:
      return plain ? rows_forward_kernel<T, kRms, kForwardUnits, true>
                   : rows_forward_kernel<T, kRms, kForwardUnits, false>;
  }
}

Status launch_rows_forward(const RowsForwardProblem& problem, const Buffers& buffers, void*,
                           void* stream) {
  const Deal deal(problem);
  const bool plain = is_plain(problem, buffers);
  const int threads = deal.team <= 32 ? kSmallThreads : deal.team;
  const int64_t blocks = Deal::divide_up(problem.rows, threads / deal.team) * deal.cluster;
  Launch shape = {static_cast<unsigned>(blocks), static_cast<unsigned>(threads)};
  shape.cluster = static_cast<unsigned>(deal.cluster);
  const RowsForwardLaunch launch = {problem, buffers, deal.team, deal.cluster};
  return with_type(problem.dtype, [&](auto type) {
    using T = decltype(type);
    const auto find = problem.rms ? find_kernel<T, true> : find_kernel<T, false>;
    return launch_kernel(find(deal.units, plain), shape, stream, launch);
  });
}

Status launch_long_rows_forward(const RowsForwardProblem& problem, const Buffers& buffers, void*,
                                void* stream) {
  const Launch shape = {static_cast<unsigned>(problem.rows), kForwardThreads};
  const RowsForwardLaunch launch = {problem, buffers, kForwardThreads};
  return with_type(problem.dtype, [&](auto type) {
    using T = decltype(type);
    return launch_kernel(
        problem.rms ? rows_forward_long_kernel<T, true> : rows_forward_long_kernel<T, false>, shape,
        stream, launch);
  });
}

}  // namespace

Status choose_rows_forward(const RowsForwardProblem& problem, Kernel<RowsForwardProblem>& kernel) {
  const Deal deal(problem);
  if (deal.cluster > kForwardCluster || (deal.cluster > 1 && !check_hopper("").ok())) {
    kernel = {"rows_forward_long", 0, &launch_long_rows_forward};
  } else {
    kernel = {deal.cluster > 1 ? "rows_forward_cluster" : "rows_forward", 0, &launch_rows_forward};
  }
  return {};
}

}  // namespace normgrad::cuda
