// The operators that bring tensors into a graph.
#ifndef NORMGRAD_GE_ARRAY_OPS_H_
#define NORMGRAD_GE_ARRAY_OPS_H_

#include "graph/operator_reg.h"

namespace ge {

// A tensor that is fed at each run. `index` is its place among the fed tensors, if the indices of
// all Data of a graph are 0 to n - 1; otherwise the order given to SetInputs counts.
REG_OP(Data)
    .INPUT(x, TensorType::ALL())
    .OUTPUT(y, TensorType::ALL())
    .ATTR(index, Int, 0)
    .OP_END_FACTORY_REG(Data)

    // A tensor that is part of the graph.
    REG_OP(Const)
    .OUTPUT(y, TensorType::ALL())
    .ATTR(value, Tensor, Tensor())
    .OP_END_FACTORY_REG(Const)

        REG_OP(Constant)
    .OUTPUT(y, TensorType::ALL())
    .ATTR(value, Tensor, Tensor())
    .OP_END_FACTORY_REG(Constant)

}  // namespace ge

#endif  // NORMGRAD_GE_ARRAY_OPS_H_
