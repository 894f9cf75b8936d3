#include "normgrad/rms_norm_backward.hpp"

#include "ops/prepare.hpp"

namespace normgrad {

Status prepare(const RmsNormBackward& call, Device device, Prepared& prepared) {
  const bool given = call.spread.has_value();
  NORMGRAD_RETURN_IF_ERROR(check_eps(call.names.eps, call.eps, /*used=*/!given));
  prepared.operands = operands_of(call);
  return prepare_rows(given ? RowStatistics::kRstd : RowStatistics::kFromX, call.eps,
                      call.normalized_axes, device, prepared);
}

}  // namespace normgrad
