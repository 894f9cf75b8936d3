// The gradient of RMSNorm, y = x_hat * gamma with x_hat = x * r, r = 1 / sqrt(mean(x^2) + eps),
// over the last axes of x:
//
//   g      = dy * gamma
//   dx     = r * (g - x_hat * mean(g * x_hat))                means over the row
//   dgamma = sum of dy * x_hat over all rows
//
// r comes from x itself, where mean(x^2) + eps of exactly zero gives r = 0, or is given as rstd.
#pragma once

#include <optional>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad {

// Rows, columns and the shapes of parameters and statistics: as in LayerNormBackward.
struct RmsNormBackward {
  Tensor x;                           // 1 to 8 axes
  Tensor dy;                          // shape and type of x
  std::optional<Tensor> gamma = {};   // per column; absent: ones
  std::optional<Tensor> spread = {};  // per row: rstd; absent: r comes from x and eps
  double eps = 0;
  int normalized_axes = 1;        // how many of x's last axes
  std::optional<Tensor> dx = {};  // shape of x; an absent output is not computed
  std::optional<Tensor> dgamma = {};
  OperandNames names = {};
};

}  // namespace normgrad
