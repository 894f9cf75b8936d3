/* All operators of libopapi_nn. */
#ifndef ACLNNOP_ACLNN_OPS_NN_H
#define ACLNNOP_ACLNN_OPS_NN_H

#include "aclnn_add_layer_norm_grad.h"
#include "aclnn_batch_norm_backward.h"
#include "aclnn_batch_norm_backward_reduce.h"
#include "aclnn_batch_norm_elemt_backward.h"
#include "aclnn_layer_norm.h"
#include "aclnn_layer_norm_backward.h"
#include "aclnn_rms_norm.h"
#include "aclnn_rms_norm_grad.h"

#endif
