// What only generated members, attributes and connections can get wrong: the status, a sentence
// that names the node and the argument, and nothing written.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ge_call.hpp"

namespace ge_test {
namespace {

using ge::DT_BF16;
using ge::DT_FLOAT;
using ge::DT_FLOAT16;
using ge::FAILED;

class GeErrors : public ::testing::Test {
 protected:
  const Engine engine_;
};

void expect_message(std::initializer_list<const char*> parts) {
  const std::string message = ge::GEGetErrorMsgV2().GetString();
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}

// Runs a graph that is to be refused; what the outputs held stays.
void expect_refused(const ge::Graph& graph, const Tensors& feeds,
                    std::initializer_list<const char*> parts) {
  const ge::Tensor before = some_tensor(desc_of({2}), 0);
  Tensors outputs = {before};
  EXPECT_EQ(run(graph, feeds, outputs), FAILED);
  expect_message(parts);
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].GetData(), before.GetData());
}

template <class Op>
void expect_refused(Call<Op> call, std::initializer_list<const char*> parts) {
  expect_refused(call.build(), call.feeds(), parts);
  expect_refused(call.build(/*described=*/false), call.feeds(), parts);
}

TEST_F(GeErrors, OutputDescriptions) {
  const std::string node = "node 'node' (LayerNormGrad): ";
  auto shape = layer_norm();
  shape.node.update_output_desc_pd_x(desc_of({3, 2, 4}));
  expect_refused(shape, {(node + "pd_x: ").c_str(), "[3, 2, 4]"});
  auto type = layer_norm(DT_FLOAT16);
  type.node.update_output_desc_pd_x(desc_of({3, 2, 5}));
  expect_refused(type, {"pd_x: ", "DT_FLOAT,", "DT_FLOAT16"});
  auto gamma = layer_norm(DT_FLOAT16, DT_FLOAT);
  gamma.node.update_output_desc_pd_gamma(desc_of({5}, DT_FLOAT16));
  gamma.node.update_output_desc_pd_beta(desc_of({5}, DT_FLOAT16));
  expect_refused(gamma, {"pd_gamma: ", "DT_FLOAT16"});
  auto different = layer_norm(DT_FLOAT16, DT_FLOAT16);
  different.node.update_output_desc_pd_gamma(desc_of({5}, DT_FLOAT));
  expect_refused(different, {"pd_beta: ", "type of pd_gamma"});
  auto rms = rms_norm();
  rms.node.update_output_desc_dgamma(desc_of({5}, DT_BF16));
  expect_refused(rms, {"dgamma: ", "DT_BF16"});
}

TEST_F(GeErrors, Formats) {
  auto blocked = layer_norm();
  blocked["dy"].SetFormat(ge::FORMAT_FRACTAL_NZ);
  expect_refused(blocked, {"node 'node'", "dy: ", "plain format", "FRACTAL_NZ"});
  auto gamma = rms_norm();
  gamma["gamma"].SetFormat(ge::FORMAT_NC1HWC0);
  expect_refused(gamma, {"gamma: ", "NC1HWC0"});
  auto different = batch_norm(ge::FORMAT_NCHW);
  different["dy"].SetFormat(ge::FORMAT_NHWC);
  expect_refused(different, {"dy: ", "the format of x, NCHW", "NHWC"});
  auto elsewhere = batch_norm(ge::FORMAT_HWCN);  // channels are axis 2 there
  expect_refused(elsewhere, {"x: ", "NCHW", "HWCN"});
}

// What the mask turns off has no type to agree with.
TEST_F(GeErrors, TypesOfMaskedOutputs) {
  auto call = layer_norm(DT_FLOAT16, DT_FLOAT16);
  call.node.update_output_desc_pd_beta(desc_of({5}, DT_FLOAT));
  expect_refused(call, {"pd_beta: ", "type of pd_gamma"});
  call.node.set_attr_output_mask({true, false, true});
  Tensors outputs;
  EXPECT_EQ(run(call.build(), call.feeds(), outputs), ge::SUCCESS);
  EXPECT_EQ(outputs.at(2).GetTensorDesc().GetDataType(), DT_FLOAT);
}

TEST_F(GeErrors, Attributes) {
  for (const float eps : {-0.5f, -2.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    auto call = layer_norm();
    call.node.set_attr_epsilon(eps);
    expect_refused(call, {"attribute epsilon"});
    auto batch = batch_norm();
    batch.node.set_attr_epsilon(eps);
    expect_refused(batch, {"attribute epsilon"});
  }
  auto mask = layer_norm();
  mask.node.set_attr_output_mask({true, true});
  expect_refused(mask, {"attribute output_mask", "got 2"});
  auto type = layer_norm();
  type.node.SetAttr("output_mask", "all");
  expect_refused(type, {"attribute output_mask"});
}

TEST_F(GeErrors, ConnectedAfterSetInputs) {
  auto call = layer_norm();
  call.build();
  ge::op::Data late("late");
  call.node.set_input_dy(late);
  expect_refused(call.graph, call.feeds(),
                 {"node 'node', input 'dy'", "'late'", "after SetInputs"});
}

TEST_F(GeErrors, MaskedOutputThatIsNeeded) {
  auto call = layer_norm_v3();
  call.build();
  call.node.set_attr_output_mask({false, true, true});
  ge::op::RmsNormGrad next("next");
  next.set_input_dy(call.node, "pd_x").set_input_x(call.data[1]).set_input_rstd(call.data[2]);
  next.set_input_gamma(call.data[4]);
  ge::Graph graph("masked");
  graph.SetInputs(std::vector<ge::Operator>(call.data.begin(), call.data.end())).SetOutputs({next});
  expect_refused(graph, call.feeds(), {"node 'node'", "pd_x", "output_mask"});
}

}  // namespace
}  // namespace ge_test
