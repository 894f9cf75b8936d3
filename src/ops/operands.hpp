// The operands of a call by role, and the checks that all operators share.
#pragma once

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"
#include "ops/layout.hpp"
#include "ops/problem.hpp"

namespace normgrad {

// One operand of a call: what it is called, and where its elements lie.
struct Operand {
  const char* name = "";
  bool present = false;
  bool output = false;
  Tensor tensor;
  Extent extent;
};

struct Operands {
  Operand x, dy, gamma, mean, spread, dx, dgamma, dbeta;

  // In the order in which errors are reported.
  std::array<Operand*, 8> all() { return {&x, &dy, &gamma, &mean, &spread, &dx, &dgamma, &dbeta}; }
};

// The operands of a call: their tensors where present, and their names in any case.
template <class Call>
Operands operands_of(const Call& call) {
  const auto input = [](const char* name, std::optional<Tensor> tensor) {
    return Operand{name, tensor.has_value(), false, std::move(tensor).value_or(Tensor{}), {}};
  };
  const auto output = [&](const char* name, std::optional<Tensor> tensor) {
    Operand operand = input(name, std::move(tensor));
    operand.output = true;
    return operand;
  };
  Operands o;
  o.x = input(call.names.x, call.x);
  o.dy = input(call.names.dy, call.dy);
  o.gamma = input(call.names.gamma, call.gamma);
  o.dx = output(call.names.dx, call.dx);
  o.dgamma = output(call.names.dgamma, call.dgamma);
  if constexpr (requires { call.spread; }) {  // RMSNorm has none of these
    o.mean = input(call.names.mean, call.mean);
    o.spread = input(call.names.spread, call.spread);
    o.dbeta = output(call.names.dbeta, call.dbeta);
  }
  return o;
}

// dy and dx have the type of x.
Status check_types(const Operands& operands);

// Every operand by itself (rank, overflow), then dy and dx against the shape of x.
Status check_shapes(Operands& operands);

// operand has exactly this shape.
Status expect_shape(const Operand& operand, const std::vector<int64_t>& shape);

// Every operand by itself; fills in the extents.
Status check_strides(Operands& operands);

// A one-dimensional operand.
Vector vector_of(const Operand& operand);

// eps is finite and not negative; where it is not `used`, it has to be 0.
Status check_eps(const char* name, double eps, bool used);

}  // namespace normgrad

// Returns from the enclosing function if `expression` is not ok.
#define NORMGRAD_RETURN_IF_ERROR(expression)                                      \
  do {                                                                            \
    if (::normgrad::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
