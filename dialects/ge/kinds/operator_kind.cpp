// The table of all kinds.
#include "kinds/operator_kind.hpp"

namespace normgrad::graph_mode {

const OperatorKind* find_kind(const std::string& type) {
  for (const OperatorKind* kind : {&kData, &kConst, &kConstant, &kLayerNormGrad, &kLayerNormGradV3,
                                   &kRmsNormGrad, &kBatchNormGradV3}) {
    if (type == kind->type) return kind;
  }
  return nullptr;
}

}  // namespace normgrad::graph_mode
