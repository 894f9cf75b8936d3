// aclnnBatchNormReduceBackward: the sums that one device makes.
#include "aclnnop/aclnn_batch_norm_backward_reduce.h"
#include "batch_norm.hpp"
#include "normgrad/batch_norm_backward.hpp"

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

namespace {

constexpr char kOp[] = "aclnnBatchNormReduceBackward";

struct Call {
  const aclTensor *dy, *x, *mean, *invstd, *weight;
  bool wants_sums, wants_dgamma, wants_dbeta;
  const aclTensor *sum_dy, *sum_dy_xmu, *dgamma, *dbeta;
};

// Forgets the outputs that are not wanted.
int32_t check_pointers(Call& c) {
  if (const int32_t status = check_required(
          {{"gradOut", c.dy}, {"input", c.x}, {"mean", c.mean}, {"invstd", c.invstd}})) {
    return status;
  }
  if (!c.wants_sums) c.sum_dy = c.sum_dy_xmu = nullptr;
  if (!c.wants_dgamma) c.dgamma = nullptr;
  if (!c.wants_dbeta) c.dbeta = nullptr;
  if (c.wants_sums && !c.sum_dy) return null_argument("sumDy");
  if (c.wants_sums && !c.sum_dy_xmu) return null_argument("sumDyXmu");
  if (c.wants_dgamma && !c.dgamma) return null_argument("gradWeight");
  if (c.wants_dbeta && !c.dbeta) return null_argument("gradBias");
  return check_optional({{"weight", c.weight},
                         {"sumDy", c.sum_dy},
                         {"sumDyXmu", c.sum_dy_xmu},
                         {"gradWeight", c.dgamma},
                         {"gradBias", c.dbeta}});
}

int32_t check(Call& c) {
  if (const int32_t status = check_pointers(c)) return status;
  return check_batch_norm(c.x, c.dy, nullptr, Formats::kChannelsFirst,
                          {{"mean", c.mean},
                           {"invstd", c.invstd},
                           {"weight", c.weight},
                           {"sumDy", c.sum_dy},
                           {"sumDyXmu", c.sum_dy_xmu},
                           {"gradWeight", c.dgamma},
                           {"gradBias", c.dbeta}});
}

int32_t plan(const Call& c, uint64_t* workspace_size, aclOpExecutor** executor) {
  const Operands operands = {.x = c.x,
                             .dy = c.dy,
                             .mean = c.mean,
                             .spread = c.invstd,
                             .dgamma = c.dgamma,
                             .dbeta = c.dbeta,
                             .sum_dy = c.sum_dy,
                             .sum_dy_xmu = c.sum_dy_xmu};
  const normgrad::BatchNormReduceBackward call = {
      .x = c.x->view,
      .dy = c.dy->view,
      .mean = c.mean->view,
      .spread = c.invstd->view,
      .sum_dy = view_of(c.sum_dy),
      .sum_dy_xmu = view_of(c.sum_dy_xmu),
      .dgamma = view_of(c.dgamma),
      .dbeta = view_of(c.dbeta),
      .names = {.x = "input",
                .dy = "gradOut",
                .mean = "mean",
                .spread = "invstd",
                .dgamma = "gradWeight",
                .dbeta = "gradBias",
                .sum_dy = "sumDy",
                .sum_dy_xmu = "sumDyXmu"},
  };
  return prepare(kOp, call, operands, workspace_size, executor);
}

}  // namespace

aclnnStatus aclnnBatchNormReduceBackwardGetWorkspaceSize(
    const aclTensor* gradOut, const aclTensor* input, const aclTensor* mean,
    const aclTensor* invstd, const aclTensor* weight, const bool inputG, const bool weightG,
    const bool biasG, aclTensor* sumDy, aclTensor* sumDyXmu, aclTensor* gradWeight,
    aclTensor* gradBias, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return guarded(kNoExecutor, [&] {
    if (const int32_t status = check_results(workspaceSize, executor)) return status;
    Call call = {gradOut, input, mean,  invstd,   weight,     inputG,
                 weightG, biasG, sumDy, sumDyXmu, gradWeight, gradBias};
    if (const int32_t status = check(call)) return status;
    return plan(call, workspaceSize, executor);
  });
}

aclnnStatus aclnnBatchNormReduceBackward(void* workspace, uint64_t workspaceSize,
                                         aclOpExecutor* executor, aclrtStream stream) {
  return normgradAclRun(kOp, workspace, workspaceSize, executor, stream);
}
