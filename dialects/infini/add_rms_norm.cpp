// InfiniOP's AddRMSNorm: leaves the sum, which RMSNormBackward takes as x.
#include "infiniop/ops/add_rms_norm.h"

#include "descriptor.hpp"
#include "normgrad/rms_norm.hpp"

using namespace normgrad::infini;  // NOLINT: the C functions below are this namespace's face

infiniStatus_t infiniopCreateAddRMSNormDescriptor(
    infiniopHandle_t handle, infiniopAddRMSNormDescriptor_t* desc_ptr,
    infiniopTensorDescriptor_t y_desc, infiniopTensorDescriptor_t residual_out_desc,
    infiniopTensorDescriptor_t a_desc, infiniopTensorDescriptor_t b_desc,
    infiniopTensorDescriptor_t weight_desc, float epsilon) {
  return guard([&] {
    const Operand operands[] = {{"y", y_desc, false},
                                {"residual_out", residual_out_desc, false},
                                {"a", a_desc, false},
                                {"b", b_desc, false},
                                {"weight", weight_desc, false}};
    if (infiniStatus_t status = check_operands(handle, desc_ptr, operands, /*one_dtype=*/false)) {
      return status;
    }
    const normgrad::RmsNorm call = {
        .x = a_desc->tensor,
        .residual = b_desc->tensor,
        .gamma = weight_desc->tensor,
        .eps = epsilon,
        .y = y_desc->tensor,
        .h = residual_out_desc->tensor,
        .names = {.x = "a",
                  .gamma = "weight",
                  .residual = "b",
                  .y = "y",
                  .h = "residual_out",
                  .eps = "epsilon"},
    };
    normgrad::Plan plan;
    if (infiniStatus_t status = make_plan(handle, call, plan)) return status;
    if (infiniStatus_t status = check_shape(operands[4], {{a_desc->tensor.shape.back()}})) {
      return status;
    }
    for (const int data : {0, 1, 2, 3}) {
      if (infiniStatus_t status = check_last_axis(operands[data])) return status;
    }
    return publish_plan(handle, plan, kAddRmsNorm, desc_ptr);
  });
}

infiniStatus_t infiniopGetAddRMSNormWorkspaceSize(infiniopAddRMSNormDescriptor_t desc,
                                                  size_t* size) {
  return workspace_size(desc, kAddRmsNorm, size);
}

infiniStatus_t infiniopAddRMSNorm(infiniopAddRMSNormDescriptor_t desc, void* workspace,
                                  size_t workspace_size, void* y, void* residual_out, const void* a,
                                  const void* b, const void* weight, void* stream) {
  return execute(desc, kAddRmsNorm,
                 {.x = a, .gamma = weight, .residual = b, .y = y, .h = residual_out}, workspace,
                 workspace_size, stream);
}

infiniopStatus_t infiniopDestroyAddRMSNormDescriptor(infiniopAddRMSNormDescriptor_t desc) {
  return destroy(desc, kAddRmsNorm, "desc");
}
