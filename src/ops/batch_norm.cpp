#include "normgrad/batch_norm.hpp"

#include <cmath>
#include <string>

#include "ops/prepare.hpp"

namespace normgrad {
namespace {

Status check_call(const BatchNorm& call) {
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
  const auto absent = [](const char* name, const char* why) -> Status {
    return {Code::kBadArgument, std::string(name) + ": required " + why + ", but absent"};
  };
  const bool mean = call.running_mean.has_value(), variance = call.running_variance.has_value();
  if (call.frozen && !mean) return absent(names.running_mean, "with frozen statistics");
  if (call.frozen && !variance) return absent(names.running_variance, "with frozen statistics");
  if (!mean && variance) return absent(names.running_mean, "beside the running variance");
  if (mean && !variance) return absent(names.running_variance, "beside the running mean");
  if (call.frozen && (call.mean || call.spread)) {
    return {Code::kBadArgument, std::string(call.mean ? names.mean : names.spread) +
                                    ": expected none, since frozen statistics are not saved"};
  }
  return {};
}

}  // namespace

Status prepare(const BatchNorm& call, Device device, Prepared& prepared) {
  NORMGRAD_RETURN_IF_ERROR(check_call(call));
  ChannelsForwardProblem problem;
  problem.frozen = call.frozen;
  problem.spread_is_rstd = call.statistics == Statistics::kMeanRstd;
  problem.eps = call.eps;
  problem.momentum = call.momentum;
  prepared.operands = operands_of(call);
  return prepare_channels_forward(problem, call.channel_axis, device, prepared);
}

}  // namespace normgrad
