#include "normgrad/batch_norm.hpp"

#include <cmath>
#include <string>

#include "ops/prepare.hpp"

namespace normgrad {
namespace {

Status absent(const char* name, const char* why) {
  return {Code::kBadArgument, std::string(name) + ": required " + why + ", but absent"};
}

// What all that write y or statistics have in common.
template <class Call>
Status check_common(const Call& call) {
  const OperandNames& names = call.names;
  if (call.statistics == Statistics::kXHatStd) {
    return {Code::kBadArgument,
            "statistics: expected mean and variance or mean and rstd, got x_hat"};
  }
  NORMGRAD_RETURN_IF_ERROR(check_eps(names.eps, call.eps, /*used=*/true));
  if (!std::isfinite(call.momentum)) {
    return {Code::kBadArgument,
            "momentum: expected a finite value, got " + std::to_string(call.momentum)};
  }
  const bool mean = call.running_mean.has_value(), variance = call.running_variance.has_value();
  if (!mean && variance) return absent(names.running_mean, "beside the running variance");
  if (mean && !variance) return absent(names.running_variance, "beside the running mean");
  return {};
}

Status check_frozen(const BatchNorm& call) {
  const OperandNames& names = call.names;
  if (!call.running_mean) return absent(names.running_mean, "with frozen statistics");
  if (!call.running_variance) return absent(names.running_variance, "with frozen statistics");
  if (!call.mean && !call.spread) return {};
  return {Code::kBadArgument, std::string(call.mean ? names.mean : names.spread) +
                                  ": expected none, since frozen statistics are not saved"};
}

}  // namespace

Status prepare(const BatchNorm& call, Device device, Prepared& prepared) {
  if (call.frozen) NORMGRAD_RETURN_IF_ERROR(check_frozen(call));
  NORMGRAD_RETURN_IF_ERROR(check_common(call));
  ChannelsForwardProblem problem;
  problem.frozen = call.frozen;
  problem.spread_is_rstd = call.statistics == Statistics::kMeanRstd;
  problem.eps = call.eps;
  problem.momentum = call.momentum;
  prepared.operands = operands_of(call);
  return prepare_channels_forward(problem, call.channel_axis, device, prepared);
}

Status prepare(const BatchNormReduce& call, Device device, Prepared& prepared) {
  ChannelsForwardProblem problem;
  problem.step = ChannelsStep::kReduce;
  prepared.operands = operands_of(call);
  return prepare_channels_forward(problem, call.channel_axis, device, prepared);
}

Status prepare(const BatchNormElementwise& call, Device device, Prepared& prepared) {
  NORMGRAD_RETURN_IF_ERROR(check_common(call));
  ChannelsForwardProblem problem;
  problem.step = ChannelsStep::kElementwise;
  problem.spread_is_rstd = call.statistics == Statistics::kMeanRstd;
  problem.eps = call.eps;
  problem.momentum = call.momentum;
  prepared.operands = operands_of(call);
  return prepare_channels_forward(problem, call.channel_axis, device, prepared);
}

}  // namespace normgrad
