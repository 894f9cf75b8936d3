// Takes a snapshot of a graph, bringing the operators of the program into the form of their kinds.
#include "graph/snapshot.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <unordered_map>

#include "graph/node.hpp"
#include "kinds/check.hpp"

namespace normgrad::graph_mode {
namespace {

using ::ge::InputSlot;
using ::ge::OperatorImpl;
using ::ge::OutputSlot;
using Index = std::unordered_map<const OperatorImpl*, int>;

template <class Slot>
const Slot* find(const std::vector<Slot>& slots, const char* name) {
  for (const Slot& slot : slots) {
    if (slot.name == name) return &slot;
  }
  return nullptr;
}

// Where the kind has the output that the program's prototype has at `declared`.
int output_of_kind(const OperatorImpl& node, const OperatorKind* kind, uint32_t declared) {
  if (!kind) return static_cast<int>(declared);
  for (size_t i = 0; i < kind->outputs.size(); ++i) {
    if (node.outputs[declared].name == kind->outputs[i]) return static_cast<int>(i);
  }
  return -1;
}

void note(Snapshot::Node& node, const std::string& problem) {
  if (node.problem.empty()) node.problem = "node '" + node.name + "'" + problem;
}

Snapshot::Input input_of(const InputSlot& slot, const Index& index, Snapshot::Node& node) {
  Snapshot::Input input = {slot.name, {}};
  const auto producer = slot.linked ? slot.source() : nullptr;
  if (!producer) return input;
  const auto found = index.find(producer.get());
  if (found == index.end()) {
    note(node, ", input '" + slot.name + "': node '" + producer->name +
                   "' was connected after SetInputs and is not in the graph");
    return input;
  }
  const int output = output_of_kind(*producer, find_kind(producer->type), slot.output);
  if (output < 0) {
    note(node, ", input '" + slot.name + "': operator type " + producer->type + " has no output '" +
                   producer->outputs[slot.output].name + "' here");
    return input;
  }
  input.from = {found->second, output};
  return input;
}

void add_inputs(const OperatorImpl& from, const Index& index, Snapshot::Node& node) {
  if (!node.kind) {
    for (const InputSlot& slot : from.inputs) node.inputs.push_back(input_of(slot, index, node));
    return;
  }
  for (const char* name : node.kind->inputs) {
    const InputSlot* slot = find(from.inputs, name);
    node.inputs.push_back(slot ? input_of(*slot, index, node) : Snapshot::Input{name, {}});
  }
  for (const InputSlot& slot : from.inputs) {
    const auto& names = node.kind->inputs;
    const bool taken = std::any_of(names.begin(), names.end(),
                                   [&](const char* name) { return slot.name == name; });
    if (slot.linked && !taken) {
      note(node, ", input '" + slot.name + "': operator type " + node.type + " does not take it");
    }
  }
}

void add_outputs(const OperatorImpl& from, Snapshot::Node& node) {
  const auto add = [&](const std::string& name, const OutputSlot* slot) {
    Snapshot::Output output = {name, std::nullopt};
    if (slot && slot->stated) output.stated = slot->desc;
    node.outputs.push_back(std::move(output));
  };
  if (!node.kind) {
    for (const OutputSlot& slot : from.outputs) add(slot.name, &slot);
    return;
  }
  for (const char* name : node.kind->outputs) add(name, find(from.outputs, name));
  // Programs describe Data by its input, its output or both.
  std::optional<::ge::TensorDesc>& stated = node.outputs[0].stated;
  if (node.kind == &kData && !stated && !from.inputs.empty() && from.inputs[0].stated) {
    stated = from.inputs[0].desc;
  }
}

Snapshot::Node take_node(const OperatorImpl& from, const Index& index) {
  Snapshot::Node node;
  node.name = from.name;
  node.type = from.type;
  node.kind = find_kind(from.type);
  node.attributes = from.attributes;
  node.problem = from.problem;
  for (const InputSlot& slot : from.inputs) {
    if (node.problem.empty()) node.problem = slot.problem;
  }
  add_inputs(from, index, node);
  add_outputs(from, node);
  if (!node.kind) note(node, ": operator type '" + node.type + "' is not supported");
  if (node.kind == &kConst || node.kind == &kConstant) {
    for (const auto& [name, value] : node.attributes) {
      ::ge::Tensor tensor;
      if (name == "value" && value.GetAttrValue(tensor) == ::ge::GRAPH_SUCCESS) {
        node.constant = tensor.Clone();
      }
    }
    const ::ge::TensorDesc desc = node.constant.GetTensorDesc();
    if (!node.constant.GetData() || !is_known(desc.GetShape()) ||
        count_bytes(desc) != static_cast<int64_t>(node.constant.GetSize())) {
      note(node, ", attribute 'value': expected a tensor with data for its shape, " +
                     text(desc.GetShape()) + " of " + text(desc.GetDataType()) + ", got " +
                     std::to_string(node.constant.GetSize()) + " bytes");
    }
  }
  return node;
}

// By their attribute `index` if that numbers them all, else in the order of SetInputs.
std::vector<int> feed_order(const std::vector<Snapshot::Node>& nodes) {
  std::vector<int> order;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].kind == &kData) order.push_back(static_cast<int>(i));
  }
  std::vector<int> by_index(order.size(), -1);
  for (const int node : order) {
    int64_t index = -1;
    for (const auto& [name, value] : nodes[node].attributes) {
      if (name == "index") (void)value.GetAttrValue(index);
    }
    if (index < 0 || index >= static_cast<int64_t>(by_index.size())) return order;
    if (by_index[index] >= 0) return order;
    by_index[index] = node;
  }
  return by_index;
}

