// Functions on graphs without a session.
#ifndef NORMGRAD_GE_GE_IR_BUILD_H_
#define NORMGRAD_GE_GE_IR_BUILD_H_

#include <cstddef>
#include <map>
#include <string>

#include "graph/ascend_string.h"
#include "graph/error_codes.h"
#include "graph/graph.h"

namespace ge {

NORMGRAD_GE_EXPORT graphStatus
aclgrphBuildInitialize(const std::map<AscendString, AscendString>& options);
NORMGRAD_GE_EXPORT graphStatus
aclgrphBuildInitialize(const std::map<std::string, std::string>& options);
NORMGRAD_GE_EXPORT void aclgrphBuildFinalize();

// The version of the graph's representation: 1.0.0.
NORMGRAD_GE_EXPORT graphStatus aclgrphGetIRVersion(int* major, int* minor, int* patch);

// Writes the graph as text: for "DIR/NAME" to DIR/ge_proto_<n>_graph_0_NAME.txt, for people, and
// to DIR/ge_onnx_<n>_graph_0_NAME.pbtxt, in the text form of an ONNX model, for viewers. n counts
// the dumps of the process, in five digits. `len` is the length of `file`.
NORMGRAD_GE_EXPORT graphStatus aclgrphDumpGraph(const Graph& graph, const char* file,
                                                const size_t len);

}  // namespace ge

#endif  // NORMGRAD_GE_GE_IR_BUILD_H_
