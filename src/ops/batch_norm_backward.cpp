#include "normgrad/batch_norm_backward.hpp"

#include "ops/prepare.hpp"

namespace normgrad {
namespace {

// One of two steps, which take rstd.
template <class Call>
Status prepare_step(const Call& call, ChannelsStep step, Device device, Prepared& prepared) {
  ChannelsProblem problem;
  problem.spread_is_rstd = true;
  problem.step = step;
  prepared.operands = operands_of(call);
  return prepare_channels(problem, call.channel_axis, device, prepared);
}

}  // namespace

Status prepare(const BatchNormBackward& call, Device device, Prepared& prepared) {
  if (call.statistics == Statistics::kXHatStd) {
    return {Code::kBadArgument,
            "statistics: expected mean and variance or mean and rstd, got x_hat"};
  }
  ChannelsProblem problem;
  problem.spread_is_rstd = call.statistics == Statistics::kMeanRstd;
  problem.eps = call.eps;
  problem.frozen = call.frozen;
  NORMGRAD_RETURN_IF_ERROR(check_eps(call.names.eps, call.eps, !problem.spread_is_rstd));
  prepared.operands = operands_of(call);
  return prepare_channels(problem, call.channel_axis, device, prepared);
}

Status prepare(const BatchNormReduceBackward& call, Device device, Prepared& prepared) {
  return prepare_step(call, ChannelsStep::kReduce, device, prepared);
}

Status prepare(const BatchNormElementwiseBackward& call, Device device, Prepared& prepared) {
  return prepare_step(call, ChannelsStep::kElementwise, device, prepared);
}

}  // namespace normgrad
