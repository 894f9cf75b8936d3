// aclnnBatchNormElemtBackward: gradInput from the sums of all devices.
#include "aclnnop/aclnn_batch_norm_elemt_backward.h"
#include "batch_norm.hpp"
#include "normgrad/batch_norm_backward.hpp"

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

namespace {

constexpr char kOp[] = "aclnnBatchNormElemtBackward";

struct Call {
  const aclTensor *dy, *x, *mean, *invstd, *weight, *sum_dy, *sum_dy_xmu, *counter, *dx;
};

int32_t check_counter(const aclTensor* counter) {
  if (counter->dtype != ACL_INT32 && counter->dtype != ACL_FLOAT && counter->dtype != ACL_FLOAT16) {
    return refuse(kInvalid,
                  "counter: expected the type INT32, FLOAT or FLOAT16, got aclDataType %d",
                  static_cast<int>(counter->dtype));
  }
  if (const int32_t status = check_ranks({{"counter", counter}}, 1, 8)) return status;
  return check_layouts({{"counter", counter}});
}

int32_t check(const Call& c) {
  if (const int32_t status = check_required({{"gradOut", c.dy},
                                             {"input", c.x},
                                             {"mean", c.mean},
                                             {"invstd", c.invstd},
                                             {"sumDy", c.sum_dy},
                                             {"sumDyXmu", c.sum_dy_xmu},
                                             {"counter", c.counter},
                                             {"gradInput", c.dx}})) {
    return status;
  }
  if (const int32_t status = check_optional({{"weight", c.weight}})) return status;
  if (const int32_t status = check_counter(c.counter)) return status;
  return check_batch_norm(c.x, c.dy, c.dx, Formats::kChannelsFirst,
                          {{"mean", c.mean},
                           {"invstd", c.invstd},
                           {"weight", c.weight},
                           {"sumDy", c.sum_dy},
                           {"sumDyXmu", c.sum_dy_xmu}});
}

int32_t plan(const Call& c, uint64_t* workspace_size, aclOpExecutor** executor) {
  const Operands operands = {.x = c.x,
                             .dy = c.dy,
                             .gamma = c.weight,
                             .mean = c.mean,
                             .spread = c.invstd,
                             .dx = c.dx,
                             .sum_dy = c.sum_dy,
                             .sum_dy_xmu = c.sum_dy_xmu,
                             .count = c.counter};
  const normgrad::BatchNormElementwiseBackward call = {
      .x = c.x->view,
      .dy = c.dy->view,
      .gamma = view_of(c.weight),
      .mean = c.mean->view,
      .spread = c.invstd->view,
      .sum_dy = c.sum_dy->view,
      .sum_dy_xmu = c.sum_dy_xmu->view,
      .count = c.counter->view,
      .dx = c.dx->view,
      .names = {.x = "input",
                .dy = "gradOut",
                .gamma = "weight",
                .mean = "mean",
                .spread = "invstd",
                .dx = "gradInput",
                .sum_dy = "sumDy",
                .sum_dy_xmu = "sumDyXmu",
                .count = "counter"},
  };
  return prepare(kOp, call, operands, workspace_size, executor);
}

}  // namespace

aclnnStatus aclnnBatchNormElemtBackwardGetWorkspaceSize(
    const aclTensor* gradOut, const aclTensor* input, const aclTensor* mean,
    const aclTensor* invstd, const aclTensor* weight, const aclTensor* sumDy,
    const aclTensor* sumDyXmu, aclTensor* counter, aclTensor* gradInput, uint64_t* workspaceSize,
    aclOpExecutor** executor) {
  return guarded(kNoExecutor, [&] {
    if (const int32_t status = check_results(workspaceSize, executor)) return status;
    const Call call = {gradOut, input, mean, invstd, weight, sumDy, sumDyXmu, counter, gradInput};
    if (const int32_t status = check(call)) return status;
    return plan(call, workspaceSize, executor);
  });
}

aclnnStatus aclnnBatchNormElemtBackward(void* workspace, uint64_t workspaceSize,
                                        aclOpExecutor* executor, aclrtStream stream) {
  return normgradAclRun(kOp, workspace, workspaceSize, executor, stream);
}
