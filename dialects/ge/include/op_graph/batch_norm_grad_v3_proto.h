// BatchNormGradV3: the gradient of BatchNorm, in training and with frozen statistics.
#ifndef NORMGRAD_GE_OP_GRAPH_BATCH_NORM_GRAD_V3_PROTO_H_
#define NORMGRAD_GE_OP_GRAPH_BATCH_NORM_GRAD_V3_PROTO_H_

#include "graph/operator_reg.h"

namespace ge {

// In training r = save_rstd, x_hat = (x - save_mean) * r, and means are over all axes but that of
// the channels:
//   dx      = weight * r * (dy - mean(dy) - x_hat * mean(dy * x_hat))
// otherwise r = 1 / sqrt(running_var + epsilon), x_hat = (x - running_mean) * r:
//   dx      = weight * r * dy
// and in both cases
//   dweight = sum of dy * x_hat,  dbias = sum of dy        over all axes but that of the channels
//
// The channels of x are its last axis in FORMAT_NHWC and FORMAT_NDHWC, else the second. All other
// inputs but dy have one element per channel.
REG_OP(BatchNormGradV3)
    .INPUT(dy, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .INPUT(x, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .INPUT(weight, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .INPUT(running_mean, TensorType({DT_FLOAT}))
    .INPUT(running_var, TensorType({DT_FLOAT}))
    .INPUT(save_mean, TensorType({DT_FLOAT}))
    .INPUT(save_rstd, TensorType({DT_FLOAT}))
    .OUTPUT(dx, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .OUTPUT(dweight, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .OUTPUT(dbias, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .ATTR(is_training, Bool, true)
    .ATTR(epsilon, Float, 1e-5f)
    .OP_END_FACTORY_REG(BatchNormGradV3)

}  // namespace ge

#endif  // NORMGRAD_GE_OP_GRAPH_BATCH_NORM_GRAD_V3_PROTO_H_
