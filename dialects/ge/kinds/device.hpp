// Where graphs run.
#pragma once

#include "graph/types.h"
#include "normgrad/plan.hpp"

namespace normgrad::graph_mode {

// What NORMGRAD_ACL_DEVICE says, as it does for the runtime beside this library: cpu, which it also
// is without the variable, or cuda. Read once, because graphs keep memory of it. Throws where there
// is no such device.
NORMGRAD_GE_EXPORT Device device();

}  // namespace normgrad::graph_mode
