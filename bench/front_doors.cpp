// What each front door adds to a call: the gradient of a LayerNorm of 1 x 64, where computing takes
// about a microsecond. Tensor objects, descriptors of tensors and graphs are made once, as programs
// do; what a program repeats for every call is what is timed.
//
//   bench_front_doors --benchmark_repetitions=15 --benchmark_enable_random_interleaving=true
#include <benchmark/benchmark.h>

#include <array>
#include <cstdlib>
#include <map>
#include <vector>

#include "acl/acl.h"
#include "aclnnop/aclnn_layer_norm_backward.h"
#include "array_ops.h"
#include "ge_api.h"
#include "infiniop.h"
#include "normgrad/normgrad.hpp"
#include "op_graph/layer_norm_grad_v3_proto.h"

namespace {

constexpr int64_t kCols = 64;

struct Data {
  std::array<float, kCols> x, dy, gamma, dx, dgamma, dbeta;
  float mean = 0, spread = 1;

  Data() {
    for (size_t i = 0; i < kCols; ++i) {
      x[i] = static_cast<float>(i % 7) - 3;
      dy[i] = static_cast<float>(i % 5) - 2;
      gamma[i] = 1;
    }
  }
  normgrad::Buffers buffers() {
    return {.x = x.data(),
            .dy = dy.data(),
            .gamma = gamma.data(),
            .mean = &mean,
            .spread = &spread,
            .dx = dx.data(),
            .dgamma = dgamma.data(),
            .dbeta = dbeta.data()};
  }
};

// A front door that refuses the call would look very fast.
void require(bool ok) {
  if (!ok) std::abort();
}

normgrad::LayerNormBackward native_call() {
  const normgrad::Tensor rows{normgrad::DType::kF32, {1, kCols}};
  const normgrad::Tensor vector{normgrad::DType::kF32, {kCols}};
  const normgrad::Tensor scalar{normgrad::DType::kF32, {1}};
  return {.x = rows,
          .dy = rows,
          .gamma = vector,
          .mean = scalar,
          .spread = scalar,
          .dx = rows,
          .dgamma = vector,
          .dbeta = vector};
}

void native_execute(benchmark::State& state) {
  Data data;
  const normgrad::Plan plan(native_call());
  std::vector<char> workspace(plan.workspace_size());
  for (auto _ : state) {
    require(plan.execute(data.buffers(), workspace.data(), workspace.size()).ok());
  }
}
BENCHMARK(native_execute);

void native_plan_and_execute(benchmark::State& state) {
  Data data;
  std::vector<char> workspace(normgrad::Plan(native_call()).workspace_size());
  for (auto _ : state) {
    const normgrad::Plan plan(native_call());
    require(plan.execute(data.buffers(), workspace.data(), workspace.size()).ok());
  }
}
BENCHMARK(native_plan_and_execute);

void infiniop_compute(benchmark::State& state) {
  Data data;
  infiniopHandle_t handle;
  require(infiniopCreateHandle(&handle) == INFINI_STATUS_SUCCESS);
  const auto tensor = [](std::vector<size_t> shape) {
    infiniopTensorDescriptor_t desc;
    require(infiniopCreateTensorDescriptor(&desc, shape.size(), shape.data(), nullptr,
                                           INFINI_DTYPE_F32) == INFINI_STATUS_SUCCESS);
    return desc;
  };
  const auto rows = tensor({1, kCols}), vector = tensor({kCols}), scalar = tensor({1});
  infiniopLayerNormBackwardDescriptor_t desc;
  require(infiniopCreateLayerNormBackwardDescriptor(handle, &desc, rows, vector, vector, rows,
                                                    vector, rows, scalar) == INFINI_STATUS_SUCCESS);
  size_t size = 0;
  require(infiniopGetLayerNormBackwardWorkspaceSize(desc, &size) == INFINI_STATUS_SUCCESS);
  std::vector<char> workspace(size);
  for (auto _ : state) {
    require(infiniopLayerNormBackward(desc, workspace.data(), size, data.dx.data(),
                                      data.dgamma.data(), data.dbeta.data(), data.dy.data(),
                                      data.gamma.data(), data.x.data(), &data.spread,
                                      nullptr) == INFINI_STATUS_SUCCESS);
  }
  infiniopDestroyLayerNormBackwardDescriptor(desc);
  for (const auto each : {rows, vector, scalar}) infiniopDestroyTensorDescriptor(each);
  infiniopDestroyHandle(handle);
}
BENCHMARK(infiniop_compute);

// aclTensors and arrays of a call, and its first phase.
struct AclCall {
  Data data;
  aclTensor *x, *dy, *gamma, *mean, *rstd, *dx, *dgamma, *dbeta;
  aclIntArray* normalized_shape;
  aclBoolArray* mask;
  std::vector<char> workspace;

