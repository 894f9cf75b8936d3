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

// 1 / the elements per channel.
__device__ inline double inverse_count(const ChannelsProblem& problem) {
  return 1 / static_cast<double>(problem.samples * problem.length);
}

// What is given of a channel; no type is wider than float32.
struct Given {
  float mean = 0, spread = 0, gamma = 0;
};

// All of it on its way. (With a trip for each 1024x512x1 bf16 took 9.6 us, not 8.7.)
struct GivenBits {
  Halves mean, spread, gamma;

  GivenBits() = default;
  __device__ GivenBits(const ChannelsProblem& problem, const Buffers& buffers, int64_t c)
      : mean(problem.mean.dtype, buffers.mean, c * problem.mean.stride),
        spread(problem.spread.dtype, buffers.spread, c * problem.spread.stride) {
    const Vector& vector = problem.gamma;
    if (vector.present) gamma = Halves(vector.dtype, buffers.gamma, c * vector.stride);
  }
  __device__ Given values(const ChannelsProblem& problem) const {
    return {mean.value(problem.mean.dtype), spread.value(problem.spread.dtype),
            problem.gamma.present ? gamma.value(problem.gamma.dtype) : 1};
  }
};
__device__ inline Given load_given(const ChannelsProblem& problem, const Buffers& buffers,
                                   int64_t c) {
  return GivenBits(problem, buffers, c).values(problem);
}

struct Centring {
  float p = 0, offset = 0;  // t = x * p + offset

  __device__ float operator()(float x) const { return fmaf(x, p, offset); }
  // 1 / p, by its exponent.
  __device__ float inverse() const { return __int_as_float((254 << 23) - __float_as_int(p)); }
};

// p from the exponent of what the scale is made of; 1 if the scale is not safe.
__device__ inline Centring centring_of(const ChannelsProblem& problem, const Given& given) {
  const double source = problem.spread_is_rstd ? given.spread : given.spread + problem.eps;
  const int exponent = exponent_of(source) - 1023;
  const int power = problem.spread_is_rstd ? exponent : -(exponent >> 1);
  const float p = abs(power) > 100 ? 1.0f : __int_as_float((power + 127) << 23);
  return {p, -given.mean * p};
}

__device__ inline Normalizer normalizer_of(const ChannelsProblem& problem, const Given& given) {
  return problem.spread_is_rstd ? Normalizer::from_rstd(given.mean, given.spread)
                                : Normalizer::from_variance(given.mean, problem.eps + given.spread);
}

