// RmsNormGrad: the gradient of RMSNorm from the rstd of its rows.
#ifndef NORMGRAD_GE_OP_GRAPH_RMS_NORM_GRAD_PROTO_H_
#define NORMGRAD_GE_OP_GRAPH_RMS_NORM_GRAD_PROTO_H_

#include "graph/operator_reg.h"

namespace ge {

// x_hat  = x * rstd,  g = dy * gamma
// dx     = rstd * (g - x_hat * mean(g * x_hat))      means over the row
// dgamma = sum of dy * x_hat                         over all rows, always DT_FLOAT
//
// dy and x are (A1, ..., Ai, R1, ..., Rj), gamma is (R1, ..., Rj), rstd has one element per row.
REG_OP(RmsNormGrad)
    .INPUT(dy, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .INPUT(x, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .INPUT(rstd, TensorType({DT_FLOAT}))
    .INPUT(gamma, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .OUTPUT(dx, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .OUTPUT(dgamma, TensorType({DT_FLOAT}))
    .OP_END_FACTORY_REG(RmsNormGrad)

}  // namespace ge

#endif  // NORMGRAD_GE_OP_GRAPH_RMS_NORM_GRAD_PROTO_H_
