/* RMSNormBackward: the gradients of y = x * r * w with r = 1 / sqrt(mean(x^2)) over the last
 * dimension, of length D:
 *
 *   g      = grad_y * w
 *   grad_x = r * (g - x * r^2 * mean(g * x))       means over the row
 *   grad_w = sum of grad_y * x * r over all rows
 *
 * A row of zeros gets grad_x = 0 and adds nothing to grad_w. */
#ifndef INFINIOP_RMS_NORM_BACKWARD_H
#define INFINIOP_RMS_NORM_BACKWARD_H

#include "../handle.h"
#include "../operator_descriptor.h"
#include "../tensor_descriptor.h"

typedef struct InfiniopDescriptor *infiniopRMSNormBackwardDescriptor_t;

/* One dtype for all: F16, F32 or BF16.
 *   grad_x, grad_y, x   (..., D), 1 to 8 dimensions, the last contiguous, the others with any
 *                       strides
 *   grad_w, w           (D), any stride
 * Outputs must not overlap themselves.
 *
 * BAD_PARAM: a null or destroyed handle or descriptor. DEVICE_TYPE_NOT_SUPPORTED: the handle's
 * device. BAD_TENSOR_DTYPE, BAD_TENSOR_SHAPE, BAD_TENSOR_STRIDES: in this order of checks.
 * On failure *desc_ptr is NULL. */
__INFINI_C __export infiniStatus_t infiniopCreateRMSNormBackwardDescriptor(
    infiniopHandle_t handle, infiniopRMSNormBackwardDescriptor_t *desc_ptr,
    infiniopTensorDescriptor_t grad_x_desc, infiniopTensorDescriptor_t grad_w_desc,
    infiniopTensorDescriptor_t grad_y_desc, infiniopTensorDescriptor_t x_desc,
    infiniopTensorDescriptor_t w_desc);

/* Bytes that the computation needs; any alignment, any content. */
__INFINI_C __export infiniStatus_t
infiniopGetRMSNormBackwardWorkspaceSize(infiniopRMSNormBackwardDescriptor_t desc, size_t *size);

/* Overwrites the outputs. grad_x may be exactly grad_y or x (same pointer, same layout); nothing
 * else may overlap an output. A failed call writes nothing. */
__INFINI_C __export infiniStatus_t infiniopRMSNormBackward(infiniopRMSNormBackwardDescriptor_t desc,
                                                           void *workspace, size_t workspace_size,
                                                           void *grad_x, void *grad_w,
                                                           const void *grad_y, const void *x,
                                                           const void *w, void *stream);

/* NULL: success. BAD_PARAM: not a live descriptor of this operator. */
__INFINI_C __export infiniopStatus_t
infiniopDestroyRMSNormBackwardDescriptor(infiniopRMSNormBackwardDescriptor_t desc);

#endif
