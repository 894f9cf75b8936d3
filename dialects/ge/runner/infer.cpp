// The order of nodes and the descriptions of values.
#include "runner/infer.hpp"

#include <algorithm>
#include <unordered_set>

#include "kinds/check.hpp"

namespace normgrad::graph_mode {
namespace {

using ::ge::Shape;
using ::ge::TensorDesc;

void check_nodes(const Snapshot& graph) {
  std::unordered_set<std::string> names;
  for (const Snapshot::Node& node : graph.nodes) {
    if (!node.problem.empty()) refuse(node.problem);
    if (!names.insert(node.name).second) {
      refuse("graph '" + graph.name + "': two nodes are named '" + node.name + "'");
    }
    for (const Snapshot::Input& input : node.inputs) {
      if (input.from.node >= 0) continue;
      refuse("node '" + node.name + "' (" + node.type + "): input '" + input.name + "' is missing");
    }
  }
  if (graph.outputs.empty()) {
    refuse("graph '" + graph.name + "' has no outputs; give it some with SetOutputs");
  }
}

// A cycle among the nodes that no order was found for, each of which waits for another.
std::string describe_cycle(const Snapshot& graph, const std::vector<int>& waiting) {
  int node = 0;
  while (waiting[node] == 0) ++node;
  std::vector<int> path;
  while (std::find(path.begin(), path.end(), node) == path.end()) {
    path.push_back(node);
    for (const Snapshot::Input& input : graph.nodes[node].inputs) {
      if (waiting[input.from.node] > 0) {
        node = input.from.node;
        break;
      }
    }
  }
  std::string cycle = "'" + graph.nodes[node].name + "'";
  for (auto step = path.rbegin(); step != path.rend(); ++step) {
    cycle += " -> '" + graph.nodes[*step].name + "'";
    if (*step == node) break;
  }
  return cycle;
}

// -1 where the statement leaves an extent open; a statement of rank 0 leaves all open, because
// programs state types that way.
bool agrees(const Shape& stated, const Shape& shape) {
  const std::vector<int64_t> a = stated.GetDims(), b = shape.GetDims();
  if (stated.GetDimNum() == 0 || shape.GetDimNum() == 0) {
    return stated.GetDimNum() == 0 || !is_known(shape);
  }
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](int64_t x, int64_t y) { return x == y || x < 0 || y < 0; });
}

void apply_statement(const Snapshot::Node& node, size_t i, TensorDesc& desc) {
  if (!node.outputs[i].stated) return;
  const TensorDesc& stated = *node.outputs[i].stated;
  const std::string where =
      "node '" + node.name + "' (" + node.type + "): " + node.outputs[i].name + ": ";
  if (!agrees(stated.GetShape(), desc.GetShape())) {
    refuse(where + "it is described as " + text(stated.GetShape()) + ", but is " +
           text(desc.GetShape()));
  }
  // Formats say where channels are. Tensors are often fed without one.
  if (stated.GetFormat() != ::ge::FORMAT_ND) desc.SetFormat(stated.GetFormat());
  const ::ge::DataType type = stated.GetDataType();
  if (type == desc.GetDataType() || type == ::ge::DT_UNDEFINED ||
      desc.GetDataType() == ::ge::DT_UNDEFINED) {
    return;
  }
  if (type != ::ge::DT_FLOAT || !(node.kind->float_outputs >> i & 1)) {
    refuse(where + "it is described as " + text(type) + ", but is " + text(desc.GetDataType()));
  }
  desc.SetDataType(type);
}

}  // namespace

std::vector<int> execution_order(const Snapshot& graph) {
  check_nodes(graph);
  const int count = static_cast<int>(graph.nodes.size());
  std::vector<int> waiting(count);  // inputs whose producers have no place yet
  std::vector<std::vector<int>> consumers(count);
  std::vector<int> order;
  for (int i = 0; i < count; ++i) {
    waiting[i] = static_cast<int>(graph.nodes[i].inputs.size());
    for (const auto& input : graph.nodes[i].inputs) consumers[input.from.node].push_back(i);
    if (waiting[i] == 0) order.push_back(i);
  }
  for (size_t next = 0; next < order.size(); ++next) {
    for (const int consumer : consumers[order[next]]) {
      if (--waiting[consumer] == 0) order.push_back(consumer);
    }
  }
  if (static_cast<int>(order.size()) < count) {
    refuse("graph '" + graph.name + "' has a cycle: " + describe_cycle(graph, waiting));
  }
  return order;
}

std::vector<Descs> infer(const Snapshot& graph, std::span<const int> order, const Descs* feeds) {
  std::vector<Descs> values(graph.nodes.size());
  const TensorDesc unknown(Shape({::ge::UNKNOWN_DIM_NUM}), ::ge::FORMAT_ND, ::ge::DT_UNDEFINED);
  for (size_t i = 0; i < graph.feeds.size(); ++i) {
    const Snapshot::Node& node = graph.nodes[graph.feeds[i]];
    values[graph.feeds[i]] = {feeds ? (*feeds)[i] : node.outputs[0].stated.value_or(unknown)};
  }
  for (const int i : order) {
    const Snapshot::Node& node = graph.nodes[i];
    if (node.kind->infer) {
      Descs inputs;
      for (const auto& input : node.inputs) {
        inputs.push_back(values[input.from.node][input.from.output]);
      }
      values[i] = node.kind->infer(inputs);
    } else if (values[i].empty()) {
      values[i] = {node.constant.GetTensorDesc()};
    }
    for (size_t output = 0; output < values[i].size(); ++output) {
      apply_statement(node, output, values[i][output]);
    }
  }
  return values;
}

}  // namespace normgrad::graph_mode
