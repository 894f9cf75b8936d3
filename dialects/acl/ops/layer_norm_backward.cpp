// aclnnLayerNormBackward: input, mean and rstd are given.
#include "normgrad/layer_norm_backward.hpp"

#include "aclnnop/aclnn_layer_norm_backward.h"
#include "check.hpp"

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

namespace {

constexpr char kOp[] = "aclnnLayerNormBackward";

struct Call {
  const aclTensor *dy, *x;
  const aclIntArray* normalized_shape;
  const aclTensor *mean, *rstd, *weight, *bias;
  const aclBoolArray* mask;
  // As given; what the mask leaves out is looked at for its type only.
  const aclTensor *dx, *dgamma, *dbeta;

  const aclTensor* wanted(int output) const {
    const aclTensor* const outputs[] = {dx, dgamma, dbeta};
    return mask->values[output] ? outputs[output] : nullptr;
  }
};

int32_t check_pointers(const Call& c) {
  if (const int32_t status = check_required({{"gradOut", c.dy},
                                             {"input", c.x},
                                             {"normalizedShape", c.normalized_shape},
                                             {"mean", c.mean},
                                             {"rstd", c.rstd},
                                             {"outputMask", c.mask}})) {
    return status;
  }
  if (const int32_t status = check_mask(c.mask)) return status;
  if (c.mask->values[0] && !c.dx) return null_argument("gradInputOut");
  if (c.mask->values[1] && !c.dgamma) return null_argument("gradWeightOut");
  if (c.mask->values[2] && !c.dbeta) return null_argument("gradBiasOut");
  return check_optional({{"weightOptional", c.weight},
                         {"biasOptional", c.bias},
                         {"gradInputOut", c.dx},
                         {"gradWeightOut", c.dgamma},
                         {"gradBiasOut", c.dbeta}});
}

int32_t check_types(const Call& c) {
  if (const int32_t status =
          check_dtypes({{"gradOut", c.dy}, {"input", c.x}, {"mean", c.mean}, {"rstd", c.rstd}})) {
    return status;
  }
  if (const int32_t status = check_dtype({"gradOut", c.dy}, c.x->dtype, " as input")) return status;
  if (const int32_t status = check_dtypes({{"weightOptional", c.weight}})) return status;
  if (const int32_t status = check_parameter_dtype({"weightOptional", c.weight}, {"input", c.x})) {
    return status;
  }
  return check_dtypes({{"biasOptional", c.bias},
                       {"gradInputOut", c.dx},
                       {"gradWeightOut", c.dgamma},
                       {"gradBiasOut", c.dbeta}});
}

int32_t check_shapes(const Call& c) {
  if (const int32_t status = check_ranks({{"gradOut", c.dy},
                                          {"input", c.x},
                                          {"mean", c.mean},
                                          {"rstd", c.rstd},
                                          {"gradInputOut", c.wanted(0)},
                                          {"gradWeightOut", c.wanted(1)},
                                          {"gradBiasOut", c.wanted(2)}},
                                         0, 8)) {
    return status;
  }
  if (const int32_t status = check_normalized_shape(c.normalized_shape, c.x)) return status;
  const Shape& shape = c.x->view.shape;
  const Shape& normalized = c.normalized_shape->values;
  const char* as_normalized = " as normalizedShape";
  if (const int32_t s = check_shape({"weightOptional", c.weight}, normalized, as_normalized)) {
    return s;
  }
  if (const int32_t s = check_shape({"biasOptional", c.bias}, normalized, as_normalized)) return s;
  if (const int32_t s = check_shape({"gradOut", c.dy}, shape, " as input")) return s;
  if (const int32_t s = check_shape({"mean", c.mean}, c.rstd->view.shape, " as rstd")) return s;
  const int64_t* const split = shape.data() + (shape.size() - normalized.size());
  const int64_t rows = elements(shape.data(), split);
  const int64_t cols = elements(split, shape.data() + shape.size());
  if (const int32_t s = check_elements({"mean", c.mean}, rows, "row of input")) return s;
  if (const int32_t s = check_shape({"gradInputOut", c.wanted(0)}, shape, " as input")) return s;
  const char* of_normalized = "element of normalizedShape";
  if (const int32_t s = check_elements({"gradWeightOut", c.wanted(1)}, cols, of_normalized)) {
    return s;
  }
  return check_elements({"gradBiasOut", c.wanted(2)}, cols, of_normalized);
}

int32_t check(const Call& c) {
  if (const int32_t status = check_pointers(c)) return status;
  if (const int32_t status = check_types(c)) return status;
  if (const int32_t status = check_shapes(c)) return status;
  return check_layouts({{"gradOut", c.dy},
                        {"input", c.x},
                        {"mean", c.mean},
                        {"rstd", c.rstd},
                        {"weightOptional", c.weight},
                        {"biasOptional", c.bias},
                        {"gradInputOut", c.wanted(0)},
                        {"gradWeightOut", c.wanted(1)},
                        {"gradBiasOut", c.wanted(2)}});
}

int32_t plan(const Call& c, uint64_t* workspace_size, aclOpExecutor** executor) {
  const Operands operands = {.x = c.x,
                             .dy = c.dy,
                             .gamma = c.weight,
                             .mean = c.mean,
                             .spread = c.rstd,
                             .dx = c.wanted(0),
                             .dgamma = c.wanted(1),
                             .dbeta = c.wanted(2)};
  const normgrad::LayerNormBackward call = {
      .x = c.x->view,
      .dy = c.dy->view,
      .gamma = view_of(c.weight),
      .statistics = normgrad::Statistics::kMeanRstd,
      .mean = c.mean->view,
      .spread = c.rstd->view,
      .normalized_axes = static_cast<int>(c.normalized_shape->values.size()),
      .dx = view_of(operands.dx.tensor),
      .dgamma = view_of(operands.dgamma.tensor),
      .dbeta = view_of(operands.dbeta.tensor),
      .names = {.x = "input",
                .dy = "gradOut",
                .gamma = "weightOptional",
                .mean = "mean",
                .spread = "rstd",
                .dx = "gradInputOut",
                .dgamma = "gradWeightOut",
                .dbeta = "gradBiasOut"},
  };
  return prepare(kOp, call, operands, workspace_size, executor);
}

}  // namespace

aclnnStatus aclnnLayerNormBackwardGetWorkspaceSize(
    const aclTensor* gradOut, const aclTensor* input, const aclIntArray* normalizedShape,
    const aclTensor* mean, const aclTensor* rstd, const aclTensor* weightOptional,
    const aclTensor* biasOptional, const aclBoolArray* outputMask, aclTensor* gradInputOut,
    aclTensor* gradWeightOut, aclTensor* gradBiasOut, uint64_t* workspaceSize,
    aclOpExecutor** executor) {
  return guarded(kNoExecutor, [&] {
    if (const int32_t status = check_results(workspaceSize, executor)) return status;
    const Call call = {gradOut,      input,          normalizedShape, mean,
                       rstd,         weightOptional, biasOptional,    outputMask,
                       gradInputOut, gradWeightOut,  gradBiasOut};
    if (const int32_t status = check(call)) return status;
    return plan(call, workspaceSize, executor);
  });
}

aclnnStatus aclnnLayerNormBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                   aclrtStream stream) {
  return normgradAclRun(kOp, workspace, workspaceSize, executor, stream);
}
