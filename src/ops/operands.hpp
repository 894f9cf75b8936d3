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
  View view;            // what the kernel sees
  bool staged = false;  // it sees a copy in the workspace
};

struct Operands {
  Operand x, dy, gamma, mean, spread, dx, dgamma, dbeta, sum_dy, sum_dy_xmu, count;
};

// Which pointer of a call belongs to which operand.
struct Role {
  Operand Operands::*operand;
  const void* Buffers::*input;  // one of these two
  void* Buffers::*output;

  const void* data(const Buffers& buffers) const {
    return input ? buffers.*input : buffers.*output;
  }
  void set(Buffers& buffers, void* data) const {
    if (input) {
      buffers.*input = data;
    } else {
      buffers.*output = data;
    }
  }
};

// In the order in which errors are reported.
inline constexpr std::array<Role, 11> kRoles = {{
    {&Operands::x, &Buffers::x, nullptr},
    {&Operands::dy, &Buffers::dy, nullptr},
    {&Operands::gamma, &Buffers::gamma, nullptr},
    {&Operands::mean, &Buffers::mean, nullptr},
    {&Operands::spread, &Buffers::spread, nullptr},
    {&Operands::dx, nullptr, &Buffers::dx},
    {&Operands::dgamma, nullptr, &Buffers::dgamma},
    {&Operands::dbeta, nullptr, &Buffers::dbeta},
    {&Operands::sum_dy, nullptr, &Buffers::sum_dy},
    {&Operands::sum_dy_xmu, nullptr, &Buffers::sum_dy_xmu},
    {&Operands::count, &Buffers::count, nullptr},
}};

// The operands of a call: their tensors where present, and their names in any case.
template <class Call>
Operands operands_of(const Call& call) {
  const auto set = [](Operand& operand, const char* name, std::optional<Tensor> tensor,
                      bool output) {
    operand.name = name;
    operand.present = tensor.has_value();
    operand.output = output;
    if (tensor) operand.tensor = *std::move(tensor);
  };
  Operands o;
  const OperandNames& names = call.names;
  set(o.x, names.x, call.x, false);
  set(o.dy, names.dy, call.dy, false);
  // Not every operator has all of these.
  if constexpr (requires { call.gamma; }) set(o.gamma, names.gamma, call.gamma, false);
  if constexpr (requires { call.mean; }) set(o.mean, names.mean, call.mean, false);
  set(o.spread, names.spread, call.spread, false);
  if constexpr (requires { call.dx; }) set(o.dx, names.dx, call.dx, true);
  if constexpr (requires { call.dgamma; }) set(o.dgamma, names.dgamma, call.dgamma, true);
  if constexpr (requires { call.dbeta; }) set(o.dbeta, names.dbeta, call.dbeta, true);
  if constexpr (requires { call.sum_dy; }) {
    constexpr bool given = requires { call.count; };
    set(o.sum_dy, names.sum_dy, call.sum_dy, !given);
    set(o.sum_dy_xmu, names.sum_dy_xmu, call.sum_dy_xmu, !given);
    if constexpr (given) set(o.count, names.count, call.count, false);
  }
  return o;
}

// All are floats, but for the count; dy has the type of x.
Status check_types(const Operands& operands);

// Every operand by itself (rank, overflow), then dy and dx against the shape of x.
Status check_shapes(Operands& operands);

// Every operand by itself; fills in the extents.
Status check_strides(Operands& operands);

// The operand, if present, has `count` elements: one per `what`.
Status expect_count(const Operand& operand, int64_t count, const char* what);

// eps is finite and not negative; where it is not `used`, it has to be 0.
Status check_eps(const char* name, double eps, bool used);

// The type that kernels compute x, dy and dx in: that of x, or float32 where dx has another.
DType data_type(const Operands& operands);

// Lets the kernel see the operand as elements of `dtype` in `shape`: where it lies if that can be,
// else as a copy without gaps.
void see(Operand& operand, DType dtype, std::span<const int64_t> shape);

// A one-dimensional operand, of its own type.
Vector see_vector(Operand& operand, int64_t size);

}  // namespace normgrad

// Returns from the enclosing function if `expression` is not ok.
#define NORMGRAD_RETURN_IF_ERROR(expression)                                      \
  do {                                                                            \
    if (::normgrad::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
