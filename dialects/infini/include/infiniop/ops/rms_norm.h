/* RMSNorm over the last dimension, of length D:
 *
 *   y = x * r * w,  r = 1 / sqrt(mean(x^2) + epsilon)
 *
 * A row whose mean(x^2) + epsilon is exactly 0 gets y = 0. RMSNormBackward has no epsilon;
 * normgradCreateRMSNormBackwardDescriptor takes the one that was given here. */
#ifndef INFINIOP_RMS_NORM_H
#define INFINIOP_RMS_NORM_H

#include "../handle.h"
#include "../operator_descriptor.h"
#include "../tensor_descriptor.h"

typedef struct InfiniopDescriptor *infiniopRMSNormDescriptor_t;

/* F16, F32 or BF16: one dtype for y and x; w may have another.
 *   y, x   (..., D), 1 to 8 dimensions, the last contiguous, the others with any strides
 *   w      (D), any stride
 * epsilon is finite and not negative. y must not overlap itself.
 *
 * BAD_PARAM: a null or destroyed handle or descriptor, or epsilon. DEVICE_TYPE_NOT_SUPPORTED: the
 * handle's device. BAD_TENSOR_DTYPE, BAD_TENSOR_SHAPE, BAD_TENSOR_STRIDES: in this order of checks.
 * On failure *desc_ptr is NULL. */
__INFINI_C __export infiniStatus_t infiniopCreateRMSNormDescriptor(
    infiniopHandle_t handle, infiniopRMSNormDescriptor_t *desc_ptr,
    infiniopTensorDescriptor_t y_desc, infiniopTensorDescriptor_t x_desc,
    infiniopTensorDescriptor_t w_desc, float epsilon);

/* Bytes that the computation needs; any alignment, any content. */
__INFINI_C __export infiniStatus_t infiniopGetRMSNormWorkspaceSize(infiniopRMSNormDescriptor_t desc,
                                                                   size_t *size);

/* Overwrites y, which may be exactly x (same pointer, same layout); nothing else may overlap it.
 * A failed call writes nothing. */
__INFINI_C __export infiniStatus_t infiniopRMSNorm(infiniopRMSNormDescriptor_t desc,
                                                   void *workspace, size_t workspace_size, void *y,
                                                   const void *x, const void *w, void *stream);

/* NULL: success. BAD_PARAM: not a live descriptor of this operator. */
__INFINI_C __export infiniopStatus_t
infiniopDestroyRMSNormDescriptor(infiniopRMSNormDescriptor_t desc);

#endif
