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

// Whether a factor leaves room on both sides of float32's range. Products with one that does not
// may overflow or lose bits where the result would not: such rows and channels are computed in
// float64.
__device__ inline bool is_safe(double factor) {
  const double magnitude = fabs(factor);
  return magnitude >= 0x1p-100 && magnitude <= 0x1p100;
}

}  // namespace normgrad::cuda
