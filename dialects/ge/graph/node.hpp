// What is behind the handles Operator, Graph and AttrValue.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "graph/graph.h"
#include "graph/operator.h"

namespace ge {

struct AttrValueImpl {
  std::variant<int64_t, float, bool, std::string, Tensor, DataType, NamedAttrs,
               std::vector<int64_t>, std::vector<uint8_t>, std::vector<float>, std::vector<bool>,
               std::vector<std::string>, std::vector<Tensor>, std::vector<DataType>,
               std::vector<NamedAttrs>, std::vector<std::vector<int64_t>>>
      value;
};

struct NamedAttrsImpl {
  std::string name;
  std::map<std::string, AttrValue> attributes;
};

struct InputSlot {
  std::string name;
  TensorDesc desc = {};
  bool stated = false;  // desc was given by the program
  // Where it comes from. A node keeps its producers alive; only an edge that closes a cycle is held
  // weakly, or none of its nodes would ever be freed.
  bool linked = false;
  std::shared_ptr<OperatorImpl> producer = {};
  std::weak_ptr<OperatorImpl> weak_producer = {};
  uint32_t output = 0;
  std::string problem = {};  // why the last SetInput could not be done

  std::shared_ptr<OperatorImpl> source() const {
    return producer ? producer : weak_producer.lock();
  }
};

struct OutputSlot {
  std::string name;
  TensorDesc desc = {};
  bool stated = false;
  bool inferred = false;
};

struct OperatorImpl {
  std::string name, type;
  std::vector<InputSlot> inputs;
  std::vector<OutputSlot> outputs;
  std::vector<std::pair<std::string, AttrValue>> attributes;  // as declared, then as set
  std::vector<std::weak_ptr<OperatorImpl>> consumers;
  std::map<std::string, Operator::SubgraphBuilder> subgraphs;
  std::string problem;  // the first SetInput of an input that is not there

  ~OperatorImpl();
};

struct GraphImpl {
  std::string name;
  std::vector<std::shared_ptr<OperatorImpl>> nodes;  // breadth first from the inputs
  std::vector<std::pair<std::shared_ptr<OperatorImpl>, uint32_t>> outputs;
  std::map<std::string, Operator> recorded;  // by AddOp
};

// The way from a handle to what is behind it.
struct Internals {
  static const std::shared_ptr<OperatorImpl>& of(const Operator& op) { return op.impl_; }
  static const std::shared_ptr<GraphImpl>& of(const Graph& graph) { return graph.impl_; }
  static const std::shared_ptr<const AttrValueImpl>& of(const AttrValue& value) {
    return value.impl_;
  }
  static Operator handle(std::shared_ptr<OperatorImpl> node) {
    Operator op;
    op.impl_ = std::move(node);
    return op;
  }
};

}  // namespace ge
