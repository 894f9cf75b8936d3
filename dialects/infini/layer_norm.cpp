// InfiniOP's LayerNorm: leaves x_hat and standard deviation for LayerNormBackward.
#include "normgrad/layer_norm.hpp"

#include "descriptor.hpp"
#include "infiniop/ops/layer_norm.h"

using namespace normgrad::infini;  // NOLINT: the C functions below are this namespace's face

infiniStatus_t infiniopCreateLayerNormDescriptor(
    infiniopHandle_t handle, infiniopLayerNormDescriptor_t* desc_ptr,
    infiniopTensorDescriptor_t output_desc, infiniopTensorDescriptor_t input_standardization_desc,
    infiniopTensorDescriptor_t input_std_deviation_desc, infiniopTensorDescriptor_t input_desc,
    infiniopTensorDescriptor_t weight_desc, infiniopTensorDescriptor_t bias_desc, float eps) {
  return guard([&] {
    const Operand operands[] = {
        {"output", output_desc, false},
        {"input_standardization", input_standardization_desc, false},
        {"input_std_deviation", input_std_deviation_desc, false},
        {"input", input_desc, false},
        {"weight", weight_desc, false},
        {"bias", bias_desc, true},
    };
    if (infiniStatus_t status = check_operands(handle, desc_ptr, operands, /*one_dtype=*/true)) {
      return status;
    }
    const normgrad::LayerNorm call = {
        .x = input_desc->tensor,
        .gamma = weight_desc->tensor,
        .beta = optional_tensor(bias_desc),
        .eps = eps,
        .y = output_desc->tensor,
        .x_hat = input_standardization_desc->tensor,
        .spread = input_std_deviation_desc->tensor,
        .statistics = normgrad::Statistics::kXHatStd,
        .names = {.x = "input",
                  .gamma = "weight",
                  .spread = "input_std_deviation",
                  .beta = "bias",
                  .y = "output",
                  .x_hat = "input_standardization"},
    };
    normgrad::Plan plan;
    if (infiniStatus_t status = make_plan(handle, call, plan)) return status;
    const std::vector<int64_t>& shape = input_desc->tensor.shape;
    for (const int parameter : {4, 5}) {
      if (infiniStatus_t status = check_shape(operands[parameter], {{shape.back()}})) return status;
    }
    if (infiniStatus_t status = check_row_shape(operands[2], shape)) return status;
    for (const int data : {0, 1, 3}) {
      if (infiniStatus_t status = check_last_axis(operands[data])) return status;
    }
    return publish_plan(handle, plan, kLayerNorm, desc_ptr);
  });
}

infiniStatus_t infiniopGetLayerNormWorkspaceSize(infiniopLayerNormDescriptor_t desc, size_t* size) {
  return workspace_size(desc, kLayerNorm, size);
}

infiniStatus_t infiniopLayerNorm(infiniopLayerNormDescriptor_t desc, void* workspace,
                                 size_t workspace_size, void* output, void* input_standardization,
                                 void* input_std_deviation, const void* input, const void* weight,
                                 const void* bias, void* stream) {
  return execute(desc, kLayerNorm,
                 {.x = input,
                  .gamma = weight,
                  .beta = bias,
                  .y = output,
                  .x_hat = input_standardization,
                  .saved_spread = input_std_deviation},
                 workspace, workspace_size, stream);
}

infiniopStatus_t infiniopDestroyLayerNormDescriptor(infiniopLayerNormDescriptor_t desc) {
  return destroy(desc, kLayerNorm, "desc");
}
