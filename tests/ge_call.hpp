// Graphs with one operator and its Data, for the tests of graph mode: what a test changes is one
// line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "array_ops.h"
#include "ge_api.h"
#include "graph.h"
#include "ops_proto_nn.h"
#include "reference/elements.hpp"

namespace ge_test {

using Dims = std::vector<int64_t>;
using Options = std::map<ge::AscendString, ge::AscendString>;
using Tensors = std::vector<ge::Tensor>;

inline normgrad::DType native(ge::DataType type) {
  return type == ge::DT_FLOAT     ? normgrad::DType::kF32
         : type == ge::DT_FLOAT16 ? normgrad::DType::kF16
                                  : normgrad::DType::kBF16;
}

inline ge::TensorDesc desc_of(const Dims& dims, ge::DataType type = ge::DT_FLOAT,
                              ge::Format format = ge::FORMAT_ND) {
  return ge::TensorDesc(ge::Shape(dims), format, type);
}

inline int64_t count(const Dims& dims) {
  int64_t product = 1;
  for (const int64_t extent : dims) product *= extent;
  return product;
}

inline ge::Tensor tensor_of(const ge::TensorDesc& desc, const std::vector<double>& values) {
  const normgrad::Tensor tensor = {native(desc.GetDataType()), desc.GetShape().GetDims()};
  std::vector<uint8_t> bytes(values.size() * normgrad::size_of(tensor.dtype));
  normgrad::reference::scatter(tensor, bytes.data(), values);
  return ge::Tensor(desc, bytes);
}

// Small numbers, different for each seed and exact in every type.
inline ge::Tensor some_tensor(const ge::TensorDesc& desc, int seed) {
  std::vector<double> values(count(desc.GetShape().GetDims()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>((i * 7 + seed * 3) % 11 + 1) / 4;
  }
  return tensor_of(desc, values);
}

inline std::vector<double> values_of(const ge::Tensor& tensor) {
  const ge::TensorDesc desc = tensor.GetTensorDesc();
  return normgrad::reference::gather({native(desc.GetDataType()), desc.GetShape().GetDims()},
                                     tensor.GetData());
}

inline bool same_bytes(const ge::Tensor& a, const ge::Tensor& b) {
  return a.GetSize() == b.GetSize() && std::memcmp(a.GetData(), b.GetData(), a.GetSize()) == 0;
}

// One operator. `Op` is its class; its inputs are Data in the order of `inputs`.
template <class Op>
struct Call {
  struct Input {
    std::string name;
    ge::TensorDesc desc;
  };

  explicit Call(std::vector<Input> given) : inputs(std::move(given)), node("node") {}

  // Data, edges, inputs and outputs. `described` tells the graph the shapes beforehand.
  ge::Graph& build(bool described = true) {
    graph = ge::Graph("graph");
    data.clear();
    for (const Input& input : inputs) {
      data.emplace_back(input.name.c_str());
      if (described) {
        data.back().update_input_desc_x(input.desc);
        data.back().update_output_desc_y(input.desc);
      }
      node.SetInput(input.name.c_str(), data.back());
    }
    graph.SetInputs(std::vector<ge::Operator>(data.begin(), data.end()));
    graph.SetOutputs(std::vector<ge::Operator>{node});
    return graph;
  }

  Tensors feeds() const {
    Tensors tensors;
    for (size_t i = 0; i < inputs.size(); ++i) {
      tensors.push_back(some_tensor(inputs[i].desc, static_cast<int>(i)));
    }
    return tensors;
  }

  ge::TensorDesc& operator[](const std::string& name) {
    for (Input& input : inputs) {
      if (input.name == name) return input.desc;
    }
    return inputs.at(inputs.size()).desc;  // throws
  }

  std::vector<Input> inputs;
  Op node;
  std::vector<ge::op::Data> data;
  ge::Graph graph;
};

// dy and x (3, 2, 5), the last axis normalized.
inline Call<ge::op::LayerNormGrad> layer_norm(ge::DataType data = ge::DT_FLOAT,
                                              ge::DataType gamma = ge::DT_FLOAT) {
  return Call<ge::op::LayerNormGrad>({{"dy", desc_of({3, 2, 5}, data)},
                                      {"x", desc_of({3, 2, 5}, data)},
                                      {"variance", desc_of({3, 2, 1})},
                                      {"mean", desc_of({3, 2, 1})},
                                      {"gamma", desc_of({5}, gamma)}});
}

inline Call<ge::op::LayerNormGradV3> layer_norm_v3() {
  return Call<ge::op::LayerNormGradV3>({{"dy", desc_of({3, 2, 5})},
                                        {"x", desc_of({3, 2, 5})},
                                        {"rstd", desc_of({3, 2, 1})},
                                        {"mean", desc_of({3, 2, 1})},
                                        {"gamma", desc_of({5})}});
}

inline Call<ge::op::RmsNormGrad> rms_norm() {
  return Call<ge::op::RmsNormGrad>({{"dy", desc_of({3, 2, 5})},
                                    {"x", desc_of({3, 2, 5})},
                                    {"rstd", desc_of({3, 2})},
                                    {"gamma", desc_of({5})}});
}

inline Call<ge::op::BatchNormGradV3> batch_norm(ge::Format format = ge::FORMAT_NCHW) {
  const Dims dims = format == ge::FORMAT_NHWC ? Dims{2, 4, 3, 5} : Dims{2, 5, 4, 3};
  return Call<ge::op::BatchNormGradV3>({{"dy", desc_of(dims, ge::DT_FLOAT, format)},
                                        {"x", desc_of(dims, ge::DT_FLOAT, format)},
                                        {"weight", desc_of({5})},
                                        {"running_mean", desc_of({5})},
                                        {"running_var", desc_of({5})},
                                        {"save_mean", desc_of({5})},
                                        {"save_rstd", desc_of({5})}});
}

// The engine for the time of a test.
struct Engine {
  Engine() { (void)ge::GEInitialize(Options{}); }
  ~Engine() { (void)ge::GEFinalize(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
};

// Adds and runs a graph in a session of its own.
inline ge::Status run(const ge::Graph& graph, const Tensors& inputs, Tensors& outputs) {
  ge::Session session(Options{});
  const ge::Status status = session.AddGraph(1, graph);
  return status == ge::SUCCESS ? session.RunGraph(1, inputs, outputs) : status;
}

}  // namespace ge_test
