// RMSNorm over the last axes of x:
//
//   h = x + residual                          what is normalized; x itself without a residual
//   r = 1 / sqrt(mean(h^2) + eps)             over the row
//   y = h * r * (gamma + gamma_offset)
//
// h is rounded to the type of x first, so that the fused sum gives what two operators would. A
// mean(h^2) + eps of exactly zero gives r = 0.
#pragma once

#include <optional>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad {

// Rows, columns and the shapes of parameters and statistics: as in LayerNormBackward. y may be
// exactly x or residual, and so may h.
struct RmsNorm {
  Tensor x;                             // 1 to 8 axes
  std::optional<Tensor> residual = {};  // shape and type of x
  std::optional<Tensor> gamma = {};     // per column; absent: ones, without gamma_offset
  double gamma_offset = 0;              // 1 for parameters that are zero where they do nothing
  double eps = 1e-5;
  int normalized_axes = 1;            // how many of x's last axes
  std::optional<Tensor> y = {};       // shape and type of x; an absent output is not computed
  std::optional<Tensor> h = {};       // shape and type of x
  std::optional<Tensor> spread = {};  // per row: rstd, r
  OperandNames names = {};
};

}  // namespace normgrad
