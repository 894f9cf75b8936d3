#include "normgrad/rms_norm_backward.hpp"

#include "ops/prepare.hpp"

namespace normgrad {

Status prepare(const RmsNormBackward& call, Device device, Prepared& prepared) {
  NORMGRAD_RETURN_IF_ERROR(check_eps(call.names.eps, call.eps, /*used=*/true));
  prepared.operands = operands_of(call);
  return prepare_rows(RowStatistics::kFromX, call.eps, device, prepared);
}

}  // namespace normgrad
