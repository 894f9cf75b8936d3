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

// The same in two steps, for a batch that is spread over processes: each makes the moments of its
// part, they are gathered, and each normalizes its part with the moments of the whole.
//
//   mean = mean(x), squares = sum of (x - mean)^2, count = elements per channel     of a part
//
// Of P parts, count-weighted and in float64: mean = sum of count * mean / sum of count,
// variance = sum of (squares + count * (part's mean - mean)^2) / sum of count. The order of these
// sums is a function of P alone, so that all processes get the same bits. Parts without elements
// count for nothing, whatever their moments are; if there is nothing else, it is a batch of
// nothing.
struct BatchNormReduce {
  Tensor x;  // 2 to 8 axes
  int channel_axis = 1;
  Tensor mean;                       // (C), also f64; of nothing: 0. Written to saved_mean
  Tensor squares;                    // (C), also f64
  std::optional<Tensor> count = {};  // one element, i64
  OperandNames names = {};
};

struct BatchNormElementwise {
  Tensor x;                          // 2 to 8 axes: the part of this process
  std::optional<Tensor> gamma = {};  // (C); absent: ones
  std::optional<Tensor> beta = {};   // (C); absent: zeros
  double eps = 1e-5;
  int channel_axis = 1;
  Tensor mean;     // (P, C), also f64: of each part
  Tensor squares;  // (P, C), also f64
  Tensor count;    // (P), also i64 or i32: elements per channel of each part
  std::optional<Tensor> running_mean = {};      // (C); both or none
  std::optional<Tensor> running_variance = {};  // (C)
  double momentum = 0.1;
  std::optional<Tensor> y = {};           // shape and type of x, may be exactly x
  std::optional<Tensor> saved_mean = {};  // (C): of the whole batch
  std::optional<Tensor> saved_spread = {};
  Statistics statistics = Statistics::kMeanVariance;  // what saved_spread is; not kXHatStd
  OperandNames names = {};
};

}  // namespace normgrad
