// InfiniOP's RMSNormBackward: r comes from x.
#include "normgrad/rms_norm_backward.hpp"

#include "descriptor.hpp"
#include "infiniop/normgrad.h"

using namespace normgrad::infini;  // NOLINT: the C functions below are this namespace's face

namespace {

infiniStatus_t create(infiniopHandle_t handle, infiniopRMSNormBackwardDescriptor_t* desc_ptr,
                      infiniopTensorDescriptor_t grad_x, infiniopTensorDescriptor_t grad_w,
                      infiniopTensorDescriptor_t grad_y, infiniopTensorDescriptor_t x,
                      infiniopTensorDescriptor_t w, double epsilon, bool extended) noexcept {
  return guard([&] {
    const Operand operands[] = {{"grad_x", grad_x, extended},
                                {"grad_w", grad_w, extended},
                                {"grad_y", grad_y, false},
                                {"x", x, false},
                                {"w", w, extended}};
    if (infiniStatus_t status = check_operands(handle, desc_ptr, operands, !extended)) {
      return status;
    }
    const normgrad::RmsNormBackward call = {
        .x = x->tensor,
        .dy = grad_y->tensor,
        .gamma = optional_tensor(w),
        .eps = epsilon,
        .dx = optional_tensor(grad_x),
        .dgamma = optional_tensor(grad_w),
        .names = {.x = "x",
                  .dy = "grad_y",
                  .gamma = "w",
                  .dx = "grad_x",
                  .dgamma = "grad_w",
                  .eps = "epsilon"},
    };
    normgrad::Plan plan;
    if (infiniStatus_t status = make_plan(handle, call, plan)) return status;
    for (const int parameter : {1, 4}) {
      if (infiniStatus_t status = check_shape(operands[parameter], {{x->tensor.shape.back()}})) {
        return status;
      }
    }
    for (const int data : {0, 2, 3}) {
      if (infiniStatus_t status = check_last_axis(operands[data])) return status;
    }
    return publish_plan(handle, plan, kRmsNormBackward, desc_ptr);
  });
}

}  // namespace

infiniStatus_t infiniopCreateRMSNormBackwardDescriptor(
    infiniopHandle_t handle, infiniopRMSNormBackwardDescriptor_t* desc_ptr,
    infiniopTensorDescriptor_t grad_x_desc, infiniopTensorDescriptor_t grad_w_desc,
    infiniopTensorDescriptor_t grad_y_desc, infiniopTensorDescriptor_t x_desc,
    infiniopTensorDescriptor_t w_desc) {
  return create(handle, desc_ptr, grad_x_desc, grad_w_desc, grad_y_desc, x_desc, w_desc, 0,
                /*extended=*/false);
}

infiniStatus_t normgradCreateRMSNormBackwardDescriptor(
    infiniopHandle_t handle, infiniopRMSNormBackwardDescriptor_t* desc_ptr,
    infiniopTensorDescriptor_t grad_x_desc, infiniopTensorDescriptor_t grad_w_desc,
    infiniopTensorDescriptor_t grad_y_desc, infiniopTensorDescriptor_t x_desc,
    infiniopTensorDescriptor_t w_desc, double epsilon) {
  return create(handle, desc_ptr, grad_x_desc, grad_w_desc, grad_y_desc, x_desc, w_desc, epsilon,
                /*extended=*/true);
}

infiniStatus_t infiniopGetRMSNormBackwardWorkspaceSize(infiniopRMSNormBackwardDescriptor_t desc,
                                                       size_t* size) {
  return workspace_size(desc, kRmsNormBackward, size);
}

infiniStatus_t infiniopRMSNormBackward(infiniopRMSNormBackwardDescriptor_t desc, void* workspace,
                                       size_t workspace_size, void* grad_x, void* grad_w,
                                       const void* grad_y, const void* x, const void* w,
                                       void* stream) {
  return execute(desc, kRmsNormBackward,
                 {.x = x, .dy = grad_y, .gamma = w, .dx = grad_x, .dgamma = grad_w}, workspace,
                 workspace_size, stream);
}

infiniopStatus_t infiniopDestroyRMSNormBackwardDescriptor(
    infiniopRMSNormBackwardDescriptor_t desc) {
  return destroy(desc, kRmsNormBackward, "desc");
}
