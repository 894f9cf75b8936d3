/* LayerNorm over the last dimension, of length L:
 *
 *   std    = sqrt(Var[x] + eps)                      biased variance of the row
 *   x_hat  = (x - E[x]) / std
 *   output = x_hat * weight + bias
 *
 * input_standardization is x_hat and input_std_deviation is std: what LayerNormBackward takes. A
 * row whose std is exactly 0 gets x_hat = 0. */
#ifndef INFINIOP_LAYER_NORM_H
#define INFINIOP_LAYER_NORM_H

#include "../handle.h"
#include "../operator_descriptor.h"
#include "../tensor_descriptor.h"

typedef struct InfiniopDescriptor *infiniopLayerNormDescriptor_t;

/* One dtype for all: F16, F32 or BF16.
 *   output, input_standardization, input   (..., L), 1 to 8 dimensions, the last contiguous, the
 *                                          others with any strides
 *   input_std_deviation                    the leading dimensions, or those and a 1
 *   weight, bias                           (L), any stride
 * bias_desc may be NULL: a bias of zeros. eps is finite and not negative. Outputs must not overlap
 * themselves.
 *
 * BAD_PARAM: a null or destroyed handle or descriptor, or eps. DEVICE_TYPE_NOT_SUPPORTED: the
 * handle's device. BAD_TENSOR_DTYPE, BAD_TENSOR_SHAPE, BAD_TENSOR_STRIDES: in this order of checks.
 * On failure *desc_ptr is NULL. */
__INFINI_C __export infiniStatus_t infiniopCreateLayerNormDescriptor(
    infiniopHandle_t handle, infiniopLayerNormDescriptor_t *desc_ptr,
    infiniopTensorDescriptor_t output_desc, infiniopTensorDescriptor_t input_standardization_desc,
    infiniopTensorDescriptor_t input_std_deviation_desc, infiniopTensorDescriptor_t input_desc,
    infiniopTensorDescriptor_t weight_desc, infiniopTensorDescriptor_t bias_desc, float eps);

/* Bytes that the computation needs; any alignment, any content. */
__INFINI_C __export infiniStatus_t
infiniopGetLayerNormWorkspaceSize(infiniopLayerNormDescriptor_t desc, size_t *size);

/* Overwrites the outputs. output may be exactly input (same pointer, same layout); nothing else may
 * overlap an output. A failed call writes nothing. */
__INFINI_C __export infiniStatus_t infiniopLayerNorm(infiniopLayerNormDescriptor_t desc,
                                                     void *workspace, size_t workspace_size,
                                                     void *output, void *input_standardization,
                                                     void *input_std_deviation, const void *input,
                                                     const void *weight, const void *bias,
                                                     void *stream);

/* NULL: success. BAD_PARAM: not a live descriptor of this operator. */
__INFINI_C __export infiniopStatus_t
infiniopDestroyLayerNormDescriptor(infiniopLayerNormDescriptor_t desc);

#endif
