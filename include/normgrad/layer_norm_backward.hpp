// The gradient of LayerNorm, y = x_hat * gamma + beta, over the last axes of x:
//
//   g      = dy * (gamma + gamma_offset)
//   dx     = r * (g - mean(g) - x_hat * mean(g * x_hat)) + dh     means over the row
//   dgamma = sum of dy * x_hat over all rows
//   dbeta  = sum of dy over all rows
//
// The statistics are data: they need not be those of x, and nothing is recomputed. After a fused
// sum h = x + residual, x is h, dh is the gradient that reached h by other ways, and dx is the
// gradient of x and of the residual.
#pragma once

#include <optional>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad {

// The normalized axes make the columns of a row, the axes before them the rows. Parameters have one
// element per column and statistics one per row, in row-major order and in any shape: (2, 3),
// (2, 3, 1) and (6) are the same to the rows of an x of (2, 3, 512).
struct LayerNormBackward {
  Tensor x;                          // 1 to 8 axes; x_hat when statistics == kXHatStd
  Tensor dy;                         // shape and type of x
  std::optional<Tensor> gamma = {};  // per column; absent: ones, without gamma_offset
  double gamma_offset = 0;
  Statistics statistics = Statistics::kMeanRstd;
  std::optional<Tensor> mean = {};  // per row
  Tensor spread;                    // per row: standard deviation, rstd or variance
  double eps = 0;                   // added to the variance; kMeanVariance only
  int normalized_axes = 1;          // how many of x's last axes
  std::optional<Tensor> dh = {};    // shape and type of x; not without dx
  std::optional<Tensor> dx = {};    // shape of x; an absent output is not computed
  std::optional<Tensor> dgamma = {};
  std::optional<Tensor> dbeta = {};
  bool accumulate = false;  // dgamma and dbeta are added to what is there
  OperandNames names = {};
};

}  // namespace normgrad
