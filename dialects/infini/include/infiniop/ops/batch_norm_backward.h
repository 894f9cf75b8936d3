/* BatchNormBackward: the gradients of y = (x - E[x]) / sqrt(Var[x]) * weight + bias for input x of
 * shape (N, C, L), with E and Var per channel over N and L:
 *
 *   x_hat       = (input - running_mean) / sqrt(running_var)
 *   grad_input  = weight / sqrt(running_var)
 *                 * (grad_output - mean(grad_output) - x_hat * mean(grad_output * x_hat))
 *   grad_weight = sum of grad_output * x_hat,  grad_bias = sum of grad_output
 *
 * running_mean and running_var are E[x] and Var[x] of this batch (biased variance), and the
 * gradient flows through them. A forward pass that added eps to the variance passes variance + eps.
 * A channel whose running_var is exactly 0 gets grad_input = 0 and grad_weight = 0. */
#ifndef INFINIOP_BATCH_NORM_BACKWARD_H
#define INFINIOP_BATCH_NORM_BACKWARD_H

#include "../handle.h"
#include "../operator_descriptor.h"
#include "../tensor_descriptor.h"

typedef struct InfiniopDescriptor *infiniopBatchNormBackwardDescriptor_t;

/* One dtype for all: F16, F32 or BF16.
 *   grad_input, input, grad_output                                   (N, C, L), contiguous
 *   grad_weight, grad_bias, weight, running_mean, running_var        (C), any stride
 *
 * BAD_PARAM: a null or destroyed handle or descriptor. DEVICE_TYPE_NOT_SUPPORTED: the handle's
 * device. BAD_TENSOR_DTYPE, BAD_TENSOR_SHAPE, BAD_TENSOR_STRIDES: in this order of checks.
 * On failure *desc_ptr is NULL. */
__INFINI_C __export infiniStatus_t infiniopCreateBatchNormBackwardDescriptor(
    infiniopHandle_t handle, infiniopBatchNormBackwardDescriptor_t *desc_ptr,
    infiniopTensorDescriptor_t grad_input_desc, infiniopTensorDescriptor_t grad_weight_desc,
    infiniopTensorDescriptor_t grad_bias_desc, infiniopTensorDescriptor_t input_desc,
    infiniopTensorDescriptor_t grad_output_desc, infiniopTensorDescriptor_t weight_desc,
    infiniopTensorDescriptor_t running_mean_desc, infiniopTensorDescriptor_t running_var_desc);

/* Bytes that the computation needs; any alignment, any content. */
__INFINI_C __export infiniStatus_t
infiniopGetBatchNormBackwardWorkspaceSize(infiniopBatchNormBackwardDescriptor_t desc, size_t *size);

/* Overwrites the outputs. grad_input may be exactly grad_output or input; nothing else may overlap
 * an output. A failed call writes nothing. */
__INFINI_C __export infiniStatus_t infiniopBatchNormBackward(
    infiniopBatchNormBackwardDescriptor_t desc, void *workspace, size_t workspace_size,
    void *grad_input, void *grad_weight, void *grad_bias, const void *input,
    const void *grad_output, const void *weight, const void *running_mean, const void *running_var,
    void *stream);

/* NULL: success. BAD_PARAM: not a live descriptor of this operator. */
__INFINI_C __export infiniopStatus_t
infiniopDestroyBatchNormBackwardDescriptor(infiniopBatchNormBackwardDescriptor_t desc);

#endif
