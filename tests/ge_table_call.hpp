// A graph of one operator between Data and outputs, described by tables, so that a test is written
// once for all operators. run_graph is the front end for the case table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "array_ops.h"
#include "ge/ge_api.h"
#include "graph/operator_factory.h"
#include "ops_proto_nn.h"
#include "reference/cases.hpp"
#include "reference/elements.hpp"

namespace ge_test {

using normgrad::DType;
using Shape = std::vector<int64_t>;
using Options = std::map<ge::AscendString, ge::AscendString>;

// What messages call the operator under test.
inline constexpr const char* kNode = "grad7";

inline int64_t product(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

inline ge::DataType ge_dtype(DType dtype) {
  return dtype == DType::kF32 ? ge::DT_FLOAT : dtype == DType::kF16 ? ge::DT_FLOAT16 : ge::DT_BF16;
}

struct Operand {
  std::string name;
  ge::DataType dtype = ge::DT_FLOAT;
  Shape shape = {};
  void* data = nullptr;
  ge::Format format = ge::FORMAT_ND;
  bool wanted = true;  // of an output
  bool stated = true;  // of an output: its description is told to the graph beforehand

  size_t bytes() const {
    return static_cast<size_t>(product(shape)) * static_cast<size_t>(ge::GetSizeByDataType(dtype));
  }
  ge::TensorDesc desc() const { return ge::TensorDesc(ge::Shape(shape), format, dtype); }
};

struct Call {
  std::string type;
  std::vector<Operand> inputs, outputs;  // as declared
  std::optional<std::vector<bool>> mask = {};
  std::optional<float> epsilon = {};
  std::optional<bool> training = {};

  Operand& operator[](const std::string& name) {
    for (std::vector<Operand>* operands : {&inputs, &outputs}) {
      for (Operand& operand : *operands) {
        if (operand.name == name) return operand;
      }
    }
    throw std::out_of_range(type + " has no " + name);
  }
};

// The tensor uses the memory of the operand, at whatever address that is.
inline ge::Tensor tensor_of(const Operand& operand) {
  ge::Tensor tensor(operand.desc());
  if (operand.data != nullptr) {
    (void)tensor.SetData(static_cast<uint8_t*>(operand.data), operand.bytes(), [](uint8_t*) {});
  }
  return tensor;
}

inline std::vector<ge::Tensor> feeds_of(const Call& call) {
  std::vector<ge::Tensor> feeds;
  for (const Operand& input : call.inputs) feeds.push_back(tensor_of(input));
  return feeds;
}

inline ge::op::Data data_of(const Operand& operand) {
  ge::op::Data data(("data_" + operand.name).c_str());
  (void)data.update_input_desc_x(operand.desc());
  (void)data.update_output_desc_y(operand.desc());
  return data;
}

// The operator with its attributes and what is stated of its outputs; nothing feeds it yet.
inline ge::Operator node_of(const Call& call, const char* name = kNode) {
  ge::Operator node = ge::OperatorFactory::CreateOperator(name, call.type.c_str());
  for (const Operand& output : call.outputs) {
    if (output.stated) (void)node.UpdateOutputDesc(output.name, output.desc());
  }
  if (call.mask) node.SetAttr("output_mask", *call.mask);
  if (call.epsilon) node.SetAttr("epsilon", *call.epsilon);
  if (call.training) node.SetAttr("is_training", *call.training);
  return node;
}

// With a mask all outputs are those of the graph, otherwise the wanted ones.
inline void set_outputs(ge::Graph& graph, const ge::Operator& node, const Call& call) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    if (call.outputs[i].wanted) indices.push_back(i);
  }
  if (call.mask || indices.size() == call.outputs.size()) {
    graph.SetOutputs(std::vector<ge::Operator>{node});
  } else {
    graph.SetOutputs({std::make_pair(node, indices)});
  }
}

inline ge::Graph graph_of(const Call& call) {
  ge::Graph graph("graph");
  ge::Operator node = node_of(call);
  std::vector<ge::Operator> sources;
  for (const Operand& input : call.inputs) {
    ge::op::Data data = data_of(input);
    node.SetInput(input.name.c_str(), data);
    sources.push_back(data);
  }
  graph.SetInputs(sources);
  set_outputs(graph, node, call);
  return graph;
}

struct Result {
  ge::Status status = ge::SUCCESS;
  std::string message = {};
  std::vector<ge::Tensor> outputs = {};
};

