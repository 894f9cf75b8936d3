// dgamma and dbeta from rows of partial sums, which another kernel left in the workspace.
#pragma once

#include <cstdint>

#include "normgrad/status.hpp"
#include "ops/problem.hpp"

namespace normgrad::cuda {

struct FinishProblem {
  const float* partials = nullptr;  // parts x 2 x padded: first of dgamma, second of dbeta
  int parts = 0;
  int64_t cols = 0, padded = 0;
  Vector outputs[2];
  void* data[2] = {};
};

// Adds in float64, in an order that depends on `parts` alone.
Status finish_columns(const FinishProblem& problem, void* stream);

}  // namespace normgrad::cuda
