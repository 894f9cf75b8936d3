// NormGrad: normalization layers and their gradients. Include this, or the operator you need.
#pragma once

#include "normgrad/batch_norm.hpp"
#include "normgrad/batch_norm_backward.hpp"
#include "normgrad/info.hpp"
#include "normgrad/layer_norm.hpp"
#include "normgrad/layer_norm_backward.hpp"
#include "normgrad/plan.hpp"
#include "normgrad/rms_norm.hpp"
#include "normgrad/rms_norm_backward.hpp"
#include "normgrad/status.hpp"
#include "normgrad/tensor.hpp"
