// All operators of neural networks that graphs can be made of here.
#ifndef NORMGRAD_GE_OPS_PROTO_NN_H_
#define NORMGRAD_GE_OPS_PROTO_NN_H_

#include "op_graph/batch_norm_grad_v3_proto.h"
#include "op_graph/layer_norm_grad_proto.h"
#include "op_graph/layer_norm_grad_v3_proto.h"
#include "op_graph/rms_norm_grad_proto.h"

#endif  // NORMGRAD_GE_OPS_PROTO_NN_H_
