// The gradient of LayerNorm in graph mode: mean and variance are what the forward pass left. C++11.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "array_ops.h"
#include "ge_api.h"
#include "ge_api_types.h"
#include "ge_error_codes.h"
#include "ge_ir_build.h"
#include "graph.h"
#include "op_graph/layer_norm_grad_proto.h"
#include "tensor.h"
#include "types.h"

using namespace ge;

static void check(Status status, const char *what) {
  if (status == SUCCESS) return;
  std::fprintf(stderr, "%s: %s\n", what, GEGetErrorMsgV2().GetString());
  std::exit(1);
}

// A tensor to feed, and the Data node that it is fed to.
struct Input {
  Input(const char *name, const std::vector<int64_t> &dims, const std::vector<float> &values)
      : desc(Shape(dims), FORMAT_ND, DT_FLOAT),
        tensor(desc, reinterpret_cast<const uint8_t *>(values.data()),
               values.size() * sizeof(float)),
        data(op::Data(name).set_attr_index(0)) {
    data.update_input_desc_x(desc);
    data.update_output_desc_y(desc);
  }
  TensorDesc desc;
  Tensor tensor;
  op::Data data;
};

static void show(const char *name, const Tensor &got, const std::vector<float> &expected) {
  const float *values = reinterpret_cast<const float *>(got.GetData());
  std::printf("%-9s", name);
  for (size_t i = 0; i < expected.size(); ++i) std::printf(" %8.4f", values[i]);
  std::printf("\n");
  if (got.GetSize() != expected.size() * sizeof(float)) std::exit(1);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::fabs(values[i] - expected[i]) <= 1e-5f * (1 + std::fabs(expected[i]))) continue;
    std::fprintf(stderr, "%s[%zu] is %g, not %g\n", name, i, values[i], expected[i]);
    std::exit(1);
  }
}

int main() {
  std::map<AscendString, AscendString> options = {{"ge.exec.deviceId", "0"},
                                                  {"ge.graphRunMode", "1"}};
  check(GEInitialize(options), "GEInitialize");

  // Two rows of four. Each row of x has the mean and variance given for it.
  Input dy("dy", {2, 4}, {1, 2, 3, 4, 4, 3, 2, 1});
  Input x("x", {2, 4}, {3, -1, 3, -1, 1.5f, 1.5f, 0.5f, 0.5f});
  Input variance("variance", {2, 1}, {4, 0.25f});
  Input mean("mean", {2, 1}, {1, 1});
  Input gamma("gamma", {4}, {1, 1, 2, 2});

  op::LayerNormGrad layer_norm("layer_norm_grad");
  layer_norm.set_input_dy(dy.data)
      .set_input_x(x.data)
      .set_input_variance(variance.data)
      .set_input_mean(mean.data)
      .set_input_gamma(gamma.data);
  layer_norm.update_output_desc_pd_x(x.desc);
  layer_norm.update_output_desc_pd_gamma(gamma.desc);
  layer_norm.update_output_desc_pd_beta(gamma.desc);

  // The inputs, in the order in which their tensors are fed.
  const std::vector<Operator> inputs = {dy.data, x.data, variance.data, mean.data, gamma.data};
  const std::vector<Operator> outputs = {layer_norm};
  Graph graph("layer_norm");
  graph.SetInputs(inputs).SetOutputs(outputs);

  {
    Session session(options);
    check(session.AddGraph(0, graph), "AddGraph");
    check(session.CompileGraph(0), "CompileGraph");
    std::vector<Tensor> results;
    check(session.RunGraph(0, {dy.tensor, x.tensor, variance.tensor, mean.tensor, gamma.tensor},
                           results),
          "RunGraph");
    show("pd_x", results[0], {-1.25f, -1.5f, 1.25f, 1.5f, 1, -1, 2, -2});
    show("pd_gamma", results[1], {5, 1, 1, -5});
    show("pd_beta", results[2], {5, 5, 5, 5});
  }
  check(GEFinalize(), "GEFinalize");
  return 0;
}
