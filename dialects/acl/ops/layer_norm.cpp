// aclnnLayerNorm: leaves mean and rstd for aclnnLayerNormBackward.
#include "normgrad/layer_norm.hpp"

#include "aclnnop/aclnn_layer_norm.h"
#include "check.hpp"

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

namespace {

constexpr char kOp[] = "aclnnLayerNorm";

struct Call {
  const aclTensor* x;
  const aclIntArray* normalized_shape;
  const aclTensor *weight, *bias;
  const aclTensor *y, *mean, *rstd;
};

int32_t check_pointers(const Call& c) {
  if (const int32_t status =
          check_required({{"input", c.x}, {"normalizedShape", c.normalized_shape}, {"out", c.y}})) {
    return status;
  }
  return check_optional({{"weightOptional", c.weight},
                         {"biasOptional", c.bias},
                         {"meanOutOptional", c.mean},
                         {"rstdOutOptional", c.rstd}});
}

int32_t check_types(const Call& c) {
  const Argument x = {"input", c.x};
  if (const int32_t status = check_dtypes({x,
                                           {"weightOptional", c.weight},
                                           {"biasOptional", c.bias},
                                           {"meanOutOptional", c.mean},
                                           {"rstdOutOptional", c.rstd}})) {
    return status;
  }
  if (const int32_t status = check_parameter_dtype({"weightOptional", c.weight}, x)) return status;
  if (const int32_t status = check_parameter_dtype({"biasOptional", c.bias}, x)) return status;
  return check_dtype({"out", c.y}, c.x->dtype, " as input");
}

int32_t check_shapes(const Call& c) {
  if (const int32_t status = check_ranks(
          {{"input", c.x}, {"meanOutOptional", c.mean}, {"rstdOutOptional", c.rstd}}, 0, 8)) {
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
  if (const int32_t s = check_shape({"out", c.y}, shape, " as input")) return s;
  const int64_t rows = elements(shape.data(), shape.data() + (shape.size() - normalized.size()));
  if (const int32_t s = check_elements({"meanOutOptional", c.mean}, rows, "row of input")) return s;
  return check_elements({"rstdOutOptional", c.rstd}, rows, "row of input");
}

int32_t check(const Call& c) {
  if (const int32_t status = check_pointers(c)) return status;
  if (const int32_t status = check_types(c)) return status;
  if (const int32_t status = check_shapes(c)) return status;
  return check_layouts({{"input", c.x},
                        {"weightOptional", c.weight},
                        {"biasOptional", c.bias},
                        {"out", c.y},
                        {"meanOutOptional", c.mean},
                        {"rstdOutOptional", c.rstd}});
}

}  // namespace

aclnnStatus aclnnLayerNormGetWorkspaceSize(
    const aclTensor* input, const aclIntArray* normalizedShape, const aclTensor* weightOptional,
    const aclTensor* biasOptional, double eps, aclTensor* out, aclTensor* meanOutOptional,
    aclTensor* rstdOutOptional, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return guarded(kNoExecutor, [&] {
    if (const int32_t status = check_results(workspaceSize, executor)) return status;
    if (const int32_t status = check({input, normalizedShape, weightOptional, biasOptional, out,
                                      meanOutOptional, rstdOutOptional})) {
      return status;
    }
    const Operands operands = {.x = input,
                               .gamma = weightOptional,
                               .beta = biasOptional,
                               .y = out,
                               .saved_mean = meanOutOptional,
                               .saved_spread = rstdOutOptional};
    const normgrad::LayerNorm call = {
        .x = input->view,
        .gamma = view_of(weightOptional),
        .beta = view_of(biasOptional),
        .eps = eps,
        .normalized_axes = static_cast<int>(normalizedShape->values.size()),
        .y = out->view,
        .mean = view_of(meanOutOptional),
        .spread = view_of(rstdOutOptional),
        .statistics = normgrad::Statistics::kMeanRstd,
        .names = {.x = "input",
                  .gamma = "weightOptional",
                  .mean = "meanOutOptional",
                  .spread = "rstdOutOptional",
                  .beta = "biasOptional",
                  .y = "out"},
    };
    return prepare(kOp, call, operands, workspaceSize, executor);
  });
}

aclnnStatus aclnnLayerNorm(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                           aclrtStream stream) {
  return normgradAclRun(kOp, workspace, workspaceSize, executor, stream);
}
