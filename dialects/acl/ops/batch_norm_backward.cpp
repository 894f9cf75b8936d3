// aclnnBatchNormBackward: input and the statistics of the batch, or frozen ones, are given.
#include "normgrad/batch_norm_backward.hpp"

#include <cmath>

#include "aclnnop/aclnn_batch_norm_backward.h"
#include "batch_norm.hpp"

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

namespace {

constexpr char kOp[] = "aclnnBatchNormBackward";

struct Call {
  const aclTensor *dy, *x, *weight;
  Argument mean, spread;  // the two that the mode uses
  double eps;
  const aclBoolArray* mask;
  const aclTensor *dx, *dgamma, *dbeta;
};

// Forgets the outputs that are not wanted.
int32_t check_pointers(Call& c) {
  if (const int32_t status =
          check_required({{"gradOut", c.dy}, {"input", c.x}, {"outputMask", c.mask}})) {
    return status;
  }
  if (const int32_t status = check_mask(c.mask)) return status;
  if (const int32_t status =
          check_required({{c.mean.name, c.mean.tensor}, {c.spread.name, c.spread.tensor}})) {
    return status;
  }
  const auto& mask = c.mask->values;
  if (!mask[0]) c.dx = nullptr;
  if (!mask[1]) c.dgamma = nullptr;
  if (!mask[2]) c.dbeta = nullptr;
  if (mask[0] && !c.dx) return null_argument("gradInput");
  if (mask[1] && !c.dgamma) return null_argument("gradWeight");
  if (mask[2] && !c.dbeta) return null_argument("gradBias");
  return check_optional(
      {{"weight", c.weight}, {"gradInput", c.dx}, {"gradWeight", c.dgamma}, {"gradBias", c.dbeta}});
}

int32_t check(Call& c) {
  if (const int32_t status = check_pointers(c)) return status;
  if (const int32_t status = check_batch_norm(c.x, c.dy, c.dx, Formats::kAny,
                                              {{"weight", c.weight},
                                               c.mean,
                                               c.spread,
                                               {"gradWeight", c.dgamma},
                                               {"gradBias", c.dbeta}})) {
    return status;
  }
  if (c.eps >= 0 && std::isfinite(c.eps)) return kSuccess;
  return refuse(kInvalid, "eps: expected a number of 0 or more, got %g", c.eps);
}

int32_t plan(const Call& c, bool training, uint64_t* workspace_size, aclOpExecutor** executor) {
  const Operands operands = {.x = c.x,
                             .dy = c.dy,
                             .gamma = c.weight,
                             .mean = c.mean.tensor,
                             .spread = c.spread.tensor,
                             .dx = c.dx,
                             .dgamma = c.dgamma,
                             .dbeta = c.dbeta};
  const normgrad::BatchNormBackward call = {
      .x = c.x->view,
      .dy = c.dy->view,
      .gamma = view_of(c.weight),
      .statistics =
          training ? normgrad::Statistics::kMeanRstd : normgrad::Statistics::kMeanVariance,
      .mean = c.mean.tensor->view,
      .spread = c.spread.tensor->view,
      .eps = training ? 0 : c.eps,
      .frozen = !training,
      .channel_axis = channel_axis(c.x),
      .dx = view_of(c.dx),
      .dgamma = view_of(c.dgamma),
      .dbeta = view_of(c.dbeta),
      .names = {.x = "input",
                .dy = "gradOut",
                .gamma = "weight",
                .mean = c.mean.name,
                .spread = c.spread.name,
                .dx = "gradInput",
                .dgamma = "gradWeight",
                .dbeta = "gradBias"},
  };
  return prepare(kOp, call, operands, workspace_size, executor);
}

}  // namespace

aclnnStatus aclnnBatchNormBackwardGetWorkspaceSize(
    const aclTensor* gradOut, const aclTensor* input, const aclTensor* weight,
    const aclTensor* runningMean, const aclTensor* runningVar, const aclTensor* saveMean,
    const aclTensor* saveInvstd, bool training, double eps, const aclBoolArray* outputMask,
    aclTensor* gradInput, aclTensor* gradWeight, aclTensor* gradBias, uint64_t* workspaceSize,
    aclOpExecutor** executor) {
  return guarded(kNoExecutor, [&] {
    if (const int32_t status = check_results(workspaceSize, executor)) return status;
    const Argument mean =
        training ? Argument{"saveMean", saveMean} : Argument{"runningMean", runningMean};
    const Argument spread =
        training ? Argument{"saveInvstd", saveInvstd} : Argument{"runningVar", runningVar};
    Call call = {gradOut, input,      weight,    mean,       spread,
                 eps,     outputMask, gradInput, gradWeight, gradBias};
    if (const int32_t status = check(call)) return status;
    return plan(call, training, workspaceSize, executor);
  });
}

aclnnStatus aclnnBatchNormBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                   aclrtStream stream) {
  return normgradAclRun(kOp, workspace, workspaceSize, executor, stream);
}
