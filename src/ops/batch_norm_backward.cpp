#include "normgrad/batch_norm_backward.hpp"

#include <string>

#include "ops/prepare.hpp"

namespace normgrad {
namespace {

ChannelsProblem::Strides strides_of(const Operand& operand) {
  if (!operand.present) return {};
  const std::vector<int64_t>& s = operand.tensor.strides;
  return {s[0], s[1], s[2]};
}

// Kernels walk along the length or along the channels.
Status check_contiguous_axis(const Operands& o, const ChannelsProblem& problem) {
  if (problem.contiguous_along_length() || problem.contiguous_along_channels()) return {};
  std::string text = std::string(o.x.name) + ", " + o.dy.name +
                     ": expected stride 1 along the last axis of all, or along the channels of "
                     "all; got strides " +
                     to_string(o.x.tensor.strides) + ", " + to_string(o.dy.tensor.strides);
  if (o.dx.present) text += " and " + to_string(o.dx.tensor.strides) + " of " + o.dx.name;
  return {Code::kBadStrides, text};
}

}  // namespace

Status prepare(const BatchNormBackward& call, Device device, Prepared& prepared) {
  if (call.statistics == Statistics::kXHatStd) {
    return {Code::kBadArgument,
            "statistics: expected mean and variance or mean and rstd, got x_hat"};
  }
  const bool spread_is_rstd = call.statistics == Statistics::kMeanRstd;
  NORMGRAD_RETURN_IF_ERROR(check_eps(call.names.eps, call.eps, !spread_is_rstd));

  Operands& o = prepared.operands = operands_of(call);
  NORMGRAD_RETURN_IF_ERROR(check_types(o));
  NORMGRAD_RETURN_IF_ERROR(check_shapes(o));
  const std::vector<int64_t>& shape = o.x.tensor.shape;
  if (shape.size() != 3) {
    return {Code::kBadShape, std::string(o.x.name) + ": expected 3 axes (N, C, L), got " +
                                 std::to_string(shape.size())};
  }
  for (const Operand* operand : {&o.gamma, &o.mean, &o.spread, &o.dgamma, &o.dbeta}) {
    NORMGRAD_RETURN_IF_ERROR(expect_shape(*operand, {shape[1]}));
  }
  NORMGRAD_RETURN_IF_ERROR(check_strides(o));

  ChannelsProblem problem;
  problem.dtype = o.x.tensor.dtype;
  problem.samples = shape[0];
  problem.channels = shape[1];
  problem.length = shape[2];
  problem.x = strides_of(o.x);
  problem.dy = strides_of(o.dy);
  problem.dx = strides_of(o.dx);
  problem.spread_is_rstd = spread_is_rstd;
  problem.mean = vector_of(o.mean);
  problem.spread = vector_of(o.spread);
  problem.eps = call.eps;
  problem.frozen = call.frozen;
  problem.has_dx = o.dx.present;
  problem.gamma = vector_of(o.gamma);
  problem.dgamma = vector_of(o.dgamma);
  problem.dbeta = vector_of(o.dbeta);
  NORMGRAD_RETURN_IF_ERROR(check_contiguous_axis(o, problem));
  const bool writes = problem.dgamma.present || problem.dbeta.present ||
                      (problem.has_dx && problem.samples * problem.length > 0);
  return bind(&Backend::channels, problem, /*empty=*/problem.channels == 0 || !writes, device,
              prepared);
}

}  // namespace normgrad
