// The gradient of LayerNorm, y = x_hat * gamma + beta, over the last axis of x:
//
//   g      = dy * gamma
//   dx     = r * (g - mean(g) - x_hat * mean(g * x_hat))      means over the row
//   dgamma = sum of dy * x_hat over all rows
//   dbeta  = sum of dy over all rows
//
// The statistics are data: they need not be those of x, and nothing is recomputed.
#pragma once

#include <optional>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad {

struct LayerNormBackward {
  Tensor x;                          // 1 to 8 axes; x_hat when statistics == kXHatStd
  Tensor dy;                         // shape and type of x
  std::optional<Tensor> gamma = {};  // (cols); absent: ones
  Statistics statistics = Statistics::kMeanRstd;
  std::optional<Tensor> mean = {};  // shape of x without its last axis, or with that axis 1
  Tensor spread;                    // likewise: standard deviation, rstd or variance
  double eps = 0;                   // added to the variance; kMeanVariance only
  std::optional<Tensor> dx = {};    // an absent output is not computed
  std::optional<Tensor> dgamma = {};
  std::optional<Tensor> dbeta = {};
  OperandNames names = {};
};

}  // namespace normgrad
