#include "normgrad/rms_norm_backward.hpp"

#include "ops/prepare.hpp"

namespace normgrad {

Status prepare(const RmsNormBackward& call, Device device, Prepared& prepared) {
  NORMGRAD_RETURN_IF_ERROR(check_eps(call.names.eps, call.eps, /*used=*/true));
  Operands& o = prepared.operands = named(call.names);
  put(o.x, call.x);
  put(o.dy, call.dy);
  put(o.gamma, call.gamma);
  put_output(o.dx, call.dx);
  put_output(o.dgamma, call.dgamma);
  return prepare_rows(RowStatistics::kFromX, call.eps, device, prepared);
}

}  // namespace normgrad
