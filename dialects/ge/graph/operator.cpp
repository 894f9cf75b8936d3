// Operator: names, edges and descriptions.
#include "graph/operator.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <unordered_set>

#include "error.hpp"
#include "graph/node.hpp"

namespace ge {

using normgrad::graph_mode::fail;
using normgrad::graph_mode::guard;

// Frees the producers that nobody else holds one after the other. Left to themselves they would
// free each other, as deep in the stack as the chain of them is long.
OperatorImpl::~OperatorImpl() {
  try {
    std::vector<std::shared_ptr<OperatorImpl>> open;
    const auto take_producers = [&](OperatorImpl& node) {
      for (InputSlot& input : node.inputs) {
        if (input.producer) open.push_back(std::move(input.producer));
      }
    };
    take_producers(*this);
    while (!open.empty()) {
      const std::shared_ptr<OperatorImpl> node = std::move(open.back());
      open.pop_back();
      if (node.use_count() == 1) take_producers(*node);
    }
  } catch (const std::bad_alloc&) {  // then they do free each other
  }
}

namespace {

std::shared_ptr<OperatorImpl> make_node(const char* name, const char* type) {
  auto node = std::make_shared<OperatorImpl>();
  node->name = name ? name : "";
  node->type = type ? type : "";
  return node;
}

std::string made_up_name(const char* type) {
  static std::atomic<uint64_t> count{0};
  return std::string(type ? type : "") + "_" + std::to_string(count++);
}

// The slot of that name, or null. Slots are inputs or outputs, const or not.
template <class Slots>
auto* find(Slots& slots, const char* name) {
  const auto found = std::find_if(slots.begin(), slots.end(),
                                  [&](const auto& slot) { return name && slot.name == name; });
  return found == slots.end() ? nullptr : &*found;
}

// Whether an edge from `node` to `consumer` would close a cycle.
bool depends_on(const OperatorImpl* node, const OperatorImpl* consumer) {
  if (node == consumer) return true;
  if (consumer->consumers.empty()) return false;  // as always when a graph is built in order
  std::vector<const OperatorImpl*> open = {node};
  std::unordered_set<const OperatorImpl*> seen = {node};
  while (!open.empty()) {
    const OperatorImpl* next = open.back();
    open.pop_back();
    if (next == consumer) return true;
    for (const InputSlot& input : next->inputs) {
      if (input.producer && seen.insert(input.producer.get()).second) {
        open.push_back(input.producer.get());
      }
    }
  }
  return false;
}

void link(const std::shared_ptr<OperatorImpl>& consumer, InputSlot& input,
          const std::shared_ptr<OperatorImpl>& producer, uint32_t output) {
  if (const auto before = input.source()) {
    auto& others = before->consumers;
    const auto mine = std::find_if(others.begin(), others.end(),
                                   [&](const auto& other) { return other.lock() == consumer; });
    if (mine != others.end()) others.erase(mine);
  }
  const bool cycle = depends_on(producer.get(), consumer.get());
  auto& consumers = producer->consumers;
  if (consumers.size() == consumers.capacity()) {  // the dead ones go before the list grows
    std::erase_if(consumers, [](const auto& other) { return other.expired(); });
  }
  consumers.push_back(consumer);
  input.linked = true;
  input.producer = cycle ? nullptr : producer;
  input.weak_producer = producer;
  input.output = output;
  input.problem.clear();
  if (producer->outputs[output].stated) input.desc = producer->outputs[output].desc;
}

// SetInput: `choose` returns the index of the producer's output, or -1 having set the reason.
template <class Choose>
void connect(const std::shared_ptr<OperatorImpl>& node, const char* dst,
             const std::shared_ptr<OperatorImpl>& producer, const Choose& choose) {
  (void)guard([&]() -> uint32_t {
    if (!node) return fail(GRAPH_FAILED, "SetInput: the operator is empty");
    const std::string where = "node '" + node->name + "', input '" + (dst ? dst : "") + "': ";
    InputSlot* input = find(node->inputs, dst);
    int64_t output = -1;
    std::string why;
    if (!input) {
      why = "operator type " + node->type + " has no such input";
    } else if (!producer) {
      why = "the operator given to SetInput is empty";
    } else {
      output = choose(*producer, why);
    }
    if (output >= 0) {
      link(node, *input, producer, static_cast<uint32_t>(output));
      return GRAPH_SUCCESS;
    }
    std::string& problem = input ? input->problem : node->problem;
    if (input || problem.empty()) problem = where + why;
    return fail(GRAPH_FAILED, where + why);
  });
}

template <class Slots>
graphStatus update(Slots* slots, const char* which, size_t index, const std::string& name,
                   const TensorDesc& desc) {
  return guard([&]() -> uint32_t {
    if (!slots || index >= slots->size()) {
      return fail(GRAPH_PARAM_INVALID, std::string("Update") + which +
                                           "Desc: the operator has no such " + which + ": " +
                                           (name.empty() ? std::to_string(index) : name));
    }
    (*slots)[index].desc = desc;
    (*slots)[index].stated = true;
    return GRAPH_SUCCESS;
  });
}

template <class Slots>
graphStatus update(Slots* slots, const char* which, const char* name, const TensorDesc& desc) {
  return guard([&]() -> uint32_t {
    const auto* slot = slots ? find(*slots, name) : nullptr;
    return update(slots, which, slot ? slot - slots->data() : SIZE_MAX, name ? name : "", desc);
  });
}

template <class Slots>
TensorDesc desc_of(const Slots* slots, const char* name) {
  const auto* slot = slots ? find(*slots, name) : nullptr;
  return slot ? slot->desc : TensorDesc();
}

template <class Slots>
TensorDesc desc_of(const Slots* slots, size_t index) {
  return slots && index < slots->size() ? (*slots)[index].desc : TensorDesc();
}

}  // namespace

Operator::Operator(const char* type) : impl_(make_node(made_up_name(type).c_str(), type)) {}
Operator::Operator(const std::string& type) : Operator(type.c_str()) {}
Operator::Operator(const AscendString& type) : Operator(type.GetString()) {}
Operator::Operator(const char* name, const char* type) : impl_(make_node(name, type)) {}
Operator::Operator(const std::string& name, const std::string& type)
    : Operator(name.c_str(), type.c_str()) {}
Operator::Operator(const AscendString& name, const AscendString& type)
    : Operator(name.GetString(), type.GetString()) {}
Operator::~Operator() = default;

bool Operator::IsEmpty() const { return !impl_; }
std::string Operator::GetName() const { return impl_ ? impl_->name : ""; }
std::string Operator::GetOpType() const { return impl_ ? impl_->type : ""; }

graphStatus Operator::GetName(AscendString& name) const {
  return guard([&]() -> uint32_t {
    if (!impl_) return fail(GRAPH_FAILED, "GetName: the operator is empty");
    name = impl_->name.c_str();
    return GRAPH_SUCCESS;
  });
}

graphStatus Operator::GetOpType(AscendString& type) const {
  return guard([&]() -> uint32_t {
    if (!impl_) return fail(GRAPH_FAILED, "GetOpType: the operator is empty");
    type = impl_->type.c_str();
    return GRAPH_SUCCESS;
  });
}

Operator& Operator::SetInput(const char* dst, const Operator& src) {
  connect(impl_, dst, src.impl_, [](const OperatorImpl& producer, std::string& why) -> int64_t {
    if (producer.outputs.size() == 1) return 0;
    why = "node '" + producer.name + "' has " + std::to_string(producer.outputs.size()) +
          " outputs; say which by index or name";
    return -1;
  });
  return *this;
}

Operator& Operator::SetInput(const char* dst, const Operator& src, const char* output) {
  connect(impl_, dst, src.impl_, [&](const OperatorImpl& producer, std::string& why) -> int64_t {
    const OutputSlot* slot = find(producer.outputs, output);
    if (slot) return slot - producer.outputs.data();
    why = "node '" + producer.name + "' has no output '" + (output ? output : "") + "'";
    return -1;
  });
  return *this;
}

Operator& Operator::SetInputByIndex(const char* dst, const Operator& src, uint32_t index) {
  connect(impl_, dst, src.impl_, [&](const OperatorImpl& producer, std::string& why) -> int64_t {
    if (index < producer.outputs.size()) return index;
    why = "node '" + producer.name + "' has " + std::to_string(producer.outputs.size()) +
          " outputs, none of index " + std::to_string(index);
    return -1;
  });
  return *this;
}

Operator& Operator::SetInput(const std::string& dst, const Operator& src) {
  return SetInput(dst.c_str(), src);
}
Operator& Operator::SetInput(const std::string& dst, const Operator& src,
                             const std::string& output) {
  return SetInput(dst.c_str(), src, output.c_str());
}

size_t Operator::GetInputsSize() const { return impl_ ? impl_->inputs.size() : 0; }
size_t Operator::GetOutputsSize() const { return impl_ ? impl_->outputs.size() : 0; }

TensorDesc Operator::GetInputDesc(uint32_t index) const {
  return desc_of(impl_ ? &impl_->inputs : nullptr, index);
}
TensorDesc Operator::GetInputDescByName(const char* name) const {
  return desc_of(impl_ ? &impl_->inputs : nullptr, name);
}
TensorDesc Operator::GetInputDesc(const std::string& name) const {
  return GetInputDescByName(name.c_str());
}
TensorDesc Operator::GetOutputDesc(uint32_t index) const {
  return desc_of(impl_ ? &impl_->outputs : nullptr, index);
}
TensorDesc Operator::GetOutputDescByName(const char* name) const {
  return desc_of(impl_ ? &impl_->outputs : nullptr, name);
}
TensorDesc Operator::GetOutputDesc(const std::string& name) const {
  return GetOutputDescByName(name.c_str());
}

graphStatus Operator::UpdateInputDesc(const char* name, const TensorDesc& desc) {
  return update(impl_ ? &impl_->inputs : nullptr, "Input", name, desc);
}
graphStatus Operator::UpdateInputDesc(const std::string& name, const TensorDesc& desc) {
  return UpdateInputDesc(name.c_str(), desc);
}
graphStatus Operator::UpdateInputDescByIndex(uint32_t index, const TensorDesc& desc) {
  return update(impl_ ? &impl_->inputs : nullptr, "Input", index, "", desc);
}
graphStatus Operator::UpdateOutputDesc(const char* name, const TensorDesc& desc) {
  return update(impl_ ? &impl_->outputs : nullptr, "Output", name, desc);
}
graphStatus Operator::UpdateOutputDesc(const std::string& name, const TensorDesc& desc) {
  return UpdateOutputDesc(name.c_str(), desc);
}
graphStatus Operator::UpdateOutputDescByIndex(uint32_t index, const TensorDesc& desc) {
  return update(impl_ ? &impl_->outputs : nullptr, "Output", index, "", desc);
}

}  // namespace ge
