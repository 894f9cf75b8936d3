// LayerNorm and RMSNorm forward: a row's threads, and what they make of it.
//
// Sums of x are of float64 throughout: x - mean is to be good to a few roundings of its own size,
// however close to the mean x is. Squares of x - mean are added in float32 within a unit of 16
// bytes, pairwise, and in float64 from there on: the units of a thread in order, lanes by a
// butterfly, warps by another one, the blocks of a cluster in order.
#pragma once

#include "cuda/forward_units.cuh"
#include "cuda/normalizer.cuh"
#include "cuda/ptx.cuh"
#include "ops/backend.hpp"

namespace normgrad::cuda {

inline constexpr int kForwardThreads = 512;  // of a block, at most
inline constexpr int kForwardCluster = 16;   // blocks, at most

struct RowsForwardLaunch {
  RowsForwardProblem problem;
  Buffers buffers;
  int team = 1;     // threads of a block that share a row: a power of two
  int cluster = 1;  // blocks that share it
};

// Where a row lies.
template <class T>
struct RowPlaces {
  const T *x, *residual;
  T *y, *h, *x_hat;
  int64_t mean, spread;

  // kPlain: there is one leading axis at most.
  template <bool kPlain>
  __device__ static RowPlaces of(const RowsForwardLaunch& launch, int64_t row) {
    const RowsForwardProblem& p = launch.problem;
    const RowsShape::LeadStrides* strides[] = {&p.x,     &p.residual,  &p.y,          &p.h,
                                               &p.x_hat, &p.mean.lead, &p.spread.lead};
    int64_t offsets[7] = {};
    if (kPlain || p.lead_rank <= 1) {
#pragma unroll
      for (int i = 0; i < 7; ++i) offsets[i] = row * (*strides[i])[0];
    } else {
#pragma unroll 1
      for (int axis = p.lead_rank - 1; axis >= 0; --axis) {
        const int64_t extent = p.lead_extent[axis];
        const int64_t quotient =  // 32 bits divide in a fifth of the time
            p.rows >> 32 == 0 ? static_cast<uint32_t>(row) / static_cast<uint32_t>(extent)
                              : row / extent;
        const int64_t index = row - quotient * extent;
#pragma unroll
        for (int i = 0; i < 7; ++i) offsets[i] += index * (*strides[i])[axis];
        row = quotient;
      }
    }
    const Buffers& b = launch.buffers;
    return {static_cast<const T*>(b.x) + offsets[0],
            static_cast<const T*>(b.residual) + offsets[1],
            static_cast<T*>(b.y) + offsets[2],
            static_cast<T*>(b.h) + offsets[3],
            static_cast<T*>(b.x_hat) + offsets[4],
            offsets[5],
            offsets[6]};
  }
};

// h = x + residual, rounded.
template <class T>
__device__ uint4 add_units(const uint4& x, const uint4& residual) {
  float x_values[kUnit<T>], values[kUnit<T>];
  unpack<T>(x, x_values);
  unpack<T>(residual, values);
#pragma unroll
  for (int e = 0; e < kUnit<T>; ++e) values[e] += x_values[e];
  return pack<T>(values);
}

// gamma and beta of a unit's columns; ones and zeros where there are none.
template <class T, bool kPlain>
__device__ void load_scales(const RowsForwardLaunch& launch, int64_t column, int count,
                            float (&gamma)[kUnit<T>], float (&beta)[kUnit<T>]) {
  const RowsForwardProblem& problem = launch.problem;
#pragma unroll
  for (int e = 0; e < kUnit<T>; ++e) gamma[e] = 1, beta[e] = 0;
  if (problem.gamma.present) {
    load_parameters<T, kPlain>(problem.gamma, launch.buffers.gamma, column, count, gamma);
  }
  if (problem.beta.present) {
    load_parameters<T, kPlain>(problem.beta, launch.buffers.beta, column, count, beta);
  }
}

struct TeamMemory {
  double warps[2][kForwardThreads / 32];
  double blocks[2][kForwardCluster];
  Barrier barriers[2];
};

// The threads of a row. All threads of a block add up together, also for rows that are not there.
struct Team {
  int size, cluster;
  int sums = 0;

  __device__ Team(const RowsForwardLaunch& launch) : size(launch.team), cluster(launch.cluster) {
#if NORMGRAD_HOPPER
    if (cluster == 1) return;
    if (threadIdx.x == 0) {
      TeamMemory& memory = in_shared<TeamMemory>();
      for (Barrier& barrier : memory.barriers) init_barrier(&barrier, 1);
      fence_barrier_init();
    }
    sync_cluster();
#endif
  }

  // The row's place in the block, and the thread's in the row.
  __device__ int row() const { return static_cast<int>(threadIdx.x) / size; }
  __device__ int threads() const { return size * cluster; }
  __device__ int thread() const {
    const int in_block = static_cast<int>(threadIdx.x) % size;
#if NORMGRAD_HOPPER
    if (cluster > 1) return static_cast<int>(cluster_rank()) * size + in_block;
#endif
    return in_block;
  }