  AclCall() {
    const auto tensor = [](std::vector<int64_t> shape, void* memory) {
      return aclCreateTensor(shape.data(), shape.size(), ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND,
                             shape.data(), shape.size(), memory);
    };
    x = tensor({1, kCols}, data.x.data());
    dy = tensor({1, kCols}, data.dy.data());
    gamma = tensor({kCols}, data.gamma.data());
    mean = tensor({1, 1}, &data.mean);
    rstd = tensor({1, 1}, &data.spread);
    dx = tensor({1, kCols}, data.dx.data());
    dgamma = tensor({kCols}, data.dgamma.data());
    dbeta = tensor({kCols}, data.dbeta.data());
    const int64_t cols = kCols;
    normalized_shape = aclCreateIntArray(&cols, 1);
    const bool all[] = {true, true, true};
    mask = aclCreateBoolArray(all, 3);
    uint64_t size = 0;
    aclDestroyAclOpExecutor(first_phase(size));
    workspace.resize(size);
  }
  ~AclCall() {
    for (const aclTensor* each : {x, dy, gamma, mean, rstd, dx, dgamma, dbeta}) {
      aclDestroyTensor(each);
    }
    aclDestroyIntArray(normalized_shape);
    aclDestroyBoolArray(mask);
  }
  AclCall(const AclCall&) = delete;
  AclCall& operator=(const AclCall&) = delete;

  aclOpExecutor* first_phase(uint64_t& size) const {
    aclOpExecutor* executor = nullptr;
    require(aclnnLayerNormBackwardGetWorkspaceSize(dy, x, normalized_shape, mean, rstd, gamma,
                                                   nullptr, mask, dx, dgamma, dbeta, &size,
                                                   &executor) == ACL_SUCCESS);
    return executor;
  }
  void second_phase(aclOpExecutor* executor) {
    require(aclnnLayerNormBackward(workspace.data(), workspace.size(), executor, nullptr) ==
            ACL_SUCCESS);
  }
};

void aclnn_both_phases(benchmark::State& state) {
  AclCall call;
  uint64_t size = 0;
  for (auto _ : state) call.second_phase(call.first_phase(size));
}
BENCHMARK(aclnn_both_phases);

void aclnn_repeatable(benchmark::State& state) {
  AclCall call;
  uint64_t size = 0;
  aclOpExecutor* executor = call.first_phase(size);
  require(aclSetAclOpExecutorRepeatable(executor) == ACL_SUCCESS);
  for (auto _ : state) call.second_phase(executor);
  aclDestroyAclOpExecutor(executor);
}
BENCHMARK(aclnn_repeatable);

void graph_run(benchmark::State& state) {
  Data data;
  const std::map<ge::AscendString, ge::AscendString> options;
  require(ge::GEInitialize(options) == 0);
  {
    ge::Graph graph("bench");
    ge::op::LayerNormGradV3 node("node");
    std::vector<ge::Operator> inputs;
    std::vector<ge::Tensor> tensors;
    const auto feed = [&](const char* name, std::vector<int64_t> shape, const void* memory) {
      const ge::TensorDesc desc(ge::Shape(shape), ge::FORMAT_ND, ge::DT_FLOAT);
      auto placeholder = ge::op::Data(name).set_attr_index(0);
      placeholder.update_input_desc_x(desc);
      placeholder.update_output_desc_y(desc);
      inputs.push_back(placeholder);
      size_t bytes = sizeof(float);
      for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
      tensors.emplace_back(desc, static_cast<const uint8_t*>(memory), bytes);
      return placeholder;
    };
    auto dy = feed("dy", {1, kCols}, data.dy.data());
    auto x = feed("x", {1, kCols}, data.x.data());
    auto rstd = feed("rstd", {1, 1}, &data.spread);
    auto mean = feed("mean", {1, 1}, &data.mean);
    auto gamma = feed("gamma", {kCols}, data.gamma.data());
    node.set_input_dy(dy).set_input_x(x).set_input_rstd(rstd).set_input_mean(mean).set_input_gamma(
        gamma);
    graph.SetInputs(inputs).SetOutputs(std::vector<ge::Operator>{node});
    ge::Session session(options);
    require(session.AddGraph(1, graph) == 0);
    std::vector<ge::Tensor> outputs;
    for (auto _ : state) require(session.RunGraph(1, tensors, outputs) == 0);
  }
  ge::GEFinalize();
}
BENCHMARK(graph_run);

}  // namespace
