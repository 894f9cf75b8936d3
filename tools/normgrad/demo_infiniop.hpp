// The gradients of a contiguous call, computed through the InfiniOP C API as a program would.
#pragma once

#include "normgrad/plan.hpp"
#include "reference/cases.hpp"

namespace normgrad::tool {

// The call has gamma and all outputs, one element type, and the statistics that InfiniOP takes:
// x_hat and standard deviation for LayerNorm, mean and variance without eps for BatchNorm. The
// buffers are the host's; the outputs are copied back to them. Returns the median time of a run in
// seconds, measured with infinirt's events. Throws std::runtime_error.
double run_infiniop(const reference::Call& call, const Buffers& buffers);

}  // namespace normgrad::tool
