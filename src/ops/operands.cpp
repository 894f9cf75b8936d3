#include "ops/operands.hpp"

#include <cmath>
#include <cstdio>
#include <string>

namespace normgrad {

Status check_types(const Operands& operands) {
  for (const Operand* operand : {&operands.dy, &operands.dx}) {
    if (operand->present && operand->tensor.dtype != operands.x.tensor.dtype) {
      return {Code::kBadDType, std::string(operand->name) + ": expected " +
                                   name_of(operands.x.tensor.dtype) + " like " + operands.x.name +
                                   ", got " + name_of(operand->tensor.dtype)};
    }
  }
  return {};
}

Status check_shapes(Operands& operands) {
  for (Operand* operand : operands.all()) {
    if (operand->present) NORMGRAD_RETURN_IF_ERROR(check_shape(operand->name, operand->tensor));
  }
  for (const Operand* operand : {&operands.dy, &operands.dx}) {
    const std::vector<int64_t>& shape = operands.x.tensor.shape;
    if (!operand->present || operand->tensor.shape == shape) continue;
    return {Code::kBadShape, std::string(operand->name) + ": expected shape " + to_string(shape) +
                                 " like " + operands.x.name + ", got " +
                                 to_string(operand->tensor.shape)};
  }
  return {};
}

Status expect_shape(const Operand& operand, const std::vector<int64_t>& shape) {
  if (!operand.present || operand.tensor.shape == shape) return {};
  return {Code::kBadShape, std::string(operand.name) + ": expected shape " + to_string(shape) +
                               ", got " + to_string(operand.tensor.shape)};
}

Status check_strides(Operands& operands) {
  for (Operand* operand : operands.all()) {
    if (!operand->present) continue;
    NORMGRAD_RETURN_IF_ERROR(
        check_strides(operand->name, operand->tensor, operand->output, operand->extent));
  }
  return {};
}

Vector vector_of(const Operand& operand) {
  if (!operand.present) return {};
  return {true, operand.tensor.dtype, operand.tensor.strides[0]};
}

Status check_eps(const char* name, double eps, bool used) {
  char value[32];
  std::snprintf(value, sizeof value, "%g", eps);
  if (!std::isfinite(eps) || eps < 0) {
    return {Code::kBadArgument, std::string(name) + ": expected a finite value >= 0, got " + value};
  }
  if (eps != 0 && !used) {
    return {Code::kBadArgument,
            std::string(name) + ": expected 0, since these statistics contain it already, got " +
                value};
  }
  return {};
}

}  // namespace normgrad
