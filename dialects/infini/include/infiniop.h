/* The operator library: everything a program that computes gradients needs. */
#ifndef INFINIOP_H
#define INFINIOP_H

#include "infiniop/handle.h"
#include "infiniop/operator_descriptor.h"
#include "infiniop/ops/batch_norm_backward.h"
#include "infiniop/ops/layer_norm_backward.h"
#include "infiniop/ops/rms_norm_backward.h"
#include "infiniop/tensor_descriptor.h"

#endif
