// Calls as a front end with one element type for everything makes them, and what the oracle says.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"
#include "reference/cases.hpp"
#include "reference/reference.hpp"

namespace normgrad::tool {

// All outputs, contiguous, and the statistics that InfiniOP takes: x_hat and standard deviation for
// LayerNorm, mean and variance without eps for BatchNorm, none for RMSNorm.
reference::Call make_call(reference::Op op, const std::vector<int64_t>& shape, DType dtype,
                          int channel_axis = 1);

// The operands of any call under their names.
struct Operands {
  std::optional<Tensor> x, dy, gamma, mean, spread, dx, dgamma, dbeta;
};
Operands operands_of(const reference::Call& call);

// Of the elements; 0 for an operand that the call does not have.
int64_t bytes_of(const std::optional<Tensor>& tensor);

reference::Gradients oracle(const reference::Call& call, const Buffers& buffers);

}  // namespace normgrad::tool