// In a session of its own.
inline Result run(const ge::Graph& graph, const std::vector<ge::Tensor>& feeds,
                  std::vector<ge::Tensor> outputs = {}) {
  Result result;
  (void)ge::GEGetErrorMsgV2();
  ge::Session session{Options()};
  result.status = session.AddGraph(1, graph);
  if (result.status == ge::SUCCESS) result.status = session.RunGraph(1, feeds, outputs);
  result.message = ge::GEGetErrorMsgV2().GetString();
  result.outputs = std::move(outputs);
  return result;
}

inline Result run(const Call& call) { return run(graph_of(call), feeds_of(call)); }

// Empty, or what is wrong with an output tensor.
inline std::string misfit(const Operand& expected, const ge::Tensor& tensor) {
  const ge::TensorDesc desc = tensor.GetTensorDesc();
  if (desc.GetDataType() != expected.dtype) return expected.name + ": another dtype";
  if (desc.GetShape().GetDims() != expected.shape) return expected.name + ": another shape";
  if (tensor.GetSize() != expected.bytes()) return expected.name + ": another size";
  if (expected.bytes() > 0 && tensor.GetData() == nullptr) return expected.name + ": no data";
  return {};
}

inline Operand operand_of(const char* name, const normgrad::Tensor& tensor, const void* data,
                          ge::Format format = ge::FORMAT_ND) {
  return {name, ge_dtype(tensor.dtype), tensor.shape, const_cast<void*>(data), format};
}

// An output that is not wanted has the description that it would have.
inline Operand output_of(const char* name, const std::optional<normgrad::Tensor>& tensor,
                         const normgrad::Tensor& like, void* data,
                         ge::Format format = ge::FORMAT_ND) {
  Operand output = operand_of(name, tensor.value_or(like), data, format);
  output.wanted = tensor.has_value();
  return output;
}

inline bool is_dense(const normgrad::Tensor& tensor) {
  return tensor.strides.empty() ||
         tensor.strides == normgrad::reference::strides_of({tensor.dtype, tensor.shape});
}

inline bool is_plain(const normgrad::Tensor& tensor, DType dtype) {
  return is_dense(tensor) && tensor.dtype == dtype;
}

// The types and layouts of data, parameters and their gradients that graph mode has.
template <class C>
bool has_words(const C& c, const std::optional<normgrad::Tensor>& dbeta) {
  if (!is_dense(c.x) || !is_dense(c.dy) || product(c.x.shape) == 0) return false;
  if (c.dx && !is_plain(*c.dx, c.x.dtype)) return false;
  if (!c.gamma || !is_dense(*c.gamma)) return false;
  const DType gamma = c.gamma->dtype;
  if (gamma != DType::kF32 && gamma != c.x.dtype) return false;
  if (c.dgamma && dbeta && c.dgamma->dtype != dbeta->dtype) return false;
  for (const std::optional<normgrad::Tensor>* gradient : {&c.dgamma, &dbeta}) {
    if (*gradient && !is_plain(**gradient, gamma) && !is_plain(**gradient, DType::kF32)) {
      return false;
    }
  }
  return true;
}

// In the words of graph mode; none where it has no words for the call.
inline std::optional<Call> translate(const normgrad::LayerNormBackward& c,
                                     const normgrad::Buffers& b) {
  if (c.statistics == normgrad::Statistics::kXHatStd || !has_words(c, c.dbeta)) return {};
  if (!is_plain(c.spread, DType::kF32) || !is_plain(*c.mean, DType::kF32)) return {};
  if (c.mean->shape != c.spread.shape) return {};
  const bool variance = c.statistics == normgrad::Statistics::kMeanVariance;
  const normgrad::Tensor& gradient = c.dgamma ? *c.dgamma : c.dbeta ? *c.dbeta : *c.gamma;
  Call call = {
      .type = variance ? "LayerNormGrad" : "LayerNormGradV3",
      .inputs = {operand_of("dy", c.dy, b.dy), operand_of("x", c.x, b.x),
                 operand_of(variance ? "variance" : "rstd", c.spread, b.spread),
                 operand_of("mean", *c.mean, b.mean), operand_of("gamma", *c.gamma, b.gamma)},
      .outputs = {output_of("pd_x", c.dx, c.x, b.dx),
                  output_of("pd_gamma", c.dgamma, gradient, b.dgamma),
                  output_of("pd_beta", c.dbeta, gradient, b.dbeta)}};
  call.mask = {c.dx.has_value(), c.dgamma.has_value(), c.dbeta.has_value()};
  if (variance) call.epsilon = static_cast<float>(c.eps);
  return call;
}

