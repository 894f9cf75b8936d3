// The scalars of one row or channel: x_hat = (x - mean) * scale, dx = r * (g - c1 - x_hat * c2).
#pragma once

#include <cmath>

namespace normgrad::cpu {

// In float64, as the statistics give them.
struct Normalizer {
  double mean = 0;
  double scale = 1;
  double r = 0;
  bool zero = false;  // the denominator is exactly zero: r = 0 and x_hat = 0

  static Normalizer from_rstd(double mean, double rstd) { return {mean, rstd, rstd, rstd == 0}; }
  static Normalizer from_variance(double mean, double variance) {
    return from_denominator(mean, std::sqrt(variance));
  }
  // x is x_hat already.
  static Normalizer from_std(double std) {
    return {0, std == 0 ? 0.0 : 1.0, std == 0 ? 0 : 1 / std, std == 0};
  }

  double x_hat(double x) const { return zero ? 0 : (x - mean) * scale; }

 private:
  static Normalizer from_denominator(double mean, double std) {
    const double r = std == 0 ? 0 : 1 / std;
    return {mean, r, r, std == 0};
  }
};

// The same rounded to float32, for the vector kernels.
struct Scalars {
  float mean, scale, r, c1, c2;
};

// Whether a factor leaves room on both sides of float32's range. Products with one that does not
// may overflow or lose bits where the result would not: such rows and channels are computed in
// float64.
inline constexpr double kLeastSafe = 0x1p-100, kMostSafe = 0x1p100;
inline bool is_safe(double factor) {
  const double magnitude = std::fabs(factor);
  return magnitude >= kLeastSafe && magnitude <= kMostSafe;
}

// Whether the means of g and of g * x_hat say the same of the elements: finite, and neither so
// large that a difference may overflow nor so small that g may have been rounded as a subnormal.
inline bool are_safe(double c1, double c2) {
  const double magnitude = std::fmax(std::fabs(c1), std::fabs(c2));
  return !std::isnan(c1) && !std::isnan(c2) && (magnitude == 0 || is_safe(magnitude));
}

}  // namespace normgrad::cpu
