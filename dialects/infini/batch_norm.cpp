// InfiniOP's BatchNorm: moves running statistics or, by the extension, leaves those of the batch.
#include "normgrad/batch_norm.hpp"

#include "descriptor.hpp"
#include "infiniop/normgrad.h"

using namespace normgrad::infini;  // NOLINT: the C functions below are this namespace's face

namespace {

// Without a momentum the statistics are saved, not moved.
infiniStatus_t create(infiniopHandle_t handle, infiniopBatchNormDescriptor_t* desc_ptr,
                      infiniopTensorDescriptor_t output, infiniopTensorDescriptor_t mean,
                      infiniopTensorDescriptor_t variance, infiniopTensorDescriptor_t input,
                      infiniopTensorDescriptor_t weight, infiniopTensorDescriptor_t bias,
                      std::optional<double> momentum, double eps) noexcept {
  return guard([&] {
    const bool extended = !momentum;
    const Operand operands[] = {
        {"output", output, false},
        {"input", input, false},
        {extended ? "mean" : "running_mean", mean, false},
        {extended ? "var" : "running_var", variance, false},
        {"weight", weight, extended},
        {"bias", bias, extended},
    };
    if (infiniStatus_t status = check_operands(handle, desc_ptr, operands, !extended)) {
      return status;
    }
    normgrad::BatchNorm call = {
        .x = input->tensor,
        .gamma = optional_tensor(weight),
        .beta = optional_tensor(bias),
        .eps = eps,
        .y = output->tensor,
        .names = {.x = "input",
                  .gamma = "weight",
                  .mean = "mean",
                  .spread = "var",
                  .beta = "bias",
                  .y = "output",
                  .running_mean = "running_mean",
                  .running_variance = "running_var",
                  .eps = extended ? "epsilon" : "eps"},
    };
    if (momentum) call.momentum = *momentum;
    (extended ? call.mean : call.running_mean) = mean->tensor;
    (extended ? call.spread : call.running_variance) = variance->tensor;
    normgrad::Plan plan;
    if (infiniStatus_t status = make_plan(handle, call, plan)) return status;
    const std::vector<int64_t>& shape = input->tensor.shape;
    if (shape.size() != 3) {
      return fail(INFINI_STATUS_BAD_TENSOR_SHAPE, "input: expected 3 dimensions (N, C, L), got %zu",
                  shape.size());
    }
    for (int parameter = 2; parameter < 6; ++parameter) {
      if (infiniStatus_t status = check_shape(operands[parameter], {{shape[1]}})) return status;
    }
    for (int data = 0; data < 2 && !extended; ++data) {
      if (infiniStatus_t status = check_contiguous(operands[data])) return status;
    }
    return publish_plan(handle, plan, kBatchNorm, desc_ptr);
  });
}

}  // namespace

infiniStatus_t infiniopCreateBatchNormDescriptor(
    infiniopHandle_t handle, infiniopBatchNormDescriptor_t* desc_ptr,
    infiniopTensorDescriptor_t output_desc, infiniopTensorDescriptor_t running_mean_desc,
    infiniopTensorDescriptor_t running_var_desc, infiniopTensorDescriptor_t input_desc,
    infiniopTensorDescriptor_t weight_desc, infiniopTensorDescriptor_t bias_desc, float momentum,
    float eps) {
  return create(handle, desc_ptr, output_desc, running_mean_desc, running_var_desc, input_desc,
                weight_desc, bias_desc, momentum, eps);
}

infiniStatus_t normgradCreateBatchNormDescriptor(
    infiniopHandle_t handle, infiniopBatchNormDescriptor_t* desc_ptr,
    infiniopTensorDescriptor_t output_desc, infiniopTensorDescriptor_t mean_desc,
    infiniopTensorDescriptor_t var_desc, infiniopTensorDescriptor_t input_desc,
    infiniopTensorDescriptor_t weight_desc, infiniopTensorDescriptor_t bias_desc, double epsilon) {
  return create(handle, desc_ptr, output_desc, mean_desc, var_desc, input_desc, weight_desc,
                bias_desc, std::nullopt, epsilon);
}

infiniStatus_t infiniopGetBatchNormWorkspaceSize(infiniopBatchNormDescriptor_t desc, size_t* size) {
  return workspace_size(desc, kBatchNorm, size);
}

// The plan knows which of the two pairs of statistics it has, and looks at no other.
infiniStatus_t infiniopBatchNorm(infiniopBatchNormDescriptor_t desc, void* workspace,
                                 size_t workspace_size, void* output, void* running_mean,
                                 void* running_var, const void* input, const void* weight,
                                 const void* bias, void* stream) {
  return execute(desc, kBatchNorm,
                 {.x = input,
                  .gamma = weight,
                  .beta = bias,
                  .y = output,
                  .saved_mean = running_mean,
                  .saved_spread = running_var,
                  .running_mean = running_mean,
                  .running_variance = running_var},
                 workspace, workspace_size, stream);
}

infiniopStatus_t infiniopDestroyBatchNormDescriptor(infiniopBatchNormDescriptor_t desc) {
  return destroy(desc, kBatchNorm, "desc");
}
