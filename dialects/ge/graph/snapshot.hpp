// Snapshot: a graph as it is at one moment, by value. What the program does to its operators
// afterwards has no effect on it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/tensor.h"
#include "kinds/operator_kind.hpp"

namespace normgrad::graph_mode {

struct Snapshot {
  // An output of a node. No node: an input that is not connected.
  struct Value {
    int node = -1;
    int output = 0;
  };
  struct Input {
    std::string name;
    Value from;
  };
  struct Output {
    std::string name;
    std::optional<::ge::TensorDesc> stated;  // as far as the program has described it
  };
  // Inputs and outputs are those of the kind, in its order; without a kind as they were declared.
  struct Node {
    std::string name, type;
    const OperatorKind* kind = nullptr;
    Attributes attributes;
    std::vector<Input> inputs;
    std::vector<Output> outputs;
    ::ge::Tensor constant;  // what a Const holds
    std::string problem;    // why the graph cannot be compiled
  };

  std::string name;
  std::vector<Node> nodes;     // as they were reached from the inputs
  std::vector<Value> outputs;  // of the graph
  std::vector<int> feeds;      // the Data nodes, in the order in which tensors are fed
};

// The graph must be valid.
NORMGRAD_GE_EXPORT Snapshot take_snapshot(const ::ge::Graph& graph);

// "DT_FLOAT [2, 3]" for tensors, otherwise as in source code.
NORMGRAD_GE_EXPORT std::string text(const ::ge::AttrValue& value);

}  // namespace normgrad::graph_mode