inline std::optional<Call> translate(const normgrad::RmsNormBackward& c,
                                     const normgrad::Buffers& b) {
  if (!c.spread || !is_plain(*c.spread, DType::kF32) || (!c.dx && !c.dgamma)) return {};
  if (!has_words(c, {}) || (c.dgamma && c.dgamma->dtype != DType::kF32)) return {};
  const normgrad::Tensor gradient = {DType::kF32, c.gamma->shape};
  return Call{
      .type = "RmsNormGrad",
      .inputs = {operand_of("dy", c.dy, b.dy), operand_of("x", c.x, b.x),
                 operand_of("rstd", *c.spread, b.spread), operand_of("gamma", *c.gamma, b.gamma)},
      .outputs = {output_of("dx", c.dx, c.x, b.dx),
                  output_of("dgamma", c.dgamma, gradient, b.dgamma)}};
}

// Training has mean and rstd, frozen statistics have mean and variance. The other two are NaN:
// nobody reads them.
inline std::optional<Call> translate(const normgrad::BatchNormBackward& c,
                                     const normgrad::Buffers& b) {
  if (c.frozen != (c.statistics == normgrad::Statistics::kMeanVariance)) return {};
  if (!has_words(c, c.dbeta) || (!c.dx && !c.dgamma && !c.dbeta)) return {};
  if (!is_plain(c.mean, DType::kF32) || !is_plain(c.spread, DType::kF32)) return {};
  const size_t rank = c.x.shape.size(), axis = static_cast<size_t>(c.channel_axis);
  const bool last = axis + 1 == rank && (rank == 4 || rank == 5);
  if (axis != 1 && !last) return {};
  const ge::Format format = axis == 1   ? ge::FORMAT_ND
                            : rank == 4 ? ge::FORMAT_NHWC
                                        : ge::FORMAT_NDHWC;
  static std::vector<uint8_t> unread(size_t{1} << 20, 0xFF);
  const void* running[] = {b.mean, b.spread};
  const void* saved[] = {unread.data(), unread.data()};
  if (!c.frozen) std::swap(running, saved);
  const normgrad::Tensor& gradient = c.dgamma ? *c.dgamma : c.dbeta ? *c.dbeta : *c.gamma;
  Call call = {.type = "BatchNormGradV3",
               .inputs = {operand_of("dy", c.dy, b.dy, format), operand_of("x", c.x, b.x, format),
                          operand_of("weight", *c.gamma, b.gamma),
                          operand_of("running_mean", c.mean, running[0]),
                          operand_of("running_var", c.spread, running[1]),
                          operand_of("save_mean", c.mean, saved[0]),
                          operand_of("save_rstd", c.spread, saved[1])},
               .outputs = {output_of("dx", c.dx, c.x, b.dx, format),
                           output_of("dweight", c.dgamma, gradient, b.dgamma),
                           output_of("dbias", c.dbeta, gradient, b.dbeta)}};
  call.training = !c.frozen;
  if (c.frozen) call.epsilon = static_cast<float>(c.eps);
  return call;
}

inline std::optional<Call> translate(const normgrad::reference::Call& call,
                                     const normgrad::Buffers& buffers) {
  return std::visit([&](const auto& c) { return translate(c, buffers); }, call);
}

inline Call translate(const normgrad::reference::Instance& instance) {
  return translate(instance.call(), instance.buffers()).value();
}

// Copies the wanted outputs of a run to their memory.
inline normgrad::Status copy(const Call& call, const std::vector<ge::Tensor>& outputs) {
  using normgrad::Code;
  size_t next = 0;
  for (const Operand& output : call.outputs) {
    if (!output.wanted && !call.mask) continue;
    if (next == outputs.size()) return {Code::kInternal, "too few outputs"};
    const ge::Tensor& tensor = outputs[next++];
    if (!output.wanted) continue;
    if (std::string why = misfit(output, tensor); !why.empty()) return {Code::kInternal, why};
    std::memcpy(output.data, tensor.GetData(), output.bytes());
  }
  if (next != outputs.size()) return {Code::kInternal, "too many outputs"};
  return {};
}

inline normgrad::Status run_and_copy(const Call& call) {
  const Result result = run(call);
  if (result.status != ge::SUCCESS) return {normgrad::Code::kInternal, result.message};
  return copy(call, result.outputs);
}

// A reference::Runner.
inline normgrad::Status run_graph(const normgrad::reference::Call& call,
                                  const normgrad::Buffers& buffers) {
  const std::optional<Call> translated = translate(call, buffers);
  if (!translated) return {normgrad::Code::kBadArgument, "graph mode cannot say this"};
  return run_and_copy(*translated);
}

}  // namespace ge_test
