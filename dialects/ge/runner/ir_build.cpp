// The aclgrph functions, but for the dump.
#include "error.hpp"
#include "ge/ge_ir_build.h"
#include "runner/engine.hpp"

namespace ge {

using normgrad::graph_mode::fail;
using normgrad::graph_mode::guard;

graphStatus aclgrphBuildInitialize(const std::map<AscendString, AscendString>& options) {
  return guard([&] {
    normgrad::graph_mode::check_options("aclgrphBuildInitialize", options);
    return GRAPH_SUCCESS;
  });
}

graphStatus aclgrphBuildInitialize(const std::map<std::string, std::string>& options) {
  return guard([&] { return aclgrphBuildInitialize(normgrad::graph_mode::to_options(options)); });
}

void aclgrphBuildFinalize() {}

graphStatus aclgrphGetIRVersion(int* major, int* minor, int* patch) {
  if (!major || !minor || !patch) {
    return fail(GRAPH_PARAM_INVALID, "aclgrphGetIRVersion: a pointer is null");
  }
  *major = 1;
  *minor = 0;
  *patch = 0;
  return GRAPH_SUCCESS;
}

}  // namespace ge
