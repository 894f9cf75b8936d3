// LayerNorm over the last axes of x:
//
//   h     = x + residual                      what is normalized; x itself without a residual
//   mean  = mean(h), variance = mean((h - mean)^2)            over the row
//   x_hat = (h - mean) * r,  r = 1 / sqrt(variance + eps)
//   y     = x_hat * (gamma + gamma_offset) + beta
//
// h is rounded to the type of x first, so that the fused sum gives what two operators would. A
// variance + eps of exactly zero gives r = 0.
#pragma once

#include <optional>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"

namespace normgrad {

// Rows, columns and the shapes of parameters and statistics: as in LayerNormBackward, which takes
// h, mean and spread as they are saved here. y may be exactly x or residual, and so may h.
struct LayerNorm {
  Tensor x;                             // 1 to 8 axes
  std::optional<Tensor> residual = {};  // shape and type of x
  std::optional<Tensor> gamma = {};     // per column; absent: ones, without gamma_offset
  std::optional<Tensor> beta = {};      // per column; absent: zeros
  double gamma_offset = 0;              // 1 for parameters that are zero where they do nothing
  double eps = 1e-5;
  int normalized_axes = 1;            // how many of x's last axes
  std::optional<Tensor> y = {};       // shape and type of x; an absent output is not computed
  std::optional<Tensor> h = {};       // shape and type of x
  std::optional<Tensor> x_hat = {};   // shape and type of x
  std::optional<Tensor> mean = {};    // per row
  std::optional<Tensor> spread = {};  // per row
  Statistics statistics = Statistics::kMeanRstd;  // what spread is; a standard deviation
                                                  // contains eps, a variance does not
  OperandNames names = {};
};

}  // namespace normgrad
