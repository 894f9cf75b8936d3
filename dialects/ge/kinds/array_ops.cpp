// Data, Const and Constant: tensors from outside. The engine knows where they come from.
#include "kinds/operator_kind.hpp"

namespace normgrad::graph_mode {
namespace {
constexpr const char* kOutputs[] = {"y"};
}  // namespace

constinit const OperatorKind kData = {"Data", {}, kOutputs, 0, nullptr, nullptr};
constinit const OperatorKind kConst = {"Const", {}, kOutputs, 0, nullptr, nullptr};
constinit const OperatorKind kConstant = {"Constant", {}, kOutputs, 0, nullptr, nullptr};

}  // namespace normgrad::graph_mode