  // The same bits on all threads. Two sums take turns in memory: who is a sum ahead waits for the
  // others before it writes where they may still read.
  __device__ double sum(double value) {
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) {
      if (mask < size) value += __shfl_xor_sync(~0u, value, mask);
    }
    if (size <= 32) return value;
    TeamMemory& memory = in_shared<TeamMemory>();
    const int turn = sums % 2, warps = size / 32;
    if (threadIdx.x % 32 == 0) memory.warps[turn][threadIdx.x / 32] = value;
    __syncthreads();
    value = memory.warps[turn][threadIdx.x % warps];
#pragma unroll
    for (int mask = 1; mask < kForwardThreads / 32; mask *= 2) {
      if (mask < warps) value += __shfl_xor_sync(~0u, value, mask);
    }
#if NORMGRAD_HOPPER
    if (cluster > 1) value = sum_of_cluster(value, turn);
#endif
    ++sums;
    return value;
  }

 private:
#if NORMGRAD_HOPPER
  __device__ double sum_of_cluster(double value, int turn) const {
    TeamMemory& memory = in_shared<TeamMemory>();
    Barrier* barrier = &memory.barriers[turn];
    if (threadIdx.x == 0) arrive_expecting(barrier, static_cast<uint32_t>(8 * cluster));
    if (static_cast<int>(threadIdx.x) < cluster) {
      send(remote_address(&memory.blocks[turn][cluster_rank()], threadIdx.x), value,
           remote_address(barrier, threadIdx.x));
    }
    wait(barrier, static_cast<uint32_t>(sums / 2 % 2));
    double total = memory.blocks[turn][0];
    for (int block = 1; block < cluster; ++block) total += memory.blocks[turn][block];
    return total;
  }
#endif
};

// The statistics of a row.
struct RowResult {
  double mean = 0, variance = 0;  // RMSNorm: 0, mean of the squares
  double r = 0;

  __device__ void set_variance(double value, double eps) {
    variance = value;
    r = value + eps == 0 ? 0 : rsqrt(value + eps);
  }
  // Whether float32 serves: squares did not leave its range, nor will products.
  __device__ bool is_served() const { return is_safe(variance) && is_safe(r); }

  __device__ void store(const RowsForwardLaunch& launch, int64_t mean_at, int64_t spread_at) const {
    const RowsForwardProblem& problem = launch.problem;
    if (problem.mean.present) {
      store_value(problem.mean.dtype, launch.buffers.saved_mean, mean_at, mean);
    }
    if (!problem.spread.present) return;
    const double spread = problem.statistics == Statistics::kMeanRstd ? r
                          : problem.statistics == Statistics::kMeanVariance
                              ? variance
                              : sqrt(variance + problem.eps);
    store_value(problem.spread.dtype, launch.buffers.saved_spread, spread_at, spread);
  }
};

// body(column, count, h, its values) for the units of a row that are this thread's, from memory.
template <class T, class Body>
__device__ void for_row(const RowsForwardProblem& problem, const RowPlaces<T>& row,
                        const Team& team, const Body& body) {
  for (int64_t c = int64_t{kUnit<T>} * team.thread(); c < problem.cols;
       c += int64_t{kUnit<T>} * team.threads()) {
    const int count = static_cast<int>(min(problem.cols - c, int64_t{kUnit<T>}));
    uint4 unit = load_unit_at(row.x + c, count);
    if (problem.has_residual) {
      unit = add_units<T>(unit, load_unit_at(row.residual + c, count));
    }
    float values[kUnit<T>];
    unpack<T>(unit, values);
    body(c, count, unit, values);
  }
}

// A whole row in float64, from memory: in three looks, of which the last one writes. For rows that
// do not fit into the registers, and for the few that float32 does not serve. All threads of a
// block come here together and add up; `there`: this one has a row.
template <bool kRms>
inline constexpr int kRowSums = kRms ? 1 : 2;
template <class T, bool kRms>
__device__ __noinline__ void wide_row(const RowsForwardLaunch& launch, int64_t index, bool there,
                                      Team team) {
  constexpr int kE = kUnit<T>;
  const RowsForwardProblem& problem = launch.problem;
  const auto cols = static_cast<double>(problem.cols);
  const auto row = RowPlaces<T>::template of<false>(launch, there ? index : 0);
  RowResult result;
  if (!kRms) {
    double sum = 0;
    if (there) {
      for_row(problem, row, team, [&](int64_t, int count, const uint4&, const float(&h)[kE]) {
#pragma unroll
        for (int e = 0; e < kE; ++e) sum += e < count ? h[e] : 0;
      });
    }
    result.mean = team.sum(sum) / cols;
  }
  double squares = 0;
  if (there) {
    for_row(problem, row, team, [&](int64_t, int count, const uint4&, const float(&h)[kE]) {
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        const double centred = e < count ? h[e] - result.mean : 0;
        squares += centred * centred;
      }
    });
  }
  result.set_variance(team.sum(squares) / cols, problem.eps);
  if (!there) return;
  if (team.thread() == 0) result.store(launch, row.mean, row.spread);
  const bool zero = result.variance + problem.eps == 0;
  for_row(problem, row, team, [&](int64_t c, int count, const uint4& unit, const float(&h)[kE]) {
    float gamma[kE], beta[kE], x_hat[kE], y[kE];
    load_scales<T, false>(launch, c, count, gamma, beta);
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      const double value = zero ? 0 : (h[e] - result.mean) * result.r;
      x_hat[e] = static_cast<float>(value);
      y[e] = static_cast<float>(value * gamma[e] + beta[e]);
    }
    if (problem.has_h) store_unit_at(row.h + c, unit, count);
    if (problem.has_x_hat) store_unit_at(row.x_hat + c, pack<T>(x_hat), count);
    if (problem.has_y) store_unit_at(row.y + c, pack<T>(y), count);
  });
}

}  // namespace normgrad::cuda
