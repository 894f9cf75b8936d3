// The oracle: layers and gradients in float64, by the formulas of the public headers and nothing
// else. Whatever statistics a gradient is given count as exact.
#pragma once

#include <cstdint>
#include <vector>

#include "normgrad/normgrad.hpp"

namespace normgrad::reference {

// Dense and row-major. Beside each element stands the scale S of its error bound: the sum of the
// absolute values of the terms that it is made of.
struct Gradients {
  std::vector<double> dx, dx_scale;
  std::vector<double> dgamma, dgamma_scale;
  std::vector<double> dbeta, dbeta_scale;
};

// What a layer makes: elements, and the scales of their bounds.
struct Output {
  std::vector<double> values, scales;
};
struct Normalized {
  std::vector<double> h;  // rounded to its type: there is nothing to be wrong about
  Output y, x_hat, mean, spread, running_mean, running_variance;
};

// All outputs, also those that the call does not ask for.
Normalized layer_norm(const LayerNorm& call, const Buffers& buffers);
Normalized rms_norm(const RmsNorm& call, const Buffers& buffers);
Normalized batch_norm(const BatchNorm& call, const Buffers& buffers);

// What the first of BatchNorm's two steps makes, and the second makes of it.
struct ChannelMoments {
  Output mean, squares;
  std::vector<double> reach;  // the largest |x - mean|
};
ChannelMoments batch_norm_moments(const BatchNormReduce& call, const Buffers& buffers);
Normalized batch_norm_elementwise(const BatchNormElementwise& call, const Buffers& buffers);

// All gradients, also those that the call does not ask for; without what they may be added to.
Gradients layer_norm_backward(const LayerNormBackward& call, const Buffers& buffers);
Gradients rms_norm_backward(const RmsNormBackward& call, const Buffers& buffers);
Gradients batch_norm_backward(const BatchNormBackward& call, const Buffers& buffers);

// What the first of BatchNorm's two steps adds up: per channel, with the scales of their bounds.
struct ChannelSums {
  std::vector<double> dy, dy_scale;
  std::vector<double> dy_xmu, dy_xmu_scale;
};
ChannelSums batch_norm_sums(const BatchNormReduceBackward& call, const Buffers& buffers);
// dgamma and dbeta of the first step, and dx of the second.
Gradients batch_norm_reduce_backward(const BatchNormReduceBackward& call, const Buffers& buffers);
Gradients batch_norm_elementwise_backward(const BatchNormElementwiseBackward& call,
                                          const Buffers& buffers);

// The same on data that is already dense float64.
struct Rows {
  int64_t rows = 0, cols = 0;
  bool rms = false;           // RMSNorm: no mean; spread is rstd, or empty: r comes from x
  std::vector<double> x, dy;  // (rows, cols)
  std::vector<double> gamma;  // (cols), with its offset
  Statistics statistics = Statistics::kMeanRstd;
  std::vector<double> mean, spread;  // (rows); no mean with kXHatStd
  double eps = 0;
  std::vector<double> dh = {};  // (rows, cols), or empty
};
Gradients rows_backward(const Rows& data);

struct Channels {
  int64_t samples = 0, channels = 0, length = 0;
  std::vector<double> x, dy;  // (samples, channels, length)
  std::vector<double> gamma;  // (channels)
  Statistics statistics = Statistics::kMeanVariance;
  std::vector<double> mean, spread;  // (channels)
  double eps = 0;
  bool frozen = false;
  // Given sums over a batch of `count` elements per channel, in parts; empty: those of x and dy.
  std::vector<double> sum_dy = {}, sum_dy_xmu = {};  // (parts, channels)
  double count = 0;
};
Gradients channels_backward(const Channels& data);

}  // namespace normgrad::reference
