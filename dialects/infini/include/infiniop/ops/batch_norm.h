/* BatchNorm in training, for input x of shape (N, C, L), with E and Var (biased) per channel over N
 * and L, which are n = N * L elements:
 *
 *   output        = (x - E[x]) / sqrt(Var[x] + eps) * weight + bias
 *   running_mean += momentum * (E[x] - running_mean)
 *   running_var  += momentum * (Var[x] * n / (n - 1) - running_var)
 *
 * A channel whose Var[x] + eps is exactly 0 gets output = bias. With n = 1 the factor n / (n - 1)
 * is 1; with n = 0 the running statistics stay as they are. What they become is not what
 * BatchNormBackward takes: normgradCreateBatchNormDescriptor gives E[x] and Var[x] themselves. */
#ifndef INFINIOP_BATCH_NORM_H
#define INFINIOP_BATCH_NORM_H

#include "../handle.h"
#include "../operator_descriptor.h"
#include "../tensor_descriptor.h"

typedef struct InfiniopDescriptor *infiniopBatchNormDescriptor_t;

/* One dtype for all: F16, F32 or BF16.
 *   output, input                            (N, C, L), contiguous
 *   running_mean, running_var, weight, bias  (C), any stride
 * momentum is finite; eps is finite and not negative.
 *
 * BAD_PARAM: a null or destroyed handle or descriptor, momentum or eps. DEVICE_TYPE_NOT_SUPPORTED:
 * the handle's device. BAD_TENSOR_DTYPE, BAD_TENSOR_SHAPE, BAD_TENSOR_STRIDES: in this order of
 * checks. On failure *desc_ptr is NULL. */
__INFINI_C __export infiniStatus_t infiniopCreateBatchNormDescriptor(
    infiniopHandle_t handle, infiniopBatchNormDescriptor_t *desc_ptr,
    infiniopTensorDescriptor_t output_desc, infiniopTensorDescriptor_t running_mean_desc,
    infiniopTensorDescriptor_t running_var_desc, infiniopTensorDescriptor_t input_desc,
    infiniopTensorDescriptor_t weight_desc, infiniopTensorDescriptor_t bias_desc, float momentum,
    float eps);

/* Bytes that the computation needs; any alignment, any content. */
__INFINI_C __export infiniStatus_t
infiniopGetBatchNormWorkspaceSize(infiniopBatchNormDescriptor_t desc, size_t *size);

/* Overwrites output and moves the running statistics. output may be exactly input; nothing else may
 * overlap what is written. A failed call writes nothing. */
__INFINI_C __export infiniStatus_t infiniopBatchNorm(infiniopBatchNormDescriptor_t desc,
                                                     void *workspace, size_t workspace_size,
                                                     void *output, void *running_mean,
                                                     void *running_var, const void *input,
                                                     const void *weight, const void *bias,
                                                     void *stream);

/* NULL: success. BAD_PARAM: not a live descriptor of this operator. */
__INFINI_C __export infiniopStatus_t
infiniopDestroyBatchNormDescriptor(infiniopBatchNormDescriptor_t desc);

#endif
