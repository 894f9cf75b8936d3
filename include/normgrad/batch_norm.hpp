// BatchNorm, per channel of x, an (N, C, L) or any other tensor with an axis of channels:
//
//   mean  = mean(x), variance = mean((x - mean)^2)            over the other axes
//   x_hat = (x - mean) * r,  r = 1 / sqrt(variance + eps)
//   y     = x_hat * gamma + beta
//
// That is the training form; it also moves the running statistics:
//
//   running_mean     += momentum * (mean - running_mean)
//   running_variance += momentum * (variance * n / (n - 1) - running_variance)   n elements, 2 or
//   more
//
// With frozen statistics (eval mode) the running statistics take the place of mean and variance,
// and nothing but y is written. A variance + eps of exactly zero gives r = 0. A batch of nothing
// has mean 0 and spread 0, and moves nothing.
#pragma once

#include <optional>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad {

struct BatchNorm {
  Tensor x;                          // 2 to 8 axes
  std::optional<Tensor> gamma = {};  // (C); absent: ones
  std::optional<Tensor> beta = {};   // (C); absent: zeros
  double eps = 1e-5;
  bool frozen = false;
  int channel_axis = 1;
  std::optional<Tensor> running_mean = {};      // (C); both or none, and both if frozen
  std::optional<Tensor> running_variance = {};  // (C)
  double momentum = 0.1;
  std::optional<Tensor> y = {};       // shape and type of x, may be exactly x; absent: not computed
  std::optional<Tensor> mean = {};    // (C); not if frozen
  std::optional<Tensor> spread = {};  // (C); not if frozen
  Statistics statistics = Statistics::kMeanVariance;  // what spread is; not kXHatStd
  OperandNames names = {};
};

}  // namespace normgrad
