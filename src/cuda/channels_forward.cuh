// BatchNorm forward: the moments of parts of a channel, and what becomes of them.
//
// A part is centred at its first element, its pivot, and added up in float64: the mean of a part
// that lies far from zero is as good as that of one that does not, and its sum of squares loses no
// more than log2 of the part's size. Parts are centred once more, at the mean of the first, before
// they are put together.
#pragma once

#include "cuda/forward_team.cuh"
#include "cuda/forward_units.cuh"
#include "cuda/types.cuh"
#include "ops/backend.hpp"

namespace normgrad::cuda {

// Of a part: how many elements, their mean, and the sum of squares around it.
struct Moments {
  double count, mean, squares;
};

// What to subtract before adding up: nothing if it is not finite, so that Inf remains Inf.
__device__ inline double pivot_of(double value) { return isfinite(value) ? value : 0; }

// Sums around a pivot.
struct PivotSums {
  double sum = 0, squares = 0;

  __device__ void add(double centred) {
    sum += centred;
    squares = fma(centred, centred, squares);
  }
  __device__ Moments moments(double pivot, double count) const {
    return {count, pivot + sum / count, squares - sum * (sum / count)};
  }
};

// What the elements of a channel need: y = (x - mean) * gain + beta, gain = r * gamma.
struct ChannelScale {
  Centre centred;
  float gain, beta;
  bool wide;  // float32 does not serve: the same in float64
  ForwardStatistics statistics;
  double gamma;

  __device__ float y(float x) const {
    if (wide) return static_cast<float>(statistics.x_hat(x) * gamma + beta);
    return fmaf(centred(x), gain, beta);
  }
  // One branch for all.
  template <int kCount>
  __device__ void apply(float (&values)[kCount]) const {
    if (wide) {
#pragma unroll
      for (float& value : values) value = y(value);
    } else {
#pragma unroll
      for (float& value : values) value = fmaf(centred(value), gain, beta);
    }
  }
};

__device__ inline ChannelScale scale_of(const ChannelsForwardProblem& problem,
                                        const Buffers& buffers, int64_t c,
                                        const ForwardStatistics& statistics) {
  const double gamma = problem.gamma.present ? load_value(problem.gamma, buffers.gamma, c) : 1;
  const double beta = problem.beta.present ? load_value(problem.beta, buffers.beta, c) : 0;
  const double gain = statistics.r * gamma;
  // gamma = 0 makes beta of whatever is finite.
  const bool served = !statistics.zero && is_safe(statistics.r) && (gamma == 0 || is_safe(gain));
  return {Centre(statistics.mean),
          static_cast<float>(gain),
          static_cast<float>(beta),
          !served,
          statistics,
          gamma};
}

// The running statistics in the place of the batch's.
__device__ inline ForwardStatistics frozen_statistics(const ChannelsForwardProblem& problem,
                                                      const Buffers& buffers, int64_t c) {
  ForwardStatistics statistics;
  statistics.mean = load_value(problem.running_mean, buffers.running_mean, c);
  statistics.set_variance(load_value(problem.running_variance, buffers.running_variance, c),
                          problem.eps);
  return statistics;
}

// Whether the statistics are those of x.
inline bool needs_moments(const ChannelsForwardProblem& problem) {
  return !problem.frozen && problem.step != ChannelsStep::kElementwise;
}

// What the first step of a BatchNorm leaves to the second, and a part of what that gets.
__device__ inline void store_moments(const ChannelsForwardProblem& problem, const Buffers& buffers,
                                     int64_t c, const Moments& moments) {
  store_step_value(problem.mean, buffers.saved_mean, c, moments.mean);
  store_step_value(problem.squares, buffers.squares, c, moments.squares);
  if (problem.count.present && c == 0) store_count(problem, buffers.count);
}
__device__ inline Moments load_moments(const ChannelsForwardProblem& problem,
                                       const Buffers& buffers, int64_t c, int64_t part) {
  const Vector& count = problem.count;
  return {load_step_value(count.dtype, buffers.count, part * count.stride),
          load_part(problem.part_mean, buffers.mean, part, c),
          load_part(problem.squares, buffers.squares, part, c)};
}

// What is saved of a channel, and its running statistics. A batch of nothing moves nothing.
__device__ inline void store_statistics(const ChannelsForwardProblem& problem,
                                        const Buffers& buffers, int64_t c,
                                        const ForwardStatistics& statistics, double count) {
  if (problem.mean.present) store_value(problem.mean, buffers.saved_mean, c, statistics.mean);
  if (problem.spread.present) {
    const double spread = count == 0               ? 0
                          : problem.spread_is_rstd ? statistics.r
                                                   : statistics.variance;
    store_value(problem.spread, buffers.saved_spread, c, spread);
  }
  if (!problem.running_mean.present || count == 0) return;
  const double variance =
      count < 2 ? statistics.variance : statistics.variance * (count / (count - 1));
  const auto move = [&](const Vector& vector, void* data, double value) {
    const double old = load_value(vector, data, c);
    store_value(vector.dtype, data, c * vector.stride, old + problem.momentum * (value - old));
  };
  move(problem.running_mean, buffers.running_mean, statistics.mean);
  move(problem.running_variance, buffers.running_variance, variance);
}

}  // namespace normgrad::cuda
