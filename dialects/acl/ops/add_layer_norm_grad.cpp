// aclnnAddLayerNormGrad: what was normalized is given as two terms, so that their sum comes first.
#include "aclnnop/aclnn_add_layer_norm_grad.h"
#include "check.hpp"
#include "normgrad/layer_norm_backward.hpp"
#include "normgrad/rms_norm.hpp"

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

namespace {

constexpr char kOp[] = "aclnnAddLayerNormGrad";

struct Call {
  const aclTensor *dy, *x1, *x2, *rstd, *mean, *gamma, *dsum, *dx, *dgamma, *dbeta;

  int normalized_axes() const { return static_cast<int>(gamma->view.shape.size()); }
};

int32_t check_pointers(const Call& c) {
  if (const int32_t status = check_required({{"dy", c.dy},
                                             {"x1", c.x1},
                                             {"x2", c.x2},
                                             {"rstd", c.rstd},
                                             {"mean", c.mean},
                                             {"gamma", c.gamma},
                                             {"dxOut", c.dx},
                                             {"dgammaOut", c.dgamma},
                                             {"dbetaOut", c.dbeta}})) {
    return status;
  }
  return check_optional({{"dsumOptional", c.dsum}});
}

int32_t check(const Call& c) {
  if (const int32_t status = check_pointers(c)) return status;
  const Argument x1 = {"x1", c.x1}, gamma = {"gamma", c.gamma};
  const Arguments like_x1 = {{"dy", c.dy}, {"x2", c.x2}, {"dsumOptional", c.dsum}, {"dxOut", c.dx}};
  const Arguments floats = {{"rstd", c.rstd}, {"mean", c.mean}};
  const Arguments like_gamma = {{"dgammaOut", c.dgamma}, {"dbetaOut", c.dbeta}};
  if (const int32_t status = check_dtypes({x1, gamma})) return status;
  for (const Argument& argument : like_x1) {
    if (const int32_t status = check_dtype(argument, c.x1->dtype, " as x1")) return status;
  }
  if (const int32_t status = check_parameter_dtype(gamma, x1)) return status;
  for (const Arguments& arguments : {floats, like_gamma}) {
    for (const Argument& argument : arguments) {
      if (const int32_t status = check_dtype(argument, ACL_FLOAT, "")) return status;
    }
  }
  if (const int32_t status = check_rows(x1, gamma, floats)) return status;
  for (const Argument& argument : like_x1) {
    if (const int32_t status = check_shape(argument, c.x1->view.shape, " as x1")) return status;
  }
  for (const Argument& argument : like_gamma) {
    if (const int32_t s = check_shape(argument, c.gamma->view.shape, " as gamma")) return s;
  }
  for (const Arguments& arguments : {like_x1, floats, like_gamma}) {
    if (const int32_t status = check_layouts(arguments)) return status;
  }
  return check_layouts({x1, gamma});
}

// The sum alone, without a norm.
int32_t plan_sum(const Call& c, Sum& sum) {
  const normgrad::Tensor h = {c.x1->view.dtype, c.x1->view.shape};
  const normgrad::RmsNorm call = {
      .x = c.x1->view,
      .residual = c.x2->view,
      .normalized_axes = c.normalized_axes(),
      .h = h,
      .names = {.x = "x1", .residual = "x2", .h = "workspace"},
  };
  const normgrad::Status status = normgrad::Plan::create(call, device(), sum.plan);
  if (!status.ok()) return answer(status, kNoExecutor);
  const int64_t count = elements(h.shape.data(), h.shape.data() + h.shape.size());
  sum.bytes = static_cast<size_t>(count) * size_of(h.dtype);
  return kSuccess;
}

int32_t plan(const Call& c, uint64_t* workspace_size, aclOpExecutor** executor) {
  Sum sum;
  if (const int32_t status = plan_sum(c, sum)) return status;
  const Operands operands = {.x = c.x1,
                             .dy = c.dy,
                             .gamma = c.gamma,
                             .mean = c.mean,
                             .spread = c.rstd,
                             .dx = c.dx,
                             .dgamma = c.dgamma,
                             .dbeta = c.dbeta,
                             .dh = c.dsum,
                             .residual = c.x2};
  const normgrad::LayerNormBackward call = {
      .x = {c.x1->view.dtype, c.x1->view.shape},
      .dy = c.dy->view,
      .gamma = c.gamma->view,
      .statistics = normgrad::Statistics::kMeanRstd,
      .mean = c.mean->view,
      .spread = c.rstd->view,
      .normalized_axes = c.normalized_axes(),
      .dh = view_of(c.dsum),
      .dx = c.dx->view,
      .dgamma = c.dgamma->view,
      .dbeta = c.dbeta->view,
      .names = {.x = "workspace",
                .dy = "dy",
                .gamma = "gamma",
                .mean = "mean",
                .spread = "rstd",
                .dx = "dxOut",
                .dgamma = "dgammaOut",
                .dbeta = "dbetaOut",
                .dh = "dsumOptional"},
  };
  return prepare(kOp, call, operands, workspace_size, executor, sum);
}

}  // namespace

aclnnStatus aclnnAddLayerNormGradGetWorkspaceSize(
    const aclTensor* dy, const aclTensor* x1, const aclTensor* x2, const aclTensor* rstd,
    const aclTensor* mean, const aclTensor* gamma, const aclTensor* dsumOptional,
    const aclTensor* dxOut, const aclTensor* dgammaOut, const aclTensor* dbetaOut,
    uint64_t* workspaceSize, aclOpExecutor** executor) {
  return guarded(kNoExecutor, [&] {
    if (const int32_t status = check_results(workspaceSize, executor)) return status;
    const Call call = {dy, x1, x2, rstd, mean, gamma, dsumOptional, dxOut, dgammaOut, dbetaOut};
    if (const int32_t status = check(call)) return status;
    return plan(call, workspaceSize, executor);
  });
}

aclnnStatus aclnnAddLayerNormGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                  aclrtStream stream) {
  return normgradAclRun(kOp, workspace, workspaceSize, executor, stream);
}
