/* AddRMSNorm: a sum and its RMSNorm over the last dimension, of length D:
 *
 *   residual_out = a + b                               rounded to its dtype, then normalized
 *   y            = residual_out * r * weight,  r = 1 / sqrt(mean(residual_out^2) + epsilon)
 *
 * Its gradient is that of an RMSNorm of residual_out, plus the gradient that reached residual_out
 * by other ways. */
#ifndef INFINIOP_ADD_RMS_NORM_H
#define INFINIOP_ADD_RMS_NORM_H

#include "../handle.h"
#include "../operator_descriptor.h"
#include "../tensor_descriptor.h"

typedef struct InfiniopDescriptor *infiniopAddRMSNormDescriptor_t;

/* F16, F32 or BF16: one dtype for y, residual_out, a and b; weight may have another.
 *   y, residual_out, a, b   (..., D), 1 to 8 dimensions, the last contiguous, the others with any
 *                           strides
 *   weight                  (D), any stride
 * epsilon is finite and not negative. Outputs must not overlap themselves.
 *
 * BAD_PARAM: a null or destroyed handle or descriptor, or epsilon. DEVICE_TYPE_NOT_SUPPORTED: the
 * handle's device. BAD_TENSOR_DTYPE, BAD_TENSOR_SHAPE, BAD_TENSOR_STRIDES: in this order of checks.
 * On failure *desc_ptr is NULL. */
__INFINI_C __export infiniStatus_t infiniopCreateAddRMSNormDescriptor(
    infiniopHandle_t handle, infiniopAddRMSNormDescriptor_t *desc_ptr,
    infiniopTensorDescriptor_t y_desc, infiniopTensorDescriptor_t residual_out_desc,
    infiniopTensorDescriptor_t a_desc, infiniopTensorDescriptor_t b_desc,
    infiniopTensorDescriptor_t weight_desc, float epsilon);

/* Bytes that the computation needs; any alignment, any content. */
__INFINI_C __export infiniStatus_t
infiniopGetAddRMSNormWorkspaceSize(infiniopAddRMSNormDescriptor_t desc, size_t *size);

/* Overwrites the outputs. Each of them may be exactly a or b (same pointer, same layout), but not
 * both the same one; nothing else may overlap an output. A failed call writes nothing. */
__INFINI_C __export infiniStatus_t infiniopAddRMSNorm(infiniopAddRMSNormDescriptor_t desc,
                                                      void *workspace, size_t workspace_size,
                                                      void *y, void *residual_out, const void *a,
                                                      const void *b, const void *weight,
                                                      void *stream);

/* NULL: success. BAD_PARAM: not a live descriptor of this operator. */
__INFINI_C __export infiniopStatus_t
infiniopDestroyAddRMSNormDescriptor(infiniopAddRMSNormDescriptor_t desc);

#endif
