// The gradient of RMSNorm, y = x_hat * gamma with x_hat = x * r, r = 1 / sqrt(mean(x^2) + eps),
// over the last axes of x:
//
//   g      = dy * (gamma + gamma_offset)
//   dx     = r * (g - x_hat * mean(g * x_hat)) + dh           means over the row
//   dgamma = sum of dy * x_hat over all rows
//
// r comes from x itself, where mean(x^2) + eps of exactly zero gives r = 0, or is given as rstd.
// dh, after a fused sum: as in LayerNormBackward.
#pragma once

#include <optional>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad {

// Rows, columns and the shapes of parameters and statistics: as in LayerNormBackward.
struct RmsNormBackward {
  Tensor x;                          // 1 to 8 axes
  Tensor dy;                         // shape and type of x
  std::optional<Tensor> gamma = {};  // per column; absent: ones, without gamma_offset
  double gamma_offset = 0;
  std::optional<Tensor> spread = {};  // per row: rstd; absent: r comes from x and eps
  double eps = 0;
  int normalized_axes = 1;        // how many of x's last axes
  std::optional<Tensor> dh = {};  // shape and type of x; not without dx
  std::optional<Tensor> dx = {};  // shape of x; an absent output is not computed
  std::optional<Tensor> dgamma = {};
  bool accumulate = false;  // dgamma is added to what is there
  OperandNames names = {};
};

}  // namespace normgrad
