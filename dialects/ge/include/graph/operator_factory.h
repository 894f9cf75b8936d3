// OperatorFactory: operators by the name of their type. Every REG_OP of the program is in it.
#ifndef NORMGRAD_GE_GRAPH_OPERATOR_FACTORY_H_
#define NORMGRAD_GE_GRAPH_OPERATOR_FACTORY_H_

#include <string>
#include <vector>

#include "graph/operator.h"

namespace ge {

typedef Operator (*OpCreator)(const char* name);

class NORMGRAD_GE_EXPORT OperatorFactory {
 public:
  // An empty operator if the type is not registered.
  static Operator CreateOperator(const char* name, const char* type);
  static Operator CreateOperator(const std::string& name, const std::string& type);
  static bool IsExistOp(const char* type);
  static bool IsExistOp(const std::string& type);
  static graphStatus GetOpsTypeList(std::vector<AscendString>& types);  // sorted
};

class NORMGRAD_GE_EXPORT OperatorCreatorRegister {
 public:
  // The first creator of a type stays.
  OperatorCreatorRegister(const char* type, OpCreator creator);
};

}  // namespace ge

#endif  // NORMGRAD_GE_GRAPH_OPERATOR_FACTORY_H_
