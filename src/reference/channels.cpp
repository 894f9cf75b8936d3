// The gradient of BatchNorm in float64, channel by channel.
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
    double mean_dy = static_cast<double>(dbeta[c].terms / terms);
    double a1 = static_cast<double>(dbeta[c].magnitudes / terms);
    double mean_dyx = static_cast<double>(dgamma[c].terms / terms);
    double a2 = static_cast<double>(dgamma[c].magnitudes / terms);
    if (!data.sum_dy.empty()) {
      Sum dy, dy_xmu;
      for (size_t i = c; i < data.sum_dy.size(); i += data.channels) {
        dy.add(data.sum_dy[i]);
        dy_xmu.add(data.sum_dy_xmu[i]);
      }
      const auto mean = [&](long double sum) { return static_cast<double>(sum) / data.count; };
      mean_dy = mean(dy.terms);
      mean_dyx = factor.zero ? 0 : factor.r * mean(dy_xmu.terms);
      a1 = std::abs(mean(dy.magnitudes));
      a2 = factor.zero ? 0 : std::abs(factor.r * mean(dy_xmu.magnitudes));
    }
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

namespace {

// What the three calls share.
template <class Call>
Channels channels_of(const Call& call, const Buffers& buffers) {
  const auto axis = call.x.shape.begin() + call.channel_axis;
  Channels data;
  data.samples = count({call.x.dtype, {call.x.shape.begin(), axis}});
  data.channels = *axis;
  data.length = count({call.x.dtype, {axis + 1, call.x.shape.end()}});
  data.x = gather(call.x, buffers.x);
  data.dy = gather(call.dy, buffers.dy);
  data.gamma.assign(static_cast<size_t>(data.channels), 1.0);
  data.statistics = Statistics::kMeanRstd;
  data.mean = gather(call.mean, buffers.mean);
  data.spread = gather(call.spread, buffers.spread);
  return data;
}

}  // namespace

Gradients batch_norm_backward(const BatchNormBackward& call, const Buffers& buffers) {
  Channels data = channels_of(call, buffers);
  data.gamma = gather_or_ones(call.gamma, buffers.gamma, data.channels);
  data.statistics = call.statistics;
  data.eps = call.eps;
  data.frozen = call.frozen;
  return channels_backward(data);
}

Gradients batch_norm_reduce_backward(const BatchNormReduceBackward& call, const Buffers& buffers) {
  return channels_backward(channels_of(call, buffers));
}

ChannelSums batch_norm_sums(const BatchNormReduceBackward& call, const Buffers& buffers) {
  Channels data = channels_of(call, buffers);
  for (double& rstd : data.spread) rstd = 1;  // then x_hat is x - mean
  const Gradients sums = channels_backward(data);
  return {sums.dbeta, sums.dbeta_scale, sums.dgamma, sums.dgamma_scale};
}

Gradients batch_norm_elementwise_backward(const BatchNormElementwiseBackward& call,
                                          const Buffers& buffers) {
  Channels data = channels_of(call, buffers);
  data.gamma = gather_or_ones(call.gamma, buffers.gamma, data.channels);
  data.sum_dy = gather(call.sum_dy, buffers.sum_dy);
  data.sum_dy_xmu = gather(call.sum_dy_xmu, buffers.sum_dy_xmu);
  for (const double count : gather(call.count, buffers.count)) data.count += count;
  return channels_backward(data);
}

}  // namespace normgrad::reference
