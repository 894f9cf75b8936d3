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
  int team_log2 = 0;     // threads of a block that share a row
  int cluster_log2 = 0;  // blocks that share it
  double inverse_cols = 1;
};

// Where a row lies: elements from the start of each tensor. kPlain: there is one leading axis at
// most, and a product made where it is used takes fewer registers than one that is kept.
template <bool kPlain>
class RowPlaces {
 public:
  __device__ RowPlaces(const RowsForwardProblem& problem, int64_t row)
      : problem_(problem), row_(row) {
    if constexpr (!kPlain) set_offsets();
  }
  __device__ int64_t x() const { return offset(0, problem_.x); }
  __device__ int64_t residual() const { return offset(1, problem_.residual); }
  __device__ int64_t y() const { return offset(2, problem_.y); }
  __device__ int64_t h() const { return offset(3, problem_.h); }
  __device__ int64_t x_hat() const { return offset(4, problem_.x_hat); }
  __device__ int64_t mean() const { return offset(5, problem_.mean.lead); }
  __device__ int64_t spread() const { return offset(6, problem_.spread.lead); }

 private:
  const RowsForwardProblem& problem_;
  int64_t row_;
  int64_t offsets_[7] = {};

  __device__ int64_t offset(int i, const RowsShape::LeadStrides& strides) const {
    return kPlain ? row_ * strides[0] : offsets_[i];
  }
  __device__ void set_offsets() {
    const RowsForwardProblem& p = problem_;
    const RowsShape::LeadStrides* strides[] = {&p.x,     &p.residual,  &p.y,          &p.h,
                                               &p.x_hat, &p.mean.lead, &p.spread.lead};
    int64_t row = row_;
#pragma unroll 1
    for (int axis = p.lead_rank - 1; axis >= 0; --axis) {
      const int64_t extent = p.lead_extent[axis];
      const int64_t quotient =  // 32 bits divide in a fifth of the time
          axis == 0           ? 0
          : p.rows >> 32 == 0 ? static_cast<uint32_t>(row) / static_cast<uint32_t>(extent)
                              : row / extent;
      const int64_t index = row - quotient * extent;
#pragma unroll
      for (int i = 0; i < 7; ++i) offsets_[i] += index * (*strides[i])[axis];
      row = quotient;
    }
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

// Whether there are gamma and beta of float32 beside rows of a narrower type.
__device__ inline bool has_wide_scales(const RowsForwardProblem& problem) {
  const Vector& vector = problem.gamma.present ? problem.gamma : problem.beta;
  return vector.present && vector.dtype == DType::kF32;
}

// gamma and beta of a unit's columns; ones and zeros where there are none. kPlain: they are Scales.
template <class T, class Scale, bool kPlain>
__device__ void load_scales(const RowsForwardLaunch& launch, int64_t column, int count,
                            float (&gamma)[kUnit<T>], float (&beta)[kUnit<T>]) {
  const RowsForwardProblem& problem = launch.problem;
#pragma unroll
  for (int e = 0; e < kUnit<T>; ++e) gamma[e] = 1, beta[e] = 0;
  const auto load = [&](const Vector& vector, const void* data, float(&values)[kUnit<T>]) {
    if (!vector.present) return;
    if constexpr (kPlain) {
      load_plain(static_cast<const Scale*>(data) + column, values);
    } else {
      load_parameters<T>(vector, data, column, count, values);
    }
  };
  load(problem.gamma, launch.buffers.gamma, gamma);
  load(problem.beta, launch.buffers.beta, beta);
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
template <class T, class Team, class Body>
__device__ void for_row(const RowsForwardLaunch& launch, const RowPlaces<false>& row,
                        const Team& team, const Body& body) {
  const RowsForwardProblem& problem = launch.problem;
  const T* x = static_cast<const T*>(launch.buffers.x) + row.x();
  const T* residual = static_cast<const T*>(launch.buffers.residual) + row.residual();
  for (int64_t c = int64_t{kUnit<T>} * team.thread(); c < problem.cols;
       c += int64_t{kUnit<T>} * team.threads()) {
    const int count = static_cast<int>(min(problem.cols - c, int64_t{kUnit<T>}));
    uint4 unit = load_unit_at(x + c, count);
    if (problem.has_residual) {
      unit = add_units<T>(unit, load_unit_at(residual + c, count));
    }
    float values[kUnit<T>];
    unpack<T>(unit, values);
    body(c, count, unit, values);
  }
}

// A whole row in float64, from memory: in three looks, of which the last one writes. For rows that
// do not fit into the registers, and for the few that float32 does not serve. All threads of a
// block come here together and add up; `there`: this one has a row.
template <class T, bool kRms, class Team>
__device__ __noinline__ void wide_row(const RowsForwardLaunch& launch, int64_t index, bool there,
                                      Team team) {
  constexpr int kE = kUnit<T>;
  const RowsForwardProblem& problem = launch.problem;
  const auto cols = static_cast<double>(problem.cols);
  const Buffers& buffers = launch.buffers;
  const RowPlaces<false> row(problem, there ? index : 0);
  ForwardStatistics result;
  if (!kRms) {
    double sum = 0;
    if (there) {
      for_row<T>(launch, row, team, [&](int64_t, int count, const uint4&, const float(&h)[kE]) {
#pragma unroll
        for (int e = 0; e < kE; ++e) sum += e < count ? h[e] : 0;
      });
    }
    result.mean = team.sum(sum) / cols;
  }
  double squares = 0;
  if (there) {
    for_row<T>(launch, row, team, [&](int64_t, int count, const uint4&, const float(&h)[kE]) {
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        const double centred = e < count ? h[e] - result.mean : 0;
        squares += centred * centred;
      }
    });
  }
  result.set_variance(team.sum(squares) / cols, problem.eps);
  if (!there) return;
  if (team.thread() == 0) store_statistics(launch, result, row.mean(), row.spread());
  for_row<T>(launch, row, team, [&](int64_t c, int count, const uint4& unit, const float(&h)[kE]) {
    float gamma[kE], beta[kE], x_hat[kE], y[kE];
    load_scales<T, T, false>(launch, c, count, gamma, beta);
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      const double value = result.x_hat(h[e]);
      x_hat[e] = static_cast<float>(value);
      y[e] = static_cast<float>(value * gamma[e] + beta[e]);
    }
    const auto store = [&](void* data, int64_t at, const uint4& values) {
      store_unit_at(static_cast<T*>(data) + at + c, values, count);
    };
    if (problem.has_h) store(buffers.h, row.h(), unit);
    if (problem.has_x_hat) store(buffers.x_hat, row.x_hat(), pack<T>(x_hat));
    if (problem.has_y) store(buffers.y, row.y(), pack<T>(y));
  });
}

}  // namespace normgrad::cuda
