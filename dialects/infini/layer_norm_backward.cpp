// InfiniOP's LayerNormBackward: x_hat and standard deviation are given.
#include "normgrad/layer_norm_backward.hpp"

#include "descriptor.hpp"
#include "infiniop/normgrad.h"

using namespace normgrad::infini;  // NOLINT: the C functions below are this namespace's face

namespace {

infiniStatus_t create(infiniopHandle_t handle, infiniopLayerNormBackwardDescriptor_t* desc_ptr,
                      infiniopTensorDescriptor_t grad_input, infiniopTensorDescriptor_t grad_weight,
                      infiniopTensorDescriptor_t grad_bias, infiniopTensorDescriptor_t grad_output,
                      infiniopTensorDescriptor_t weight, infiniopTensorDescriptor_t x_hat,
                      infiniopTensorDescriptor_t std_deviation, bool extended) noexcept {
  return guard([&] {
    const Operand operands[] = {
        {"grad_input", grad_input, extended},
        {"grad_weight", grad_weight, extended},
        {"grad_bias", grad_bias, true},
        {"grad_output", grad_output, false},
        {"weight", weight, extended},
        {"input_standardization", x_hat, false},
        {"input_std_deviation", std_deviation, false},
    };
    if (infiniStatus_t status = check_operands(handle, desc_ptr, operands, !extended)) {
      return status;
    }
    const normgrad::LayerNormBackward call = {
        .x = x_hat->tensor,
        .dy = grad_output->tensor,
        .gamma = optional_tensor(weight),
        .statistics = normgrad::Statistics::kXHatStd,
        .mean = {},
        .spread = std_deviation->tensor,
        .dx = optional_tensor(grad_input),
        .dgamma = optional_tensor(grad_weight),
        .dbeta = optional_tensor(grad_bias),
        .names = {.x = "input_standardization",
                  .dy = "grad_output",
                  .gamma = "weight",
                  .spread = "input_std_deviation",
                  .dx = "grad_input",
                  .dgamma = "grad_weight",
                  .dbeta = "grad_bias"},
    };
    normgrad::Plan plan;
    if (infiniStatus_t status = make_plan(handle, call, plan)) return status;
    const std::vector<int64_t>& shape = x_hat->tensor.shape;
    for (const int parameter : {1, 2, 4}) {
      if (infiniStatus_t status = check_shape(operands[parameter], {{shape.back()}})) return status;
    }
    if (infiniStatus_t status = check_row_shape(operands[6], shape)) return status;
    for (const int data : {0, 3, 5}) {
      if (infiniStatus_t status = check_last_axis(operands[data])) return status;
    }
    return publish_plan(handle, plan, kLayerNormBackward, desc_ptr);
  });
}

}  // namespace

infiniStatus_t infiniopCreateLayerNormBackwardDescriptor(
    infiniopHandle_t handle, infiniopLayerNormBackwardDescriptor_t* desc_ptr,
    infiniopTensorDescriptor_t grad_input_desc, infiniopTensorDescriptor_t grad_weight_desc,
    infiniopTensorDescriptor_t grad_bias_desc, infiniopTensorDescriptor_t grad_output_desc,
    infiniopTensorDescriptor_t weight_desc, infiniopTensorDescriptor_t input_standardization_desc,
    infiniopTensorDescriptor_t input_std_deviation_desc) {
  return create(handle, desc_ptr, grad_input_desc, grad_weight_desc, grad_bias_desc,
                grad_output_desc, weight_desc, input_standardization_desc, input_std_deviation_desc,
                /*extended=*/false);
}

infiniStatus_t normgradCreateLayerNormBackwardDescriptor(
    infiniopHandle_t handle, infiniopLayerNormBackwardDescriptor_t* desc_ptr,
    infiniopTensorDescriptor_t grad_input_desc, infiniopTensorDescriptor_t grad_weight_desc,
    infiniopTensorDescriptor_t grad_bias_desc, infiniopTensorDescriptor_t grad_output_desc,
    infiniopTensorDescriptor_t weight_desc, infiniopTensorDescriptor_t input_standardization_desc,
    infiniopTensorDescriptor_t input_std_deviation_desc) {
  return create(handle, desc_ptr, grad_input_desc, grad_weight_desc, grad_bias_desc,
                grad_output_desc, weight_desc, input_standardization_desc, input_std_deviation_desc,
                /*extended=*/true);
}

infiniStatus_t infiniopGetLayerNormBackwardWorkspaceSize(infiniopLayerNormBackwardDescriptor_t desc,
                                                         size_t* size) {
  return workspace_size(desc, kLayerNormBackward, size);
}

infiniStatus_t infiniopLayerNormBackward(infiniopLayerNormBackwardDescriptor_t desc,
                                         void* workspace, size_t workspace_size, void* grad_input,
                                         void* grad_weight, void* grad_bias,
                                         const void* grad_output, const void* weight,
                                         const void* input_standardization,
                                         const void* input_std_deviation, void* stream) {
  return execute(desc, kLayerNormBackward,
                 {.x = input_standardization,
                  .dy = grad_output,
                  .gamma = weight,
                  .spread = input_std_deviation,
                  .dx = grad_input,
                  .dgamma = grad_weight,
                  .dbeta = grad_bias},
                 workspace, workspace_size, stream);
}

infiniopStatus_t infiniopDestroyLayerNormBackwardDescriptor(
    infiniopLayerNormBackwardDescriptor_t desc) {
  return destroy(desc, kLayerNormBackward, "desc");
}
