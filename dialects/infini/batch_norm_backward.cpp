// InfiniOP's BatchNormBackward: input, mean and variance are given.
#include "normgrad/batch_norm_backward.hpp"

#include "descriptor.hpp"
#include "infiniop/normgrad.h"

using namespace normgrad::infini;  // NOLINT: the C functions below are this namespace's face

namespace {

// The ordinary entry point has neither epsilon nor frozen statistics, and wants contiguous data.
struct Extension {
  double epsilon;
  bool frozen;
};

infiniStatus_t create(infiniopHandle_t handle, infiniopBatchNormBackwardDescriptor_t* desc_ptr,
                      infiniopTensorDescriptor_t grad_input, infiniopTensorDescriptor_t grad_weight,
                      infiniopTensorDescriptor_t grad_bias, infiniopTensorDescriptor_t input,
                      infiniopTensorDescriptor_t grad_output, infiniopTensorDescriptor_t weight,
                      infiniopTensorDescriptor_t mean, infiniopTensorDescriptor_t variance,
                      const Extension* extension) noexcept {
  return guard([&] {
    const bool extended = extension != nullptr;
    const Operand operands[] = {
        {"grad_input", grad_input, extended}, {"input", input, false},
        {"grad_output", grad_output, false},  {"grad_weight", grad_weight, extended},
        {"grad_bias", grad_bias, extended},   {"weight", weight, extended},
        {"running_mean", mean, false},        {"running_var", variance, false},
    };
    if (infiniStatus_t status = check_operands(handle, desc_ptr, operands, !extended)) {
      return status;
    }
    const normgrad::BatchNormBackward call = {
        .x = input->tensor,
        .dy = grad_output->tensor,
        .gamma = optional_tensor(weight),
        .statistics = normgrad::Statistics::kMeanVariance,
        .mean = mean->tensor,
        .spread = variance->tensor,
        .eps = extended ? extension->epsilon : 0,
        .frozen = extended && extension->frozen,
        .dx = optional_tensor(grad_input),
        .dgamma = optional_tensor(grad_weight),
        .dbeta = optional_tensor(grad_bias),
        .names = {.x = "input",
                  .dy = "grad_output",
                  .gamma = "weight",
                  .mean = "running_mean",
                  .spread = "running_var",
                  .dx = "grad_input",
                  .dgamma = "grad_weight",
                  .dbeta = "grad_bias",
                  .eps = "epsilon"},
    };
    normgrad::Plan plan;
    if (infiniStatus_t status = make_plan(handle, call, plan)) return status;
    const std::vector<int64_t>& shape = input->tensor.shape;
    if (shape.size() != 3) {
      return fail(INFINI_STATUS_BAD_TENSOR_SHAPE, "input: expected 3 dimensions (N, C, L), got %zu",
                  shape.size());
    }
    for (int parameter = 3; parameter < 8; ++parameter) {
      if (infiniStatus_t status = check_shape(operands[parameter], {{shape[1]}})) return status;
    }
    for (int data = 0; data < 3 && !extended; ++data) {
      if (infiniStatus_t status = check_contiguous(operands[data])) return status;
    }
    return publish_plan(handle, plan, kBatchNormBackward, desc_ptr);
  });
}

}  // namespace

infiniStatus_t infiniopCreateBatchNormBackwardDescriptor(
    infiniopHandle_t handle, infiniopBatchNormBackwardDescriptor_t* desc_ptr,
    infiniopTensorDescriptor_t grad_input_desc, infiniopTensorDescriptor_t grad_weight_desc,
    infiniopTensorDescriptor_t grad_bias_desc, infiniopTensorDescriptor_t input_desc,
    infiniopTensorDescriptor_t grad_output_desc, infiniopTensorDescriptor_t weight_desc,
    infiniopTensorDescriptor_t running_mean_desc, infiniopTensorDescriptor_t running_var_desc) {
  return create(handle, desc_ptr, grad_input_desc, grad_weight_desc, grad_bias_desc, input_desc,
                grad_output_desc, weight_desc, running_mean_desc, running_var_desc, nullptr);
}

infiniStatus_t normgradCreateBatchNormBackwardDescriptor(
    infiniopHandle_t handle, infiniopBatchNormBackwardDescriptor_t* desc_ptr,
    infiniopTensorDescriptor_t grad_input_desc, infiniopTensorDescriptor_t grad_weight_desc,
    infiniopTensorDescriptor_t grad_bias_desc, infiniopTensorDescriptor_t input_desc,
    infiniopTensorDescriptor_t grad_output_desc, infiniopTensorDescriptor_t weight_desc,
    infiniopTensorDescriptor_t running_mean_desc, infiniopTensorDescriptor_t running_var_desc,
    double epsilon, int frozen) {
  const Extension extension = {epsilon, frozen != 0};
  return create(handle, desc_ptr, grad_input_desc, grad_weight_desc, grad_bias_desc, input_desc,
                grad_output_desc, weight_desc, running_mean_desc, running_var_desc, &extension);
}

infiniStatus_t infiniopGetBatchNormBackwardWorkspaceSize(infiniopBatchNormBackwardDescriptor_t desc,
                                                         size_t* size) {
  return workspace_size(desc, kBatchNormBackward, size);
}

infiniStatus_t infiniopBatchNormBackward(infiniopBatchNormBackwardDescriptor_t desc,
                                         void* workspace, size_t workspace_size, void* grad_input,
                                         void* grad_weight, void* grad_bias, const void* input,
                                         const void* grad_output, const void* weight,
                                         const void* running_mean, const void* running_var,
                                         void* stream) {
  return execute(desc, kBatchNormBackward,
                 {.x = input,
                  .dy = grad_output,
                  .gamma = weight,
                  .mean = running_mean,
                  .spread = running_var,
                  .dx = grad_input,
                  .dgamma = grad_weight,
                  .dbeta = grad_bias},
                 workspace, workspace_size, stream);
}

infiniopStatus_t infiniopDestroyBatchNormBackwardDescriptor(
    infiniopBatchNormBackwardDescriptor_t desc) {
  return destroy(desc, kBatchNormBackward, "desc");
}
