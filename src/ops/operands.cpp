#include "ops/operands.hpp"

#include <cmath>
#include <cstdio>
#include <string>

namespace normgrad {

namespace {

bool allows(Types types, DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return types == Types::kSums;
    case DType::kI32:
      return types == Types::kCounts;
    case DType::kI64:
      return types == Types::kCounts || types == Types::kCount;
    default:
      return types != Types::kCount;
  }
}

}  // namespace

Status check_types(const Operands& operands) {
  constexpr const char* kExpected[] = {"f32, f16 or bf16", "f32, f16, bf16 or f64",
                                       "i64, i32, f32, f16 or bf16", "i64"};
  for (const Role& role : kRoles) {
    const Operand& operand = operands.*role.operand;
    const DType dtype = operand.tensor.dtype;
    if (!operand.present || allows(operand.types, dtype)) continue;
    return {Code::kBadDType, std::string(operand.name) + ": expected " +
                                 kExpected[static_cast<int>(operand.types)] + ", got " +
                                 name_of(dtype)};
  }
  const DType expected = operands.x.tensor.dtype;
  for (const Operand Operands::*like_x : {&Operands::dy, &Operands::dh, &Operands::residual,
                                          &Operands::y, &Operands::h, &Operands::x_hat}) {
    const Operand& operand = operands.*like_x;
    if (!operand.present || operand.tensor.dtype == expected) continue;
    return {Code::kBadDType, std::string(operand.name) + ": expected " + name_of(expected) +
                                 " like " + operands.x.name + ", got " +
                                 name_of(operand.tensor.dtype)};
  }
  return {};
}

Status check_shapes(Operands& operands) {
  for (const Role& role : kRoles) {
    Operand& operand = operands.*role.operand;
    if (operand.present) NORMGRAD_RETURN_IF_ERROR(check_shape(operand.name, operand.tensor));
  }
  for (const Operand* operand : {&operands.dy, &operands.dx, &operands.dh, &operands.residual,
                                 &operands.y, &operands.h, &operands.x_hat}) {
    const std::vector<int64_t>& shape = operands.x.tensor.shape;
    if (!operand->present || operand->tensor.shape == shape) continue;
    return {Code::kBadShape, std::string(operand->name) + ": expected shape " + to_string(shape) +
                                 " like " + operands.x.name + ", got " +
                                 to_string(operand->tensor.shape)};
  }
  return {};
}

Status check_strides(Operands& operands) {
  for (const Role& role : kRoles) {
    Operand& operand = operands.*role.operand;
    if (!operand.present) continue;
    NORMGRAD_RETURN_IF_ERROR(
        check_strides(operand.name, operand.tensor, operand.output, operand.extent));
  }
  return {};
}

int64_t elements_of(const Operand& operand) {
  int64_t elements = 1;
  for (const int64_t extent : operand.tensor.shape) elements *= extent;
  return elements;
}

Status expect_count(const Operand& operand, int64_t count, const char* what) {
  if (!operand.present || elements_of(operand) == count) return {};
  return {Code::kBadShape, std::string(operand.name) + ": expected " + std::to_string(count) +
                               (count == 1 ? " element" : " elements") + ", one per " + what +
                               ", got shape " + to_string(operand.tensor.shape)};
}

Status check_eps(const char* name, double eps, bool used) {
  const auto refuse = [&](const char* expected) -> Status {
    char value[32];
    std::snprintf(value, sizeof value, "%g", eps);
    return {Code::kBadArgument, std::string(name) + ": expected " + expected + ", got " + value};
  };
  if (!std::isfinite(eps) || eps < 0) return refuse("a finite value >= 0");
  if (eps != 0 && !used) return refuse("0, since these statistics contain it already");
  return {};
}

Status check_offset(double offset) {
  if (std::isfinite(offset)) return {};
  return {Code::kBadArgument,
          std::string("gamma_offset: expected a finite value, got ") + (std::isnan(offset) ? "nan"
                                                                        : offset > 0       ? "inf"
                                                                                     : "-inf")};
}

DType data_type(const Operands& operands) {
  const DType x = operands.x.tensor.dtype;
  return operands.dx.present && operands.dx.tensor.dtype != x ? DType::kF32 : x;
}

void see(Operand& operand, DType dtype, std::span<const int64_t> shape) {
  operand.staged =
      !reshape(view_of(operand.tensor), shape, operand.view) || operand.tensor.dtype != dtype;
  if (operand.staged) operand.view = contiguous_view(dtype, shape);
}

Vector see_vector(Operand& operand, int64_t size) {
  if (!operand.present) return {};
  see(operand, operand.tensor.dtype, {&size, 1});
  return {true, operand.view.dtype, operand.view.strides[0]};
}

Parts see_parts(Operand& operand, int64_t parts, int64_t size) {
  if (!operand.present) return {};
  const int64_t shape[] = {parts, size};
  see(operand, operand.tensor.dtype, shape);
  return {{true, operand.view.dtype, operand.view.strides[1]}, operand.view.strides[0]};
}

Vector see_gamma(Operand& gamma, double offset, int64_t size) {
  if (!gamma.present || offset == 0) return see_vector(gamma, size);
  gamma.staged = true;
  gamma.offset = static_cast<float>(offset);
  gamma.view = contiguous_view(DType::kF32, {&size, 1});
  return {true, DType::kF32};
}

}  // namespace normgrad
