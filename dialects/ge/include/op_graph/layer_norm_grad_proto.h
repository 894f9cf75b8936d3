// LayerNormGrad: the gradient of LayerNorm from the mean and variance of its rows.
#ifndef NORMGRAD_GE_OP_GRAPH_LAYER_NORM_GRAD_PROTO_H_
#define NORMGRAD_GE_OP_GRAPH_LAYER_NORM_GRAD_PROTO_H_

#include "graph/operator_reg.h"

namespace ge {

// rstd     = 1 / sqrt(variance + epsilon),  x_hat = (x - mean) * rstd,  g = dy * gamma
// pd_x     = rstd * (g - mean(g) - x_hat * mean(g * x_hat))      means over the row
// pd_gamma = sum of dy * x_hat,  pd_beta = sum of dy             over all rows
//
// dy and x are (A1, ..., Ai, R1, ..., Rj), gamma is (R1, ..., Rj); variance (biased) and mean have
// one element per row, as (A1, ..., Ai, 1, ..., 1). An output whose output_mask is false is not
// computed. epsilon is an addition of this library: -1 stands for the customary value, 1e-12 if x
// is DT_FLOAT and 1e-5 otherwise.
REG_OP(LayerNormGrad)
    .INPUT(dy, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .INPUT(x, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .INPUT(variance, TensorType({DT_FLOAT}))
    .INPUT(mean, TensorType({DT_FLOAT}))
    .INPUT(gamma, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .OUTPUT(pd_x, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .OUTPUT(pd_gamma, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .OUTPUT(pd_beta, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .ATTR(output_mask, ListBool, {true, true, true})
    .ATTR(epsilon, Float, -1.0f)
    .OP_END_FACTORY_REG(LayerNormGrad)

}  // namespace ge

#endif  // NORMGRAD_GE_OP_GRAPH_LAYER_NORM_GRAD_PROTO_H_
