// BatchNorm in float64, channel by channel.
#include <cmath>

#include "reference/elements.hpp"
#include "reference/parts.hpp"
#include "reference/reference.hpp"

namespace normgrad::reference {

Gradients channels_backward(const Channels& data) {
  const int64_t terms = data.samples * data.length;
  Gradients result;
  result.dx.resize(data.x.size());
  result.dx_scale.resize(data.x.size());
  std::vector<Sum> dgamma(data.channels), dbeta(data.channels);
  for (int64_t c = 0; c < data.channels; ++c) {
    const Factor factor = factor_of(data.statistics, data.spread[c], data.eps);
    const auto x_hat = [&](int64_t i) {
      return factor.zero ? 0 : (data.x[i] - data.mean[c]) * factor.r;
    };
    const auto for_each_index = [&](auto visit) {
      for (int64_t n = 0; n < data.samples; ++n) {
        const int64_t plane = (n * data.channels + c) * data.length;
        for (int64_t i = plane; i < plane + data.length; ++i) visit(i);
      }
    };
    for_each_index([&](int64_t i) {
      dgamma[c].add(data.dy[i] * x_hat(i));
      dbeta[c].add(data.dy[i]);
    });
    const double mean_dy = static_cast<double>(dbeta[c].terms / terms);
    const double a1 = static_cast<double>(dbeta[c].magnitudes / terms);
    const double mean_dyx = static_cast<double>(dgamma[c].terms / terms);
    const double a2 = static_cast<double>(dgamma[c].magnitudes / terms);
    const double s = data.gamma[c] * factor.r;
    for_each_index([&](int64_t i) {
      const double dy = data.dy[i];
      result.dx[i] = data.frozen ? s * dy : s * (dy - mean_dy - x_hat(i) * mean_dyx);
      result.dx_scale[i] = data.frozen
                               ? std::abs(s * dy)
                               : std::abs(s) * (std::abs(dy) + a1 + std::abs(x_hat(i)) * a2);
    });
  }
  store(dgamma, result.dgamma, result.dgamma_scale);
  store(dbeta, result.dbeta, result.dbeta_scale);
  return result;
}

Gradients batch_norm_backward(const BatchNormBackward& call, const Buffers& buffers) {
  Channels data;
  data.samples = call.x.shape[0];
  data.channels = call.x.shape[1];
  data.length = call.x.shape[2];
  data.x = gather(call.x, buffers.x);
  data.dy = gather(call.dy, buffers.dy);
  data.gamma = gather_or_ones(call.gamma, buffers.gamma, data.channels);
  data.statistics = call.statistics;
  data.mean = gather(call.mean, buffers.mean);
  data.spread = gather(call.spread, buffers.spread);
  data.eps = call.eps;
  data.frozen = call.frozen;
  return channels_backward(data);
}

}  // namespace normgrad::reference