template <class T>
std::string element_text(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return '"' + value + '"';
  } else if constexpr (std::is_same_v<T, ::ge::Tensor>) {
    return text(value.GetTensorDesc().GetDataType()) + " " + text(value.GetTensorDesc().GetShape());
  } else if constexpr (std::is_same_v<T, ::ge::DataType>) {
    return text(value);
  } else if constexpr (std::is_same_v<T, ::ge::NamedAttrs>) {
    return value.GetName().GetString();
  } else if constexpr (std::is_same_v<T, float>) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%.9g", static_cast<double>(value));
    return digits;
  } else {
    return std::to_string(value);
  }
}

template <class T>
std::string element_text(const std::vector<T>& values) {
  std::string result = "[";
  for (const T& value : values) {
    if (result.size() > 1) result += ", ";
    result += element_text(value);
  }
  return result + "]";
}

}  // namespace

Snapshot take_snapshot(const ::ge::Graph& graph) {
  const ::ge::GraphImpl& from = *::ge::Internals::of(graph);
  Index index;
  for (const auto& node : from.nodes) index.emplace(node.get(), static_cast<int>(index.size()));
  Snapshot snapshot;
  snapshot.name = from.name;
  for (const auto& node : from.nodes) snapshot.nodes.push_back(take_node(*node, index));
  for (const auto& [node, declared] : from.outputs) {
    Snapshot::Node& owner = snapshot.nodes[index.at(node.get())];
    const int output = output_of_kind(*node, owner.kind, declared);
    if (output < 0) {
      note(owner, ": operator type " + owner.type + " has no output '" +
                      node->outputs[declared].name + "' here");
    }
    snapshot.outputs.push_back({index.at(node.get()), std::max(output, 0)});
  }
  snapshot.feeds = feed_order(snapshot.nodes);
  return snapshot;
}

std::string text(const ::ge::AttrValue& value) {
  const auto& impl = ::ge::Internals::of(value);
  if (!impl) return "";
  return std::visit([](const auto& held) { return element_text(held); }, impl->value);
}

}  // namespace normgrad::graph_mode
