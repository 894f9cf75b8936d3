/* What this library offers beyond InfiniOP. The Create functions make the ordinary descriptors: the
 * ordinary functions query, compute with and destroy them. Compared with the ordinary Create
 * functions they allow
 *   - mixed dtypes: the data (x and its like) share one of F16, F32, BF16; the weight, each
 *     statistic and each parameter gradient may have any of the three;
 *   - null grad_* descriptors: that output is not computed and its data pointer is ignored;
 *   - a null weight descriptor: a weight of ones, its data pointer is ignored;
 *   - for BatchNorm, any data layout that is contiguous along L or along C.
 * epsilon is added under the root: finite and not negative, else BAD_PARAM. */
#ifndef INFINIOP_NORMGRAD_H
#define INFINIOP_NORMGRAD_H

#include "ops/batch_norm.h"
#include "ops/batch_norm_backward.h"
#include "ops/layer_norm_backward.h"
#include "ops/rms_norm_backward.h"

/* Why the last infinirt* or infiniop* call of this thread that failed did so: which argument, what
 * was expected, what came. "" if none has failed. Valid until the thread's next failure. */
__INFINI_C __export const char *normgradGetLastError(void);

__INFINI_C __export infiniStatus_t normgradCreateLayerNormBackwardDescriptor(
    infiniopHandle_t handle, infiniopLayerNormBackwardDescriptor_t *desc_ptr,
    infiniopTensorDescriptor_t grad_input_desc, infiniopTensorDescriptor_t grad_weight_desc,
    infiniopTensorDescriptor_t grad_bias_desc, infiniopTensorDescriptor_t grad_output_desc,
    infiniopTensorDescriptor_t weight_desc, infiniopTensorDescriptor_t input_standardization_desc,
    infiniopTensorDescriptor_t input_std_deviation_desc);

/* frozen != 0: the statistics are constants (eval mode), grad_input = grad_output * weight * r. */
__INFINI_C __export infiniStatus_t normgradCreateBatchNormBackwardDescriptor(
    infiniopHandle_t handle, infiniopBatchNormBackwardDescriptor_t *desc_ptr,
    infiniopTensorDescriptor_t grad_input_desc, infiniopTensorDescriptor_t grad_weight_desc,
    infiniopTensorDescriptor_t grad_bias_desc, infiniopTensorDescriptor_t input_desc,
    infiniopTensorDescriptor_t grad_output_desc, infiniopTensorDescriptor_t weight_desc,
    infiniopTensorDescriptor_t running_mean_desc, infiniopTensorDescriptor_t running_var_desc,
    double epsilon, int frozen);

/* A BatchNorm that keeps no running statistics: infiniopBatchNorm writes E[x] and the biased Var[x]
 * of the batch, without epsilon, where it takes running_mean and running_var. They are what
 * normgradCreateBatchNormBackwardDescriptor takes with the same epsilon. bias_desc may be null, as
 * weight_desc: a bias of zeros. */
__INFINI_C __export infiniStatus_t normgradCreateBatchNormDescriptor(
    infiniopHandle_t handle, infiniopBatchNormDescriptor_t *desc_ptr,
    infiniopTensorDescriptor_t output_desc, infiniopTensorDescriptor_t mean_desc,
    infiniopTensorDescriptor_t var_desc, infiniopTensorDescriptor_t input_desc,
    infiniopTensorDescriptor_t weight_desc, infiniopTensorDescriptor_t bias_desc, double epsilon);

__INFINI_C __export infiniStatus_t normgradCreateRMSNormBackwardDescriptor(
    infiniopHandle_t handle, infiniopRMSNormBackwardDescriptor_t *desc_ptr,
    infiniopTensorDescriptor_t grad_x_desc, infiniopTensorDescriptor_t grad_w_desc,
    infiniopTensorDescriptor_t grad_y_desc, infiniopTensorDescriptor_t x_desc,
    infiniopTensorDescriptor_t w_desc, double epsilon);

#endif
