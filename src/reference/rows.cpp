// The gradients of LayerNorm and RMSNorm in float64, row by row.
#include <cmath>
#include <utility>

#include "reference/elements.hpp"
#include "reference/parts.hpp"
#include "reference/reference.hpp"

namespace normgrad::reference {
namespace {

// What LayerNorm and RMSNorm share.
template <class Call>
Rows data_of(const Call& call, const Buffers& buffers) {
  Rows data;
  data.rows = rows_of(call.x, call.normalized_axes);
  data.cols = cols_of(call.x, call.normalized_axes);
  data.x = gather(call.x, buffers.x);
  data.dy = gather(call.dy, buffers.dy);
  data.gamma = gamma_of(call, buffers, data.cols);
  if (call.dh) data.dh = gather(*call.dh, buffers.dh);
  data.eps = call.eps;
  return data;
}

Factor factor_of_row(const Rows& data, int64_t row) {
  if (!data.spread.empty()) return factor_of(data.statistics, data.spread[row], data.eps);
  long double squares = 0;
  for (int64_t j = 0; j < data.cols; ++j) {
    const double x = data.x[row * data.cols + j];
    squares += x * x;
  }
  return factor_of(Statistics::kMeanVariance, static_cast<double>(squares / data.cols), data.eps);
}

}  // namespace

Gradients rows_backward(const Rows& data) {
  const auto [rows, cols] = std::pair(data.rows, data.cols);
  Gradients result;
  result.dx.resize(data.x.size());
  result.dx_scale.resize(data.x.size());
  std::vector<Sum> dgamma(cols), dbeta(cols);
  std::vector<double> x_hat(cols), g(cols);
  for (int64_t row = 0; row < rows; ++row) {
    const double* x = data.x.data() + row * cols;
    const double* dy = data.dy.data() + row * cols;
    const auto [r, zero] = factor_of_row(data, row);
    const bool given = !data.rms && data.statistics == Statistics::kXHatStd;
    const double mean = data.rms || given ? 0 : data.mean[row];

    Sum sum_g, sum_gx;
    for (int64_t j = 0; j < cols; ++j) {
      x_hat[j] = zero ? 0 : given ? x[j] : (x[j] - mean) * r;
      g[j] = dy[j] * data.gamma[j];
      sum_g.add(g[j]);
      sum_gx.add(g[j] * x_hat[j]);
      dgamma[j].add(dy[j] * x_hat[j]);
      dbeta[j].add(dy[j]);
    }
    // RMSNorm does not subtract a mean, so its gradient has no mean(g).
    const double mean_g = data.rms ? 0 : static_cast<double>(sum_g.terms / cols);
    const double a1 = data.rms ? 0 : static_cast<double>(sum_g.magnitudes / cols);
    const double mean_gx = static_cast<double>(sum_gx.terms / cols);
    const double a2 = static_cast<double>(sum_gx.magnitudes / cols);
    for (int64_t j = 0; j < cols; ++j) {
      result.dx[row * cols + j] = r * (g[j] - mean_g - x_hat[j] * mean_gx);
      result.dx_scale[row * cols + j] =
          std::abs(r) * (std::abs(g[j]) + a1 + std::abs(x_hat[j]) * a2);
      if (data.dh.empty()) continue;
      result.dx[row * cols + j] += data.dh[row * cols + j];
      result.dx_scale[row * cols + j] += std::abs(data.dh[row * cols + j]);
    }
  }
  store(dgamma, result.dgamma, result.dgamma_scale);
  store(dbeta, result.dbeta, result.dbeta_scale);
  return result;
}

Gradients layer_norm_backward(const LayerNormBackward& call, const Buffers& buffers) {
  Rows data = data_of(call, buffers);
  data.statistics = call.statistics;
  if (call.mean) data.mean = gather(*call.mean, buffers.mean);
  data.spread = gather(call.spread, buffers.spread);
  return rows_backward(data);
}

Gradients rms_norm_backward(const RmsNormBackward& call, const Buffers& buffers) {
  Rows data = data_of(call, buffers);
  data.rms = true;
  if (call.spread) data.spread = gather(*call.spread, buffers.spread);
  return rows_backward(data);
}

}  // namespace normgrad::reference
