#include "normgrad/layer_norm.hpp"

#include "ops/prepare.hpp"

namespace normgrad {

Status prepare(const LayerNorm& call, Device device, Prepared& prepared) {
  prepared.operands = operands_of(call);
  return prepare_rows_forward({.statistics = call.statistics,
                               .eps = call.eps,
                               .gamma_offset = call.gamma_offset,
                               .normalized_axes = call.normalized_axes,
                               .eps_name = call.names.eps},
                              device, prepared);
}

}  // namespace normgrad