// What can be made of that before the sums are there.
struct Prepared {
  Normalizer normalizer;
  double gain;  // gamma * r
  Centring centring;
};
__device__ inline Prepared prepare_channel(const ChannelsProblem& problem, const Given& given) {
  const Normalizer n = normalizer_of(problem, given);
  return {n, given.gamma * n.r, centring_of(problem, given)};
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

__device__ inline Totals totals_of(const Normalizer& n, const Sums& sums,
                                   const Centring& centring) {
  const double dy_xmu = sums.dy_t * centring.inverse();
  return {sums.dy, dy_xmu, n.zero ? 0 * sums.dy : n.scale * dy_xmu};
}

// Whether the means of dy and of dy * x_hat say that float32 served the elements: finite, and
// neither so large that a difference may overflow nor so small that products may have vanished. (A
// scale of zero leaves x_hat nothing to say: there it is x - mean that must have been finite.)
__device__ inline bool are_safe(const Normalizer& n, const Totals& totals, double inverse_count) {
  const double c1 = totals.dy * inverse_count;
  const double c2 = (n.zero ? totals.dy_xmu : totals.dy_x_hat) * inverse_count;
  return (n.zero || is_safe(n.scale)) &&
         ((c1 == 0 && c2 == 0) || is_safe_exponent(max(exponent_of(c1), exponent_of(c2))));
}

// dx = gain * dy - c1 - t * c2 in float32: the gain is in c1 and c2, too.
struct DxScalars {
  Centring centring;
  float gain = 0, c1 = 0, c2 = 0;

  __device__ float dx(float x, float dy) const {
    return fmaf(-centring(x), c2, fmaf(gain, dy, -c1));
  }
};

// dx = gain * (dy - c1 - x_hat * c2), gain = gamma * r; frozen: gain * dy.
struct Channel {
  double mean, scale, gain, c1, c2;
  DxScalars scalars;
  bool zero;  // x_hat = 0
  bool wide;  // dx needs float64

  __device__ double wide_dx(double x, double dy) const {
    return gain * (dy - c1 - (zero ? 0 : (x - mean) * scale * c2));
  }
};

// `safe`: float32 serves the elements. Frozen, x must not change a bit of dx, not even by a NaN.
__device__ inline Channel make_channel(const ChannelsProblem& problem, const Prepared& prepared,
                                       const Totals& totals, double inverse_count, bool safe) {
  const Normalizer& n = prepared.normalizer;
  Channel channel = {n.mean, n.scale, prepared.gain, 0, 0, {}, n.zero, false};
  channel.scalars.gain = static_cast<float>(channel.gain);
  channel.wide = !(channel.gain == 0 || is_safe(channel.gain));
  if (problem.frozen) {
    channel.zero = true;
    return channel;
  }
  channel.c1 = totals.dy * inverse_count;
  channel.c2 = totals.dy_x_hat * inverse_count;
  const double c1 = channel.gain * channel.c1;
  const double c2 = channel.gain * channel.c2 * n.scale * prepared.centring.inverse();
  const auto fits = [](double value) { return value == 0 || is_safe(value); };
  channel.wide = channel.wide || !safe || !fits(c1) || !fits(c2);
  channel.scalars.centring = prepared.centring;
  channel.scalars.c1 = static_cast<float>(c1);
  channel.scalars.c2 = static_cast<float>(c2);
  return channel;
}

__device__ inline void store_totals(const ChannelsProblem& problem, const Buffers& buffers,
                                    int64_t c, const Totals& totals) {
  if (problem.dgamma.present) store_value(problem.dgamma, buffers.dgamma, c, totals.dy_x_hat);
  if (problem.dbeta.present) store_value(problem.dbeta, buffers.dbeta, c, totals.dy);
}

// The same for kernels that make dx at once, ahead of the sums: what these are multiplied by, so
// that little is left to do once they are there and every thread waits.
struct Factors {
  Centring centring;
  float gain = 0;
  bool wide = false;      // float32 does not serve, whatever the sums are
  bool zero = false;      // x_hat = 0
  double mean = 0;        // 1 / the elements
  double x_hat = 0;       // dy * t to dy * x_hat
  double mean_x_hat = 0;  // and to its mean (that of dy * (x - mean) if x_hat is 0)
  double c1 = 0, c2 = 0;  // to those of DxScalars
};
__device__ inline Factors factors_of(const ChannelsProblem& problem, const Given& given,
                                     double inverse_count) {
  const auto [n, gain, centring] = prepare_channel(problem, given);
  const double inverse = centring.inverse();
  Factors factors = {centring, static_cast<float>(gain), false, n.zero, inverse_count};
  factors.wide = !(n.zero || is_safe(n.scale)) || !(gain == 0 || is_safe(gain));
  factors.x_hat = n.zero ? 0 : n.scale * inverse;
  factors.mean_x_hat = (n.zero ? inverse : factors.x_hat) * inverse_count;
  if (problem.frozen) return factors;
  factors.c1 = gain * inverse_count;
  factors.c2 = gain * factors.x_hat * factors.x_hat * inverse_count;
  return factors;
}

struct Finished {
  DxScalars scalars;
  bool wide;  // to be left to wide_channel, outputs and all
};
// Conditions as in are_safe and make_channel; a frozen channel is wide if its totals are.
__device__ inline Finished finish_channel(const ChannelsProblem& problem, const Factors& factors,
                                          const Sums& sums) {
  const double c1 = sums.dy * factors.c1, c2 = sums.dy_t * factors.c2;
  const double m1 = sums.dy * factors.mean, m2 = sums.dy_t * factors.mean_x_hat;
  const auto fits = [](double value) { return value == 0 || is_safe(value); };
  const bool served =
      (m1 == 0 && m2 == 0) || is_safe_exponent(max(exponent_of(m1), exponent_of(m2)));
  return {{problem.frozen ? Centring{} : factors.centring, factors.gain, static_cast<float>(c1),
           static_cast<float>(c2)},
          factors.wide || !served || !fits(c1) || !fits(c2)};
}

// Its outputs.
__device__ inline void store_sums(const ChannelsProblem& problem, const Buffers& buffers, int64_t c,
                                  const Factors& factors, const Sums& sums) {
  const double dy_x_hat = factors.zero ? 0 * sums.dy : sums.dy_t * factors.x_hat;
  store_totals(problem, buffers, c, {sums.dy, 0, dy_x_hat});
}

}  // namespace normgrad::cuda
