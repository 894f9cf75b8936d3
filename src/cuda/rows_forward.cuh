// LayerNorm and RMSNorm forward: a row's threads, and what they make of it.
//
// Sums of x are exact within a unit of 16 bytes, or nearly (sum_of), and float64 from there on:
// x - mean is to be good to a few roundings of its own size, however close to the mean x is.
// Squares of x - mean are added in float32 within a unit, pairwise. From there on: the units of a
// thread in order, lanes by a butterfly, warps by another one, the blocks of a cluster in order.
#pragma once

#include "cuda/forward_team.cuh"
#include "cuda/forward_units.cuh"
#include "ops/backend.hpp"

namespace normgrad::cuda {

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

// What is saved of a row.
__device__ inline void store_statistics(const RowsForwardLaunch& launch,
                                        const ForwardStatistics& statistics, int64_t mean_at,
                                        int64_t spread_at) {
  const RowsForwardProblem& problem = launch.problem;
  if (problem.mean.present) {
    store_value(problem.mean.dtype, launch.buffers.saved_mean, mean_at, statistics.mean);
  }
  if (!problem.spread.present) return;
  double spread = statistics.r;
  if (problem.statistics == Statistics::kMeanVariance) spread = statistics.variance;
  if (problem.statistics == Statistics::kXHatStd) spread = sqrt(statistics.variance + problem.eps);
  store_value(problem.spread.dtype, launch.buffers.saved_spread, spread_at, spread);
}

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
template <class T, bool kRms>
__device__ __noinline__ void wide_row(const RowsForwardLaunch& launch, int64_t index, bool there,
                                      Team team) {
  constexpr int kE = kUnit<T>;
  const RowsForwardProblem& problem = launch.problem;
  const auto cols = static_cast<double>(problem.cols);
  const auto row = RowPlaces<T>::template of<false>(launch, there ? index : 0);
  ForwardStatistics result;
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
  if (team.thread() == 0) store_statistics(launch, result, row.mean, row.spread);
  for_row(problem, row, team, [&](int64_t c, int count, const uint4& unit, const float(&h)[kE]) {
    float gamma[kE], beta[kE], x_hat[kE], y[kE];
    load_scales<T, false>(launch, c, count, gamma, beta);
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      const double value = result.x_hat(h[e]);
      x_hat[e] = static_cast<float>(value);
      y[e] = static_cast<float>(value * gamma[e] + beta[e]);
    }
    if (problem.has_h) store_unit_at(row.h + c, unit, count);
    if (problem.has_x_hat) store_unit_at(row.x_hat + c, pack<T>(x_hat), count);
    if (problem.has_y) store_unit_at(row.y + c, pack<T>(y), count);
  });
}

}  // namespace normgrad::cuda
