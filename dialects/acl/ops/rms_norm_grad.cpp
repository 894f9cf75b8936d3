// aclnnRmsNormGrad: x and rstd are given.
#include "aclnnop/aclnn_rms_norm_grad.h"
#include "check.hpp"
#include "normgrad/rms_norm_backward.hpp"

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

namespace {

constexpr char kOp[] = "aclnnRmsNormGrad";

struct Call {
  const aclTensor *dy, *x, *rstd, *gamma, *dx, *dgamma;
};

int32_t check_types(const Call& c) {
  if (const int32_t status = check_dtypes({{"dy", c.dy}, {"x", c.x}, {"gamma", c.gamma}})) {
    return status;
  }
  if (const int32_t status = check_dtype({"dy", c.dy}, c.x->dtype, " as x")) return status;
  if (const int32_t status = check_parameter_dtype({"gamma", c.gamma}, {"x", c.x})) return status;
  if (const int32_t status = check_dtype({"rstd", c.rstd}, ACL_FLOAT, "")) return status;
  if (const int32_t status = check_dtype({"dxOut", c.dx}, c.x->dtype, " as x")) return status;
  return check_dtype({"dgammaOut", c.dgamma}, ACL_FLOAT, "");
}

int32_t check_shapes(const Call& c) {
  const Shape& shape = c.x->view.shape;
  if (const int32_t status = check_rows({"x", c.x}, {"gamma", c.gamma}, {{"rstd", c.rstd}})) {
    return status;
  }
  if (const int32_t status = check_shape({"dy", c.dy}, shape, " as x")) return status;
  if (const int32_t status = check_shape({"dxOut", c.dx}, shape, " as x")) return status;
  return check_shape({"dgammaOut", c.dgamma}, c.gamma->view.shape, " as gamma");
}

int32_t check(const Call& c) {
  if (const int32_t status = check_required({{"dy", c.dy},
                                             {"x", c.x},
                                             {"rstd", c.rstd},
                                             {"gamma", c.gamma},
                                             {"dxOut", c.dx},
                                             {"dgammaOut", c.dgamma}})) {
    return status;
  }
  if (const int32_t status = check_types(c)) return status;
  if (const int32_t status = check_shapes(c)) return status;
  return check_layouts({{"dy", c.dy},
                        {"x", c.x},
                        {"rstd", c.rstd},
                        {"gamma", c.gamma},
                        {"dxOut", c.dx},
                        {"dgammaOut", c.dgamma}});
}

}  // namespace

aclnnStatus aclnnRmsNormGradGetWorkspaceSize(const aclTensor* dy, const aclTensor* x,
                                             const aclTensor* rstd, const aclTensor* gamma,
                                             const aclTensor* dxOut, const aclTensor* dgammaOut,
                                             uint64_t* workspaceSize, aclOpExecutor** executor) {
  return guarded(kNoExecutor, [&] {
    if (const int32_t status = check_results(workspaceSize, executor)) return status;
    if (const int32_t status = check({dy, x, rstd, gamma, dxOut, dgammaOut})) return status;
    const Operands operands = {
        .x = x, .dy = dy, .gamma = gamma, .spread = rstd, .dx = dxOut, .dgamma = dgammaOut};
    const normgrad::RmsNormBackward call = {
        .x = x->view,
        .dy = dy->view,
        .gamma = gamma->view,
        .spread = rstd->view,
        .normalized_axes = static_cast<int>(gamma->view.shape.size()),
        .dx = dxOut->view,
        .dgamma = dgammaOut->view,
        .names = {.x = "x",
                  .dy = "dy",
                  .gamma = "gamma",
                  .spread = "rstd",
                  .dx = "dxOut",
                  .dgamma = "dgammaOut"},
    };
    return prepare(kOp, call, operands, workspaceSize, executor);
  });
}

aclnnStatus aclnnRmsNormGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                             aclrtStream stream) {
  return normgradAclRun(kOp, workspace, workspaceSize, executor, stream);
}
