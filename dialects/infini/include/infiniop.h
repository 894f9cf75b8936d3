/* The operator library: everything a program that normalizes needs. */
#ifndef INFINIOP_H
#define INFINIOP_H

#include "infiniop/handle.h"
#include "infiniop/operator_descriptor.h"
#include "infiniop/ops/add_rms_norm.h"
#include "infiniop/ops/batch_norm.h"
#include "infiniop/ops/batch_norm_backward.h"
#include "infiniop/ops/layer_norm.h"
#include "infiniop/ops/layer_norm_backward.h"
#include "infiniop/ops/rms_norm.h"
#include "infiniop/ops/rms_norm_backward.h"
#include "infiniop/tensor_descriptor.h"

#endif
