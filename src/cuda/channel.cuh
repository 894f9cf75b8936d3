// One channel of BatchNorm: its scalars before and after the sums over the batch are known.
//
// Elements are centred as t = (x - mean) * p, where p is the power of two next to the scale: one
// fused operation and one rounding, and products dy * t as large as dy * x_hat, so that they leave
// float32 no sooner. Sums of dy * t are divided by p in float64, which is exact.
#pragma once

#include "cuda/normalizer.cuh"
#include "cuda/types.cuh"
#include "ops/backend.hpp"

namespace normgrad::cuda {

// Frozen statistics need no sums but for the parameter gradients.
__host__ __device__ inline bool needs_sums(const ChannelsProblem& problem) {
  if (problem.step == ChannelsStep::kElementwise) return false;
  if (problem.samples * problem.length == 0) return false;  // sums over nothing are 0
  return !problem.frozen || problem.dgamma.present || problem.dbeta.present;
}

// Elements per channel of the whole batch.
__device__ inline double batch_elements(const ChannelsProblem& problem, const Buffers& buffers) {
  if (problem.step != ChannelsStep::kElementwise) {
    return static_cast<double>(problem.samples * problem.length);
  }
  double count = 0;
  for (int64_t i = 0; i < problem.counts; ++i) count += load_value(problem.count, buffers.count, i);
  return count;
}

struct Centring {
  float p = 0, offset = 0;  // t = x * p + offset

  __device__ float operator()(float x) const { return fmaf(x, p, offset); }
};

// p from the exponent of what the scale is made of; 1 if the scale is not safe.
__device__ inline Centring load_centring(const ChannelsProblem& problem, const Buffers& buffers,
                                         int64_t c) {
  const double spread = load_value(problem.spread, buffers.spread, c);
  const double source = problem.spread_is_rstd ? spread : spread + problem.eps;
  const int exponent = (__double2hiint(source) >> 20 & 0x7FF) - 1023;
  const int power = problem.spread_is_rstd ? exponent : -(exponent >> 1);
  const float p = abs(power) > 100 ? 1.0f : __int_as_float((power + 127) << 23);
  return {p, -static_cast<float>(load_value(problem.mean, buffers.mean, c)) * p};
}

__device__ inline Normalizer load_normalizer(const ChannelsProblem& problem, const Buffers& buffers,
                                             int64_t c) {
  const double mean = load_value(problem.mean, buffers.mean, c);
  const double spread = load_value(problem.spread, buffers.spread, c);
  return problem.spread_is_rstd ? Normalizer::from_rstd(mean, spread)
                                : Normalizer::from_variance(mean, spread + problem.eps);
}

// What a kernel adds up: dy, and dy * t.
struct Sums {
  double dy = 0, dy_t = 0;

  __device__ void add(const Sums& other) {
    dy += other.dy;
    dy_t += other.dy_t;
  }
};

// What becomes of it.
struct Totals {
  double dy = 0, dy_xmu = 0, dy_x_hat = 0;
};

__device__ inline Totals totals_of(const Normalizer& n, const Sums& sums, float p) {
  const double dy_xmu = sums.dy_t / p;
  return {sums.dy, dy_xmu, n.zero ? 0 * sums.dy : n.scale * dy_xmu};
}

// Whether the means of dy and of dy * x_hat say that float32 served the elements: finite, and
// neither so large that a difference may overflow nor so small that products may have vanished. (A
// scale of zero leaves x_hat nothing to say: there it is x - mean that must have been finite.)
__device__ inline bool are_safe(const Normalizer& n, const Totals& totals, double elements) {
  const double c1 = totals.dy / elements;
  const double c2 = (n.zero ? totals.dy_xmu : totals.dy_x_hat) / elements;
  const double magnitude = fmax(fabs(c1), fabs(c2));
  return (n.zero || is_safe(n.scale)) && !isnan(c1) && !isnan(c2) &&
         (magnitude == 0 || is_safe(magnitude));
}

// dx = gain * (dy - c1 - x_hat * c2), gain = gamma * r; frozen: gain * dy.
struct Channel {
  double mean, scale, gain, c1, c2;
  Centring centring;  // x_hat * c2 as t * c2_t
  float gain32, c1_32, c2_t;
  bool zero;  // x_hat = 0
  bool wide;  // dx needs float64

  __device__ float dx(float x, float dy) const {
    return gain32 * fmaf(-centring(x), c2_t, dy - c1_32);
  }
  __device__ double wide_dx(double x, double dy) const {
    return gain * (dy - c1 - (zero ? 0 : (x - mean) * scale * c2));
  }
};

// `safe`: float32 serves the elements. Frozen, x must not change a bit of dx, not even by a NaN.
__device__ inline Channel make_channel(const ChannelsProblem& problem, const Buffers& buffers,
                                       int64_t c, const Totals& totals, double elements,
                                       bool safe) {
  const Normalizer n = load_normalizer(problem, buffers, c);
  const double gamma = problem.gamma.present ? load_value(problem.gamma, buffers.gamma, c) : 1;
  Channel channel = {n.mean, n.scale, gamma * n.r, 0, 0, {}, 0, 0, 0, n.zero, false};
  channel.gain32 = static_cast<float>(channel.gain);
  channel.wide = !(channel.gain == 0 || is_safe(channel.gain));
  if (problem.frozen) {
    channel.zero = true;
    return channel;
  }
  channel.centring = load_centring(problem, buffers, c);
  channel.wide = channel.wide || !safe;
  channel.c1 = totals.dy / elements;
  channel.c2 = totals.dy_x_hat / elements;
  channel.c1_32 = static_cast<float>(channel.c1);
  channel.c2_t = static_cast<float>(channel.c2 * n.scale / channel.centring.p);
  return channel;
}

// What the second step of a BatchNorm gets instead of sums.
__device__ inline Totals load_totals(const ChannelsProblem& problem, const Buffers& buffers,
                                     int64_t c, const Normalizer& n) {
  const double dy_xmu = load_value(problem.sum_dy_xmu, buffers.sum_dy_xmu, c);
  return {load_value(problem.sum_dy, buffers.sum_dy, c), dy_xmu, n.zero ? 0 : n.scale * dy_xmu};
}

__device__ inline void store_totals(const ChannelsProblem& problem, const Buffers& buffers,
                                    int64_t c, const Totals& totals) {
  if (problem.dgamma.present) store_value(problem.dgamma, buffers.dgamma, c, totals.dy_x_hat);
  if (problem.dbeta.present) store_value(problem.dbeta, buffers.dbeta, c, totals.dy);
  if (problem.step != ChannelsStep::kReduce) return;
  if (problem.sum_dy.present) store_value(problem.sum_dy, buffers.sum_dy, c, totals.dy);
  if (problem.sum_dy_xmu.present) {
    store_value(problem.sum_dy_xmu, buffers.sum_dy_xmu, c, totals.dy_xmu);
  }
}

}  // namespace normgrad::cuda
