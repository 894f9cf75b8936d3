// Graph: the nodes connected with its inputs, and which of their outputs it has.
#include "graph/graph.h"

#include <algorithm>
#include <unordered_set>

#include "error.hpp"
#include "graph/node.hpp"

namespace ge {

using normgrad::graph_mode::add_warning;
using normgrad::graph_mode::fail;
using normgrad::graph_mode::guard;

namespace {

using Nodes = std::vector<std::shared_ptr<OperatorImpl>>;

// Everything that can be reached over edges, in either direction, breadth first.
Nodes connected_with(const std::vector<Operator>& inputs) {
  Nodes nodes;
  std::unordered_set<const OperatorImpl*> seen;
  const auto visit = [&](const std::shared_ptr<OperatorImpl>& node) {
    if (node && seen.insert(node.get()).second) nodes.push_back(node);
  };
  for (const Operator& input : inputs) visit(Internals::of(input));
  for (size_t next = 0; next < nodes.size(); ++next) {
    const std::shared_ptr<OperatorImpl> node = nodes[next];
    for (const InputSlot& input : node->inputs) visit(input.source());
    for (const auto& consumer : node->consumers) visit(consumer.lock());
  }
  return nodes;
}

std::shared_ptr<GraphImpl> make_graph(const char* name) {
  auto graph = std::make_shared<GraphImpl>();
  graph->name = name ? name : "";
  return graph;
}

// SetOutputs: `choose` appends the indices of the outputs of one entry.
template <class Entries, class OperatorOf, class Choose>
void set_outputs(const std::shared_ptr<GraphImpl>& graph, const Entries& entries,
                 const OperatorOf& operator_of, const Choose& choose) {
  (void)guard([&]() -> uint32_t {
    if (!graph || graph->nodes.empty()) {
      return fail(GRAPH_FAILED, "SetOutputs: the graph has no inputs yet; call SetInputs first");
    }
    std::vector<std::pair<std::shared_ptr<OperatorImpl>, uint32_t>> outputs;
    for (const auto& entry : entries) {
      const std::shared_ptr<OperatorImpl>& node = Internals::of(operator_of(entry));
      if (!node ||
          std::find(graph->nodes.begin(), graph->nodes.end(), node) == graph->nodes.end()) {
        add_warning(("SetOutputs: graph '" + graph->name + "' has no node '" +
                     (node ? node->name : "") + "'; it is skipped")
                        .c_str());
        continue;
      }
      std::vector<size_t> indices;
      choose(entry, *node, indices);
      for (const size_t index : indices) {
        if (index >= node->outputs.size()) {
          return fail(GRAPH_FAILED, "SetOutputs: node '" + node->name + "' has " +
                                        std::to_string(node->outputs.size()) +
                                        " outputs, none of index " + std::to_string(index));
        }
        outputs.emplace_back(node, static_cast<uint32_t>(index));
      }
    }
    graph->outputs = std::move(outputs);
    return GRAPH_SUCCESS;
  });
}

void all_of(const OperatorImpl& node, std::vector<size_t>& indices) {
  for (size_t i = 0; i < node.outputs.size(); ++i) indices.push_back(i);
}

// The one of that name; the index after the last if there is none.
template <class Text>
void named(const Text& name, const OperatorImpl& node, std::vector<size_t>& indices) {
  const auto found = std::find_if(node.outputs.begin(), node.outputs.end(),
                                  [&](const OutputSlot& output) { return output.name == name; });
  indices.push_back(static_cast<size_t>(found - node.outputs.begin()));
}

}  // namespace

Graph::Graph(const char* name) : impl_(make_graph(name)) {}
Graph::Graph(const std::string& name) : Graph(name.c_str()) {}
Graph::Graph(const AscendString& name) : Graph(name.GetString()) {}

Graph& Graph::SetInputs(const std::vector<Operator>& inputs) {
  (void)guard([&]() -> uint32_t {
    if (!impl_) return fail(GRAPH_FAILED, "SetInputs: the graph is empty; give it a name");
    const std::string where = "SetInputs of graph '" + impl_->name + "': ";
    if (!impl_->nodes.empty())
      return fail(GRAPH_FAILED, where + "the graph has its inputs already");
    if (inputs.empty()) return fail(GRAPH_FAILED, where + "there are no inputs");
    for (const Operator& input : inputs) {
      if (input.IsEmpty()) return fail(GRAPH_FAILED, where + "an input is an empty operator");
    }
    impl_->nodes = connected_with(inputs);
    return GRAPH_SUCCESS;
  });
  return *this;
}

Graph& Graph::SetOutputs(const std::vector<Operator>& outputs) {
  set_outputs(
      impl_, outputs, [](const Operator& op) -> const Operator& { return op; },
      [](const Operator&, const OperatorImpl& node, std::vector<size_t>& indices) {
        all_of(node, indices);
      });
  return *this;
}

Graph& Graph::SetOutputs(const std::vector<std::pair<Operator, std::vector<size_t>>>& outputs) {
  set_outputs(
      impl_, outputs, [](const auto& entry) -> const Operator& { return entry.first; },
      [](const auto& entry, const OperatorImpl& node, std::vector<size_t>& indices) {
        indices = entry.second;
        if (indices.empty()) all_of(node, indices);
      });
  return *this;
}

Graph& Graph::SetOutputs(const std::vector<std::pair<Operator, AscendString>>& outputs) {
  set_outputs(
      impl_, outputs, [](const auto& entry) -> const Operator& { return entry.first; },
      [](const auto& entry, const OperatorImpl& node, std::vector<size_t>& indices) {
        named(entry.second.GetString(), node, indices);
      });
  return *this;
}

Graph& Graph::SetOutputs(const std::vector<std::pair<Operator, std::string>>& outputs) {
  set_outputs(
      impl_, outputs, [](const auto& entry) -> const Operator& { return entry.first; },
      [](const auto& entry, const OperatorImpl& node, std::vector<size_t>& indices) {
        named(entry.second, node, indices);
      });
  return *this;
}

bool Graph::IsValid() const { return impl_ && !impl_->nodes.empty(); }

graphStatus Graph::GetName(AscendString& name) const {
  return guard([&]() -> uint32_t {
    if (!impl_) return fail(GRAPH_FAILED, "GetName: the graph is empty");
    name = impl_->name.c_str();
    return GRAPH_SUCCESS;
  });
}

graphStatus Graph::AddOp(const Operator& op) {
  return guard([&]() -> uint32_t {
    if (!impl_ || op.IsEmpty()) {
      return fail(GRAPH_FAILED, "AddOp: the graph or the operator is empty");
    }
    if (!impl_->recorded.emplace(op.GetName(), op).second) {
      add_warning(("AddOp: graph '" + impl_->name + "' has an operator named '" + op.GetName() +
                   "' already")
                      .c_str());
    }
    return GRAPH_SUCCESS;
  });
}

graphStatus Graph::FindOpByName(const char* name, Operator& op) const {
  return guard([&]() -> uint32_t {
    if (!impl_ || !name) return fail(GRAPH_FAILED, "FindOpByName: the graph or the name is empty");
    const auto recorded = impl_->recorded.find(name);
    if (recorded != impl_->recorded.end()) {
      op = recorded->second;
      return GRAPH_SUCCESS;
    }
    for (const auto& node : impl_->nodes) {
      if (node->name != name) continue;
      op = Internals::handle(node);
      return GRAPH_SUCCESS;
    }
    return fail(GRAPH_FAILED, "graph '" + impl_->name + "' has no node '" + name + "'");
  });
}

graphStatus Graph::FindOpByName(const std::string& name, Operator& op) const {
  return FindOpByName(name.c_str(), op);
}

graphStatus Graph::GetAllOpName(std::vector<AscendString>& names) const {
  return guard([&]() -> uint32_t {
    if (!impl_) return fail(GRAPH_FAILED, "GetAllOpName: the graph is empty");
    names.clear();
    for (const auto& node : impl_->nodes) names.emplace_back(node->name.c_str());
    for (const auto& [name, op] : impl_->recorded) {
      const AscendString text(name.c_str());
      if (std::find(names.begin(), names.end(), text) == names.end()) names.push_back(text);
    }
    return GRAPH_SUCCESS;
  });
}

}  // namespace ge
