// The operands of a call by role, and the checks that all operators share.
#pragma once

#include <array>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "normgrad/plan.hpp"
#include "normgrad/tensor.hpp"
#include "ops/layout.hpp"
#include "ops/problem.hpp"
#include "ops/return_if_error.hpp"

namespace normgrad {

// What types an operand may have.
enum class Types {
  kFloats,  // f32, f16, bf16
  kSums,    // and f64
  kCounts,  // floats, i32, i64
  kCount,   // i64
};

// One operand of a call: what it is called, and where its elements lie.
struct Operand {
  const char* name = "";
  bool present = false;
  bool output = false;
  bool updated = false;  // an output that is read first
  Types types = Types::kFloats;
  Tensor tensor;
  Extent extent;
  View view;            // what the kernel sees
  bool staged = false;  // it sees a copy in the workspace
  float offset = 0;     // to which this is added
};

struct Operands {
  Operand x, dy, gamma, mean, spread, dx, dgamma, dbeta, sum_dy, sum_dy_xmu, count, squares, dh;
  Operand residual, beta, y, h, x_hat, saved_mean, saved_spread, running_mean, running_variance;
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
inline constexpr std::array<Role, 22> kRoles = {{
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
    {&Operands::count, nullptr, &Buffers::count},
    {&Operands::squares, nullptr, &Buffers::squares},
    {&Operands::dh, &Buffers::dh, nullptr},
    {&Operands::residual, &Buffers::residual, nullptr},
    {&Operands::beta, &Buffers::beta, nullptr},
    {&Operands::y, nullptr, &Buffers::y},
    {&Operands::h, nullptr, &Buffers::h},
    {&Operands::x_hat, nullptr, &Buffers::x_hat},
    {&Operands::saved_mean, nullptr, &Buffers::saved_mean},
    {&Operands::saved_spread, nullptr, &Buffers::saved_spread},
    {&Operands::running_mean, nullptr, &Buffers::running_mean},
    {&Operands::running_variance, nullptr, &Buffers::running_variance},
}};

inline void set(Operand& operand, const char* name, std::optional<Tensor> tensor, bool output,
                Types types = Types::kFloats) {
  operand.name = name;
  operand.present = tensor.has_value();
  operand.output = output;
  operand.types = types;
  if (tensor) operand.tensor = *std::move(tensor);
}

// What passes between the two steps of a BatchNorm: the first writes it, the second, which cannot
// do without counts, reads it.
template <class Call>
void set_step(const Call& call, Operands& o) {
  constexpr bool writes = !std::is_same_v<decltype(call.count), Tensor>;
  const OperandNames& names = call.names;
  set(o.count, names.count, call.count, writes, writes ? Types::kCount : Types::kCounts);
  if constexpr (requires { call.squares; }) {
    set(writes ? o.saved_mean : o.mean, names.mean, call.mean, writes, Types::kSums);
    set(o.squares, names.squares, call.squares, writes, Types::kSums);
  } else {
    set(o.sum_dy, names.sum_dy, call.sum_dy, writes, Types::kSums);
    set(o.sum_dy_xmu, names.sum_dy_xmu, call.sum_dy_xmu, writes, Types::kSums);
  }
}

// The operands of a call: their tensors where present, and their names in any case.
template <class Call>
Operands operands_of(const Call& call) {
  Operands o;
  const OperandNames& names = call.names;
  set(o.x, names.x, call.x, false);
  // Not every operator has all of these.
  if constexpr (requires { call.gamma; }) set(o.gamma, names.gamma, call.gamma, false);
  if constexpr (requires { call.count; }) set_step(call, o);
  if constexpr (requires { call.y; }) {
    if constexpr (requires { call.residual; }) {
      set(o.residual, names.residual, call.residual, false);
      set(o.h, names.h, call.h, true);
    }
    if constexpr (requires { call.beta; }) set(o.beta, names.beta, call.beta, false);
    set(o.y, names.y, call.y, true);
    if constexpr (requires { call.x_hat; }) set(o.x_hat, names.x_hat, call.x_hat, true);
    if constexpr (requires { call.saved_mean; }) {
      set(o.saved_mean, names.saved_mean, call.saved_mean, true);
      set(o.saved_spread, names.saved_spread, call.saved_spread, true);
    } else {
      if constexpr (requires { call.mean; }) set(o.saved_mean, names.mean, call.mean, true);
      set(o.saved_spread, names.spread, call.spread, true);
    }
    if constexpr (requires { call.running_mean; }) {
      bool moves = true;
      if constexpr (requires { call.frozen; }) moves = !call.frozen;
      set(o.running_mean, names.running_mean, call.running_mean, moves);
      set(o.running_variance, names.running_variance, call.running_variance, moves);
      o.running_mean.updated = o.running_variance.updated = moves;
    }
  } else if constexpr (requires { call.dy; }) {
    set(o.dy, names.dy, call.dy, false);
    if constexpr (requires { call.mean; }) set(o.mean, names.mean, call.mean, false);
    set(o.spread, names.spread, call.spread, false);
    if constexpr (requires { call.dh; }) set(o.dh, names.dh, call.dh, false);
    if constexpr (requires { call.dx; }) set(o.dx, names.dx, call.dx, true);
    if constexpr (requires { call.dgamma; }) set(o.dgamma, names.dgamma, call.dgamma, true);
    if constexpr (requires { call.dbeta; }) set(o.dbeta, names.dbeta, call.dbeta, true);
    if constexpr (requires { call.accumulate; })
      o.dgamma.updated = o.dbeta.updated = call.accumulate;
  }
  return o;
}

// Each is what its operand may be; what has the shape of x has its type, too, but for dx.
Status check_types(const Operands& operands);

// Every operand by itself (rank, overflow), then those of the shape of x against it.
Status check_shapes(Operands& operands);

// Every operand by itself; fills in the extents.
Status check_strides(Operands& operands);

// Of a checked shape.
int64_t elements_of(const Operand& operand);

// The operand, if present, has `count` elements: one per `what`.
Status expect_count(const Operand& operand, int64_t count, const char* what);

// eps is finite and not negative; where it is not `used`, it has to be 0.
Status check_eps(const char* name, double eps, bool used);

// The offset of gamma is finite.
Status check_offset(double offset);

// The type that kernels compute x, dy and dx in: that of x, or float32 where dx has another.
DType data_type(const Operands& operands);

// Lets the kernel see the operand as elements of `dtype` in `shape`: where it lies if that can be,
// else as a copy without gaps.
void see(Operand& operand, DType dtype, std::span<const int64_t> shape);

// A one-dimensional operand, of its own type.
Vector see_vector(Operand& operand, int64_t size);
// `parts` of them.
Parts see_parts(Operand& operand, int64_t parts, int64_t size);

// gamma + offset: a copy, unless the offset is 0.
Vector see_gamma(Operand& gamma, double offset, int64_t size);

}  // namespace normgrad
