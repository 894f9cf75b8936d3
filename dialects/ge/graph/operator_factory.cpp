// The registry of creators. It fills while programs and libraries are loaded, so it is made at
// first use and never destroyed.
#include "graph/operator_factory.h"

#include <map>
#include <mutex>

#include "error.hpp"

namespace ge {

using normgrad::graph_mode::fail;
using normgrad::graph_mode::guard;

namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, OpCreator> creators;

  OpCreator find(const char* type) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = creators.find(type ? type : "");
    return found == creators.end() ? nullptr : found->second;
  }
};

Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

}  // namespace

Operator OperatorFactory::CreateOperator(const char* name, const char* type) {
  Operator made;
  (void)guard([&]() -> uint32_t {
    const OpCreator create = registry().find(type);
    if (!create) {
      return fail(GRAPH_FAILED, std::string("OperatorFactory: no operator type '") +
                                    (type ? type : "") + "' is registered");
    }
    made = create(name);
    return GRAPH_SUCCESS;
  });
  return made;
}

Operator OperatorFactory::CreateOperator(const std::string& name, const std::string& type) {
  return CreateOperator(name.c_str(), type.c_str());
}

bool OperatorFactory::IsExistOp(const char* type) { return registry().find(type) != nullptr; }

bool OperatorFactory::IsExistOp(const std::string& type) { return IsExistOp(type.c_str()); }

graphStatus OperatorFactory::GetOpsTypeList(std::vector<AscendString>& types) {
  return guard([&] {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    types.clear();
    for (const auto& [type, create] : registry().creators) types.emplace_back(type.c_str());
    return GRAPH_SUCCESS;
  });
}

OperatorCreatorRegister::OperatorCreatorRegister(const char* type, OpCreator creator) {
  (void)guard([&] {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    registry().creators.emplace(type ? type : "", creator);
    return GRAPH_SUCCESS;
  });
}

}  // namespace ge
