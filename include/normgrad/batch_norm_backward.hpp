// The gradient of BatchNorm, y = x_hat * gamma + beta, per channel of x, an (N, C, L) or any other
// tensor with an axis of channels:
//
//   dx     = gamma * r * (dy - mean(dy) - x_hat * mean(dy * x_hat))   means over the other axes
//   dgamma = sum of dy * x_hat,  dbeta = sum of dy                    over the other axes
//
// That is the training form: the given statistics are those of the batch and the gradient flows
// through them. With frozen statistics (eval mode) dx = gamma * r * dy.
#pragma once

#include <optional>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad {

struct BatchNormBackward {
  Tensor x;                                           // 2 to 8 axes
  Tensor dy;                                          // shape and type of x
  std::optional<Tensor> gamma = {};                   // (C); absent: ones
  Statistics statistics = Statistics::kMeanVariance;  // not kXHatStd
  Tensor mean;                                        // (C)
  Tensor spread;                                      // (C): biased variance or rstd
  double eps = 0;                                     // added to the variance; kMeanVariance only
  bool frozen = false;
  int channel_axis = 1;
  std::optional<Tensor> dx = {};  // shape of x; an absent output is not computed
  std::optional<Tensor> dgamma = {};
  std::optional<Tensor> dbeta = {};
  bool accumulate = false;  // dgamma and dbeta are added to what is there
  OperandNames names = {};
};

// The same in two steps, for a batch that is spread over processes: each makes its sums, they are
// added up over all processes or gathered, and each makes its dx from the totals. dgamma and dbeta
// stay those of the process. Gathered sums are added up in float64, in an order that is a function
// of their number alone.
//
//   sum_dy = sum of dy,  sum_dy_xmu = sum of dy * (x - mean)
//   dx     = gamma * r * (dy - sum_dy / count - x_hat * r * sum_dy_xmu / count)
struct BatchNormReduceBackward {
  Tensor x;       // 2 to 8 axes
  Tensor dy;      // shape and type of x
  Tensor mean;    // (C): of the whole batch
  Tensor spread;  // (C): rstd
  int channel_axis = 1;
  std::optional<Tensor> sum_dy = {};  // (C), also f64; an absent output is not computed
  std::optional<Tensor> sum_dy_xmu = {};
  std::optional<Tensor> count = {};  // one element, i64: elements per channel
  std::optional<Tensor> dgamma = {};
  std::optional<Tensor> dbeta = {};
  OperandNames names = {};
};

struct BatchNormElementwiseBackward {
  Tensor x;                          // 2 to 8 axes
  Tensor dy;                         // shape and type of x
  std::optional<Tensor> gamma = {};  // (C); absent: ones
  Tensor mean;                       // (C): of the whole batch
  Tensor spread;                     // (C): rstd
  int channel_axis = 1;
  Tensor sum_dy;      // (C) of the whole batch, or (P, C) of each process; also f64
  Tensor sum_dy_xmu;  // the same
  Tensor count;       // (P), also i64 or i32: elements per channel; their sum is what counts
  Tensor dx;          // shape of x
  OperandNames names = {};
};

}  // namespace normgrad
