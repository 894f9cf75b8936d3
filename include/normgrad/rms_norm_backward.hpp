// The gradient of RMSNorm, y = x_hat * gamma with x_hat = x * r, r = 1 / sqrt(mean(x^2) + eps),
// over the last axis of x:
//
//   g      = dy * gamma
//   dx     = r * (g - x_hat * mean(g * x_hat))                means over the row
//   dgamma = sum of dy * x_hat over all rows
//
// r comes from x itself; mean(x^2) + eps of exactly zero gives r = 0.
#pragma once

#include <optional>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad {

struct RmsNormBackward {
  Tensor x;                          // 1 to 8 axes
  Tensor dy;                         // shape and type of x
  std::optional<Tensor> gamma = {};  // (cols); absent: ones
  double eps = 0;
  std::optional<Tensor> dx = {};  // an absent output is not computed
  std::optional<Tensor> dgamma = {};
  OperandNames names = {};
};

}  // namespace normgrad
