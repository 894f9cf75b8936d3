// The scalars of one row or channel in float64: x_hat = (x - mean) * scale, dx = r * (g - c1 -
// x_hat * c2).
#pragma once

#include <cmath>

namespace normgrad::cuda {

struct Normalizer {
  double mean = 0;
  double scale = 1;
  double r = 0;
  bool zero = false;  // the denominator is exactly zero: r = 0 and x_hat = 0

  __device__ static Normalizer from_rstd(double mean, double rstd) {
    return {mean, rstd, rstd, rstd == 0};
  }
  __device__ static Normalizer from_variance(double mean, double variance) {
    const double r = variance == 0 ? 0 : rsqrt(variance);
    return {mean, r, r, variance == 0};
  }
  // x is x_hat already.
  __device__ static Normalizer from_std(double std) {
    return {0, std == 0 ? 0.0 : 1.0, std == 0 ? 0 : 1 / std, std == 0};
  }

  __device__ double x_hat(double x) const { return zero ? 0 : (x - mean) * scale; }
};

// Whether a factor leaves room on both sides of float32's range: 2^-100 to 2^100. Products with one
// that does not may overflow or lose bits where the result would not: such rows and channels are
// computed in float64. By the exponent, of which NaN has the largest.
__device__ inline int exponent_of(double value) { return __double2hiint(value) >> 20 & 0x7FF; }
__device__ inline bool is_safe_exponent(int exponent) { return abs(exponent - 1023) <= 100; }
__device__ inline bool is_safe(double factor) { return is_safe_exponent(exponent_of(factor)); }

}  // namespace normgrad::cuda
