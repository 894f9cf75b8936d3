#include "normgrad/layer_norm_backward.hpp"

#include <string>

#include "ops/prepare.hpp"

namespace normgrad {

Status prepare(const LayerNormBackward& call, Device device, Prepared& prepared) {
  RowStatistics statistics = RowStatistics::kXHatStd;
  if (call.statistics == Statistics::kMeanRstd) statistics = RowStatistics::kMeanRstd;
  if (call.statistics == Statistics::kMeanVariance) statistics = RowStatistics::kMeanVariance;

  const bool needs_mean = call.statistics != Statistics::kXHatStd;
  if (needs_mean != call.mean.has_value()) {
    return {Code::kBadArgument, std::string(call.names.mean) +
                                    (needs_mean ? ": required with these statistics, but absent"
                                                : ": expected none beside x_hat and std")};
  }
  NORMGRAD_RETURN_IF_ERROR(
      check_eps(call.names.eps, call.eps, call.statistics == Statistics::kMeanVariance));

  prepared.operands = operands_of(call);
  return prepare_rows({statistics, call.eps, call.gamma_offset, call.normalized_axes}, device,
                      prepared);
}

}  // namespace normgrad
