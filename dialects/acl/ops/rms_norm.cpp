// aclnnRmsNorm: leaves rstd for aclnnRmsNormGrad.
#include "normgrad/rms_norm.hpp"

#include "aclnnop/aclnn_rms_norm.h"
#include "check.hpp"

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

namespace {

constexpr char kOp[] = "aclnnRmsNorm";

int32_t check(const Argument& x, const Argument& gamma, const Argument& y, const Argument& rstd) {
  if (const int32_t status = check_required({{x.name, x.tensor},
                                             {gamma.name, gamma.tensor},
                                             {y.name, y.tensor},
                                             {rstd.name, rstd.tensor}})) {
    return status;
  }
  if (const int32_t status = check_dtypes({x, gamma})) return status;
  if (const int32_t status = check_parameter_dtype(gamma, x)) return status;
  if (const int32_t status = check_dtype(y, x.tensor->dtype, " as x")) return status;
  if (const int32_t status = check_dtype(rstd, ACL_FLOAT, "")) return status;
  if (const int32_t status = check_rows(x, gamma, {rstd})) return status;
  if (const int32_t status = check_shape(y, x.tensor->view.shape, " as x")) return status;
  return check_layouts({x, gamma, y, rstd});
}

}  // namespace

aclnnStatus aclnnRmsNormGetWorkspaceSize(const aclTensor* x, const aclTensor* gamma, double epsilon,
                                         const aclTensor* yOut, const aclTensor* rstdOut,
                                         uint64_t* workspaceSize, aclOpExecutor** executor) {
  return guarded(kNoExecutor, [&] {
    if (const int32_t status = check_results(workspaceSize, executor)) return status;
    if (const int32_t status =
            check({"x", x}, {"gamma", gamma}, {"yOut", yOut}, {"rstdOut", rstdOut})) {
      return status;
    }
    const Operands operands = {.x = x, .gamma = gamma, .y = yOut, .saved_spread = rstdOut};
    const normgrad::RmsNorm call = {
        .x = x->view,
        .gamma = gamma->view,
        .eps = epsilon,
        .normalized_axes = static_cast<int>(gamma->view.shape.size()),
        .y = yOut->view,
        .spread = rstdOut->view,
        .names = {.x = "x", .gamma = "gamma", .spread = "rstdOut", .y = "yOut", .eps = "epsilon"},
    };
    return prepare(kOp, call, operands, workspaceSize, executor);
  });
}

aclnnStatus aclnnRmsNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                         aclrtStream stream) {
  return normgradAclRun(kOp, workspace, workspaceSize, executor, stream);
}
