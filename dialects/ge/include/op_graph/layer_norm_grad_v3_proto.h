// LayerNormGradV3: the gradient of LayerNorm from the mean and rstd of its rows.
#ifndef NORMGRAD_GE_OP_GRAPH_LAYER_NORM_GRAD_V3_PROTO_H_
#define NORMGRAD_GE_OP_GRAPH_LAYER_NORM_GRAD_V3_PROTO_H_

#include "graph/operator_reg.h"

namespace ge {

// As LayerNormGrad, with rstd given instead of the variance.
REG_OP(LayerNormGradV3)
    .INPUT(dy, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .INPUT(x, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .INPUT(rstd, TensorType({DT_FLOAT}))
    .INPUT(mean, TensorType({DT_FLOAT}))
    .INPUT(gamma, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .OUTPUT(pd_x, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .OUTPUT(pd_gamma, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .OUTPUT(pd_beta, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .ATTR(output_mask, ListBool, {true, true, true})
    .OP_END_FACTORY_REG(LayerNormGradV3)

}  // namespace ge

#endif  // NORMGRAD_GE_OP_GRAPH_LAYER_NORM_GRAD_V3_PROTO_H_
