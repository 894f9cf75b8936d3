#include "normgrad/rms_norm_backward.hpp"

#include "ops/prepare.hpp"

namespace normgrad {

Status prepare(const RmsNormBackward& call, Device device, Prepared& prepared) {
  const bool given = call.spread.has_value();
  NORMGRAD_RETURN_IF_ERROR(check_eps(call.names.eps, call.eps, /*used=*/!given));
  prepared.operands = operands_of(call);
  const RowStatistics statistics = given ? RowStatistics::kRstd : RowStatistics::kFromX;
  return prepare_rows({statistics, call.eps, call.gamma_offset, call.normalized_axes}, device,
                      prepared);
}

}  // namespace normgrad
