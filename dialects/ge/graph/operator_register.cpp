// Operator: what prototypes declare, attributes, and inference.
#include <algorithm>

#include "error.hpp"
#include "graph/node.hpp"
#include "graph/operator.h"
#include "kinds/operator_kind.hpp"

namespace ge {

using normgrad::graph_mode::Descs;
using normgrad::graph_mode::fail;
using normgrad::graph_mode::find_kind;
using normgrad::graph_mode::guard;

namespace {

std::string element(const char* name, uint32_t index) { return name + std::to_string(index); }

template <class Attributes>
auto find_attribute(Attributes& attributes, const char* name) {
  return std::find_if(attributes.begin(), attributes.end(),
                      [&](const auto& attribute) { return name && attribute.first == name; });
}

// What is known of an input: what its producer says, else what the program has said of it.
TensorDesc known(const InputSlot& input) {
  const auto producer = input.linked ? input.source() : nullptr;
  if (!producer) return input.desc;
  const OutputSlot& output = producer->outputs[input.output];
  if (output.stated || output.inferred) return output.desc;
  // Data that was described by its input only.
  if (producer->type == "Data" && !producer->inputs.empty() && producer->inputs[0].stated) {
    return producer->inputs[0].desc;
  }
  return input.desc;
}

}  // namespace

void Operator::InputRegister(const char* name) {
  if (impl_) impl_->inputs.push_back({.name = name});
}

void Operator::OptionalInputRegister(const char* name) {
  if (impl_) impl_->inputs.push_back({.name = name});
}

void Operator::OutputRegister(const char* name) {
  if (impl_) impl_->outputs.push_back({.name = name});
}

void Operator::AttrRegister(const char* name, const AttrValue& value) { SetAttr(name, value); }

void Operator::DynamicInputRegister(const char* name, uint32_t count, bool push_back) {
  DynamicInputRegisterByIndex(name, count, push_back ? GetInputsSize() : 0);
}

void Operator::DynamicInputRegisterByIndex(const char* name, uint32_t count, size_t index) {
  if (!impl_) return;
  auto& inputs = impl_->inputs;
  std::vector<InputSlot> added;
  for (uint32_t i = 0; i < count; ++i) added.push_back({.name = element(name, i)});
  inputs.insert(inputs.begin() + static_cast<ptrdiff_t>(std::min(index, inputs.size())),
                added.begin(), added.end());
}

void Operator::DynamicOutputRegister(const char* name, uint32_t count, bool push_back) {
  if (!impl_) return;
  auto& outputs = impl_->outputs;
  std::vector<OutputSlot> added;
  for (uint32_t i = 0; i < count; ++i) added.push_back({.name = element(name, i)});
  outputs.insert(push_back ? outputs.end() : outputs.begin(), added.begin(), added.end());
}

void Operator::SetSubgraphBuilder(const char* name, const SubgraphBuilder& builder) {
  if (impl_) impl_->subgraphs[name] = builder;
}

Operator::SubgraphBuilder Operator::GetSubgraphBuilder(const char* name) const {
  if (!impl_) return nullptr;
  const auto found = impl_->subgraphs.find(name);
  return found == impl_->subgraphs.end() ? nullptr : found->second;
}

Operator& Operator::SetAttr(const char* name, const AttrValue& value) {
  (void)guard([&]() -> uint32_t {
    if (!impl_ || !name) return fail(GRAPH_FAILED, "SetAttr: the operator or the name is empty");
    const auto found = find_attribute(impl_->attributes, name);
    if (found != impl_->attributes.end()) {
      found->second = value;
    } else {
      impl_->attributes.emplace_back(name, value);
    }
    return GRAPH_SUCCESS;
  });
  return *this;
}

graphStatus Operator::GetAttr(const char* name, AttrValue& value) const {
  return guard([&]() -> uint32_t {
    if (!impl_) return fail(GRAPH_FAILED, "GetAttr: the operator is empty");
    const auto found = find_attribute(impl_->attributes, name);
    if (found == impl_->attributes.end()) {
      return fail(GRAPH_FAILED,
                  "node '" + impl_->name + "': it has no attribute '" + (name ? name : "") + "'");
    }
    value = found->second;
    return GRAPH_SUCCESS;
  });
}

graphStatus Operator::InferShapeAndType() {
  return guard([&]() -> uint32_t {
    if (!impl_) return fail(GRAPH_FAILED, "InferShapeAndType: the operator is empty");
    const auto* kind = find_kind(impl_->type);
    if (!kind || !kind->infer) {
      return fail(GRAPH_FAILED,
                  "node '" + impl_->name + "': nothing can be inferred for type " + impl_->type);
    }
    Descs inputs;
    for (const char* name : kind->inputs) {
      const auto input = std::find_if(impl_->inputs.begin(), impl_->inputs.end(),
                                      [&](const InputSlot& slot) { return slot.name == name; });
      if (input == impl_->inputs.end()) {
        return fail(GRAPH_FAILED,
                    "node '" + impl_->name + "': its prototype has no input '" + name + "'");
      }
      input->desc = known(*input);
      inputs.push_back(input->desc);
    }
    const Descs outputs = kind->infer(inputs);
    for (OutputSlot& slot : impl_->outputs) {
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (slot.name != kind->outputs[i]) continue;
        const bool keeps_type = slot.stated && (kind->float_outputs >> i & 1);
        const DataType type = keeps_type ? slot.desc.GetDataType() : outputs[i].GetDataType();
        slot.desc = outputs[i];
        slot.desc.SetDataType(type);
        slot.stated = keeps_type;
        slot.inferred = true;
      }
    }
    return GRAPH_SUCCESS;
  });
}

}  // namespace ge
