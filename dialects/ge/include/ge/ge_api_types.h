// The keys of options, and the callback of an asynchronous run.
#ifndef NORMGRAD_GE_GE_API_TYPES_H_
#define NORMGRAD_GE_GE_API_TYPES_H_

#include <functional>
#include <vector>

#include "ge/ge_api_error_codes.h"
#include "graph/tensor.h"

namespace ge {

// These are accepted; everything else is ignored with a warning.
static const char* const OPTION_EXEC_DEVICE_ID = "ge.exec.deviceId";
static const char* const OPTION_GRAPH_RUN_MODE = "ge.graphRunMode";

typedef std::function<void(Status, std::vector<Tensor>&)> RunAsyncCallback;

}  // namespace ge

#endif  // NORMGRAD_GE_GE_API_TYPES_H_
