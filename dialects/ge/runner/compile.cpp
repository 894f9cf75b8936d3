// compile(): from a graph and the shapes of its feeds to a program.
#include <algorithm>

#include "kinds/check.hpp"
#include "runner/arena.hpp"
#include "runner/infer.hpp"
#include "runner/program.hpp"

namespace normgrad::graph_mode {
namespace {

class Compiler {
 public:
  Compiler(const Snapshot& graph, std::span<const int> order, const Descs& feeds)
      : graph_(graph), order_(order), descs_(infer(graph, order, &feeds)) {}

  Program compile() {
    for (const Descs& descs : descs_) values_.emplace_back(descs.size());
    for (const Snapshot::Value& output : graph_.outputs) value(output).used = true;
    // Backwards, so that a node knows which of its outputs somebody reads: what is of use to nobody
    // is checked, but not computed.
    for (auto node = order_.rbegin(); node != order_.rend(); ++node) {
      if (graph_.nodes[*node].kind->translate) translate(*node);
    }
    std::reverse(program_.steps.begin(), program_.steps.end());
    std::reverse(translations_.begin(), translations_.end());
    find_lifetimes();
    locate_sources();
    locate_outputs();
    locate_intermediates();
    for (size_t step = 0; step < program_.steps.size(); ++step) connect(step);
    program_.arena_size = arena_.size();
    return std::move(program_);
  }

 private:
  // One output of a node.
  struct Value {
    bool used = false;      // by a graph output or by a step
    bool consumed = false;  // by a step
    bool produced = false;  // some step writes it
    size_t first = 0;       // the steps between which it must be kept
    size_t last = 0;
    Location location = {};
  };

  Value& value(const Snapshot::Value& at) { return values_[at.node][at.output]; }

  // Checks the node, and makes a step of it if it has something to compute.
  void translate(int index) {
    const Snapshot::Node& node = graph_.nodes[index];
    Invocation invocation = {*node.kind, node.name, node.attributes, {}, descs_[index], {}};
    for (const Snapshot::Input& input : node.inputs) {
      invocation.inputs.push_back(descs_[input.from.node][input.from.output]);
    }
    for (const Value& output : values_[index]) invocation.used.push_back(output.used);
    Translation translation = node.kind->translate(invocation);
    bool any = false;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      Value& output = values_[index][i];
      output.produced = translation.outputs[i] != nullptr;
      any = any || output.produced;
      if (output.consumed && !output.produced) {
        refuse(invocation, node.outputs[i].name,
               "another node takes it as input, but output_mask turns it off");
      }
    }
    if (!any) return;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!translation.inputs[i]) continue;
      Value& input = value(node.inputs[i].from);
      input.used = input.consumed = true;
    }
    program_.steps.push_back(
        {.node = index, .plan = translation.plan, .inputs = {}, .outputs = {}});
    translations_.push_back(std::move(translation));
  }

  void find_lifetimes() {
    for (size_t step = 0; step < program_.steps.size(); ++step) {
      const int index = program_.steps[step].node;
      for (Value& output : values_[index]) output.first = output.last = step;
      const std::vector<Snapshot::Input>& inputs = graph_.nodes[index].inputs;
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (translations_[step].inputs[i]) value(inputs[i].from).last = step;
      }
    }
  }

  void locate_sources() {
    for (size_t i = 0; i < graph_.feeds.size(); ++i) {
      values_[graph_.feeds[i]][0].location = {Location::kFeed, i};
    }
    // Tensors that nothing computes or feeds are constants.
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (graph_.nodes[i].kind->translate) continue;
      Location& location = values_[i][0].location;
      if (location.place == Location::kNone) location = {Location::kValue, i};
    }
  }

  // A value that is an output of the graph is computed in its tensor.
  void locate_outputs() {
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      const Snapshot::Value& at = graph_.outputs[i];
      const ::ge::TensorDesc& desc = descs_[at.node][at.output];
      program_.outputs.push_back(desc);
      program_.output_bytes.push_back(static_cast<size_t>(count_bytes(desc)));
      Value& output = value(at);
      if (output.location.place != Location::kNone) {
        program_.copies.emplace_back(output.location, i);
      } else if (output.produced) {
        output.location = {Location::kOutput, i};
      } else {
        program_.zeros.push_back(i);
      }
    }
  }

  // All others, and the workspaces, share the arena.
  void locate_intermediates() {
    std::vector<std::pair<Value*, size_t>> placed;
    for (size_t step = 0; step < program_.steps.size(); ++step) {
      const int node = program_.steps[step].node;
      for (size_t i = 0; i < values_[node].size(); ++i) {
        Value& output = values_[node][i];
        if (!output.produced || output.location.place != Location::kNone) continue;
        const auto bytes = static_cast<size_t>(count_bytes(descs_[node][i]));
        placed.emplace_back(&output, arena_.add(bytes, output.first, output.last));
      }
      workspaces_.push_back(arena_.add(program_.steps[step].plan.workspace_size(), step, step));
    }
    arena_.place();
    for (const auto& [output, buffer] : placed) {
      output->location = {Location::kArena, arena_.offset(buffer)};
    }
  }

  void connect(size_t index) {
    Step& step = program_.steps[index];
    const Snapshot::Node& node = graph_.nodes[step.node];
    const Translation& translation = translations_[index];
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!translation.inputs[i]) continue;
      step.inputs.emplace_back(translation.inputs[i], value(node.inputs[i].from).location);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (!translation.outputs[i]) continue;
      step.outputs.emplace_back(translation.outputs[i], values_[step.node][i].location);
    }
    step.workspace = arena_.offset(workspaces_[index]);
  }

  const Snapshot& graph_;
  const std::span<const int> order_;
  const std::vector<Descs> descs_;
  std::vector<std::vector<Value>> values_;
  std::vector<Translation> translations_;  // of each step
  std::vector<size_t> workspaces_;         // in the arena, of each step
  Arena arena_;
  Program program_;
};

}  // namespace

Program compile(const Snapshot& graph, std::span<const int> order, const Descs& feeds) {
  return Compiler(graph, order, feeds).compile();
}

}  // namespace normgrad::graph_mode
