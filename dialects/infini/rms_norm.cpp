// InfiniOP's RMSNorm: leaves nothing for RMSNormBackward, which looks at x again.
#include "normgrad/rms_norm.hpp"

#include "descriptor.hpp"
#include "infiniop/ops/rms_norm.h"

using namespace normgrad::infini;  // NOLINT: the C functions below are this namespace's face

infiniStatus_t infiniopCreateRMSNormDescriptor(infiniopHandle_t handle,
                                               infiniopRMSNormDescriptor_t* desc_ptr,
                                               infiniopTensorDescriptor_t y_desc,
                                               infiniopTensorDescriptor_t x_desc,
                                               infiniopTensorDescriptor_t w_desc, float epsilon) {
  return guard([&] {
    const Operand operands[] = {{"y", y_desc, false}, {"x", x_desc, false}, {"w", w_desc, false}};
    if (infiniStatus_t status = check_operands(handle, desc_ptr, operands, /*one_dtype=*/false)) {
      return status;
    }
    const normgrad::RmsNorm call = {
        .x = x_desc->tensor,
        .gamma = w_desc->tensor,
        .eps = epsilon,
        .y = y_desc->tensor,
        .names = {.x = "x", .gamma = "w", .y = "y", .eps = "epsilon"},
    };
    normgrad::Plan plan;
    if (infiniStatus_t status = make_plan(handle, call, plan)) return status;
    if (infiniStatus_t status = check_shape(operands[2], {{x_desc->tensor.shape.back()}})) {
      return status;
    }
    for (const int data : {0, 1}) {
      if (infiniStatus_t status = check_last_axis(operands[data])) return status;
    }
    return publish_plan(handle, plan, kRmsNorm, desc_ptr);
  });
}

infiniStatus_t infiniopGetRMSNormWorkspaceSize(infiniopRMSNormDescriptor_t desc, size_t* size) {
  return workspace_size(desc, kRmsNorm, size);
}

infiniStatus_t infiniopRMSNorm(infiniopRMSNormDescriptor_t desc, void* workspace,
                               size_t workspace_size, void* y, const void* x, const void* w,
                               void* stream) {
  return execute(desc, kRmsNorm, {.x = x, .gamma = w, .y = y}, workspace, workspace_size, stream);
}

infiniopStatus_t infiniopDestroyRMSNormDescriptor(infiniopRMSNormDescriptor_t desc) {
  return destroy(desc, kRmsNorm, "desc");
}
