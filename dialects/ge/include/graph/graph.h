// Graph: operators that feed each other, with inputs and outputs. A handle, as Operator is.
#ifndef NORMGRAD_GE_GRAPH_GRAPH_H_
#define NORMGRAD_GE_GRAPH_GRAPH_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph/operator.h"

namespace ge {

struct GraphImpl;

class NORMGRAD_GE_EXPORT Graph {
 public:
  Graph() = default;  // not valid
  explicit Graph(const char* name);
  explicit Graph(const std::string& name);
  explicit Graph(const AscendString& name);

  // The graph is everything connected with these operators at the time of this call; once only.
  Graph& SetInputs(const std::vector<Operator>& inputs);

  // After SetInputs. All outputs of each operator, in the order of their declaration; or those of
  // the given indices (none: all), or the one of that name.
  Graph& SetOutputs(const std::vector<Operator>& outputs);
  Graph& SetOutputs(const std::vector<std::pair<Operator, std::vector<size_t>>>& outputs);
  Graph& SetOutputs(const std::vector<std::pair<Operator, AscendString>>& outputs);
  Graph& SetOutputs(const std::vector<std::pair<Operator, std::string>>& outputs);

  bool IsValid() const;  // SetInputs has succeeded
  graphStatus GetName(AscendString& name) const;

  // Records an operator under its name for FindOpByName. Nothing else needs it.
  graphStatus AddOp(const Operator& op);
  graphStatus FindOpByName(const char* name, Operator& op) const;
  graphStatus FindOpByName(const std::string& name, Operator& op) const;
  graphStatus GetAllOpName(std::vector<AscendString>& names) const;

 private:
  friend struct Internals;
  std::shared_ptr<GraphImpl> impl_;
};

}  // namespace ge

#endif  // NORMGRAD_GE_GRAPH_GRAPH_H_
