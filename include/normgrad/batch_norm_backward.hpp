// The gradient of BatchNorm, y = x_hat * gamma + beta, per channel of x (N, C, L):
//
//   dx     = gamma * r * (dy - mean(dy) - x_hat * mean(dy * x_hat))   means over N and L
//   dgamma = sum of dy * x_hat,  dbeta = sum of dy                    over N and L
//
// That is the training form: the given statistics are those of the batch and the gradient flows
// through them. With frozen statistics (eval mode) dx = gamma * r * dy.
#pragma once

#include <optional>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad {

struct BatchNormBackward {
  Tensor x;                                           // (N, C, L), contiguous along L or along C
  Tensor dy;                                          // shape and type of x
  std::optional<Tensor> gamma = {};                   // (C); absent: ones
  Statistics statistics = Statistics::kMeanVariance;  // not kXHatStd
  Tensor mean;                                        // (C)
  Tensor spread;                                      // (C): biased variance or rstd
  double eps = 0;                                     // added to the variance; kMeanVariance only
  bool frozen = false;
  std::optional<Tensor> dx = {};  // an absent output is not computed
  std::optional<Tensor> dgamma = {};
  std::optional<Tensor> dbeta = {};
  OperandNames names = {};
};

}  // namespace normgrad
