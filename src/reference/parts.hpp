// What the operators of the oracle share: the factor r, sums, rows and columns.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"
#include "reference/elements.hpp"

namespace normgrad::reference {

struct Factor {
  double r;
  bool zero;  // the denominator is exactly 0: r = 0, and x_hat = 0 too
};

inline Factor factor_of(Statistics statistics, double spread, double eps) {
  const double denominator = statistics == Statistics::kMeanVariance ? spread + eps : spread;
  if (denominator == 0) return {0, true};
  switch (statistics) {
    case Statistics::kXHatStd:
      return {1 / denominator, false};
    case Statistics::kMeanRstd:
      return {denominator, false};
    default:
      return {1 / std::sqrt(denominator), false};
  }
}

// Sums of terms and of their absolute values. The 64-bit mantissa of a long double keeps the error
// of 10^7 terms below 2^-40 of the sum of absolute values.
struct Sum {
  long double terms = 0, magnitudes = 0;
  void add(double term) {
    terms += term;
    magnitudes += std::abs(term);
  }
};

inline void store(const std::vector<Sum>& sums, std::vector<double>& values,
                  std::vector<double>& scales) {
  for (const Sum& sum : sums) {
    values.push_back(static_cast<double>(sum.terms));
    scales.push_back(static_cast<double>(sum.magnitudes));
  }
}

// How many elements the axes of x before the normalized ones have, and these.
inline int64_t rows_of(const Tensor& x, int normalized_axes) {
  return count({x.dtype, {x.shape.begin(), x.shape.end() - normalized_axes}});
}
inline int64_t cols_of(const Tensor& x, int normalized_axes) {
  return count({x.dtype, {x.shape.end() - normalized_axes, x.shape.end()}});
}

inline std::vector<double> gather_or_ones(const std::optional<Tensor>& tensor, const void* data,
                                          int64_t size) {
  return tensor ? gather(*tensor, data) : std::vector<double>(static_cast<size_t>(size), 1.0);
}

// With the offset that the call adds to it.
template <class Call>
std::vector<double> gamma_of(const Call& call, const Buffers& buffers, int64_t cols) {
  std::vector<double> gamma = gather_or_ones(call.gamma, buffers.gamma, cols);
  if (call.gamma) {
    for (double& value : gamma) value += call.gamma_offset;
  }
  return gamma;
}

}  // namespace normgrad::reference
