/* LayerNormBackward: the gradients of y = (x - E[x]) / sqrt(Var[x] + eps) * weight + bias over the
 * last dimension, of length L:
 *
 *   g           = grad_output * weight
 *   grad_input  = (g - mean(g) - x_hat * mean(g * x_hat)) / std     means over the row
 *   grad_weight = sum of grad_output * x_hat over all rows
 *   grad_bias   = sum of grad_output over all rows
 *
 * x_hat is input_standardization, std is input_std_deviation (with eps inside): both are taken as
 * they are given. A row whose std is exactly 0 gets grad_input = 0 and adds nothing to grad_weight.
 */
#ifndef INFINIOP_LAYER_NORM_BACKWARD_H
#define INFINIOP_LAYER_NORM_BACKWARD_H

#include "../handle.h"
#include "../operator_descriptor.h"
#include "../tensor_descriptor.h"

typedef struct InfiniopDescriptor *infiniopLayerNormBackwardDescriptor_t;

/* One dtype for all: F16, F32 or BF16.
 *   grad_input, grad_output, input_standardization  (..., L), 1 to 8 dimensions, the last
 *                                                   contiguous, the others with any strides
 *   grad_weight, grad_bias, weight                  (L), any stride
 *   input_std_deviation                             the leading dimensions, or those and a 1
 * grad_bias_desc may be NULL: it is not computed. Outputs must not overlap themselves.
 *
 * BAD_PARAM: a null or destroyed handle or descriptor. DEVICE_TYPE_NOT_SUPPORTED: the handle's
 * device. BAD_TENSOR_DTYPE, BAD_TENSOR_SHAPE, BAD_TENSOR_STRIDES: in this order of checks.
 * On failure *desc_ptr is NULL. */
__INFINI_C __export infiniStatus_t infiniopCreateLayerNormBackwardDescriptor(
    infiniopHandle_t handle, infiniopLayerNormBackwardDescriptor_t *desc_ptr,
    infiniopTensorDescriptor_t grad_input_desc, infiniopTensorDescriptor_t grad_weight_desc,
    infiniopTensorDescriptor_t grad_bias_desc, infiniopTensorDescriptor_t grad_output_desc,
    infiniopTensorDescriptor_t weight_desc, infiniopTensorDescriptor_t input_standardization_desc,
    infiniopTensorDescriptor_t input_std_deviation_desc);

/* Bytes that the computation needs; any alignment, any content. */
__INFINI_C __export infiniStatus_t
infiniopGetLayerNormBackwardWorkspaceSize(infiniopLayerNormBackwardDescriptor_t desc, size_t *size);

/* Overwrites the outputs. grad_input may be exactly grad_output or input_standardization (same
 * pointer, same layout); nothing else may overlap an output. A failed call writes nothing. */
__INFINI_C __export infiniStatus_t infiniopLayerNormBackward(
    infiniopLayerNormBackwardDescriptor_t desc, void *workspace, size_t workspace_size,
    void *grad_input, void *grad_weight, void *grad_bias, const void *grad_output,
    const void *weight, const void *input_standardization, const void *input_std_deviation,
    void *stream);

/* NULL: success. BAD_PARAM: not a live descriptor of this operator. */
__INFINI_C __export infiniopStatus_t
infiniopDestroyLayerNormBackwardDescriptor(infiniopLayerNormBackwardDescriptor_t desc);

#endif
