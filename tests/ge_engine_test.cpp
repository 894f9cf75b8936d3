// The life of the engine, what works before and after it, options; and the inference of shapes and
// types, which needs no engine at all.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "ge_spoiled_call.hpp"
#include "normgrad/cuda.hpp"

namespace ge_test {
namespace {

using normgrad::reference::Instance;

std::string last_message() { return ge::GEGetErrorMsgV2().GetString(); }

// Every function of a session fails with the code that documents it, and changes nothing.
void expect_not_initialized(ge::Session& session) {
  const Instance instance(correct("LayerNormGrad", DType::kF32));
  const Call call = translate(instance);
  const std::vector<ge::Tensor> feeds = feeds_of(call);
  const ge::Graph graph = graph_of(call);
  const Kept kept;
  std::vector<ge::Tensor> outputs = kept.outputs;
  const std::function<ge::Status()> calls[] = {
      [&] { return session.AddGraph(1, graph); },
      [&] { return session.AddGraph(1, graph, Options()); },
      [&] { return session.AddGraphWithCopy(1, graph); },
      [&] { return session.RunGraph(1, feeds, outputs); },
      [&] { return session.RunGraphWithStreamAsync(1, nullptr, feeds, outputs); },
      [&] { return session.CompileGraph(1); },
      [&] { return session.BuildGraph(1, feeds); },
      [&] { return session.RemoveGraph(1); }};
  for (size_t i = 0; i < std::size(calls); ++i) {
    (void)last_message();
    EXPECT_EQ(calls[i](), ge::FAILED) << i;
    EXPECT_NE(last_message().find("E10062"), std::string::npos) << i;
    EXPECT_TRUE(kept.intact(outputs));
  }
}

// Read once per process: in children of their own, and before all others, for which the suite is
// called so.
TEST(GeEngineDeathTest, TheDeviceIsChosenByTheEnvironment) {
  const Instance instance(correct("LayerNormGrad", DType::kF32));
  const Call call = translate(instance);
  for (const std::string name : {"cpu", "", "cuda", "tpu"}) {
    if (name == "cuda" && normgrad::cuda::device_count() > 0) continue;
    const auto body = [&] {
      setenv("NORMGRAD_ACL_DEVICE", name.c_str(), 1);
      const Result result = ge::GEInitialize(Options()) == ge::SUCCESS ? run(call) : Result();
      const bool runs = name == "cpu" || name.empty();
      return result.status == (runs ? ge::SUCCESS : ge::FAILED) &&
             (runs || result.message.find("NORMGRAD_ACL_DEVICE") != std::string::npos);
    };
    EXPECT_EXIT(std::_Exit(body() ? 0 : 1), testing::ExitedWithCode(0), "") << name;
  }
}

TEST(GeEngine, NothingRunsBeforeInitialization) {
  EXPECT_EQ(ge::GEFinalize(), ge::SUCCESS);
  EXPECT_STREQ(ge::GEGetErrorMsgV2().GetString(), "");
  EXPECT_STREQ(ge::GEGetWarningMsgV2().GetString(), "");
  std::unique_ptr<ge::Session> early;
  EXPECT_NO_THROW(early = std::make_unique<ge::Session>(Options()));
  EXPECT_NE(last_message().find("E10062"), std::string::npos);
  expect_not_initialized(*early);
}

TEST(GeEngine, NothingRunsAfterFinalization) {
  const Instance instance(correct("LayerNormGrad", DType::kF32));
  const Call call = translate(instance);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(ge::GEInitialize(Options()), ge::SUCCESS);
    ge::Session session{Options()};
    ASSERT_EQ(session.AddGraph(1, graph_of(call)), ge::SUCCESS);
    std::vector<ge::Tensor> outputs;
    ASSERT_EQ(session.RunGraph(1, feeds_of(call), outputs), ge::SUCCESS) << last_message();
    ASSERT_EQ(ge::GEFinalize(), ge::SUCCESS);
    expect_not_initialized(session);
    // What was computed stays.
    EXPECT_EQ(misfit(call.outputs[0], outputs[0]), "");
    EXPECT_EQ(ge::GEFinalize(), ge::SUCCESS);
  }
}

TEST(GeEngine, Options) {
  const Options empty_key = {{"", "1"}};
  EXPECT_EQ(ge::GEInitialize(empty_key), ge::FAILED);
  EXPECT_NE(last_message(), "");
  EXPECT_EQ(ge::GEInitialize(std::map<std::string, std::string>{{"", "1"}}), ge::FAILED);
  {  // The failed calls have initialized nothing.
    ge::Session session{Options()};
    expect_not_initialized(session);
  }
  const Options unknown_key = {{"ge.no.such.option", "1"}};
  const Options usual = {{"ge.exec.deviceId", "0"}, {"ge.graphRunMode", "1"}};
  ASSERT_EQ(ge::GEInitialize(usual), ge::SUCCESS);
  const Instance instance(correct("LayerNormGrad", DType::kF32));
  const Call call = translate(instance);
  const ge::Graph graph = graph_of(call);
  (void)last_message();
  {
    std::unique_ptr<ge::Session> session;
    EXPECT_NO_THROW(session = std::make_unique<ge::Session>(empty_key));
    EXPECT_NE(last_message(), "");
    EXPECT_EQ(session->AddGraph(1, graph), ge::FAILED);
  }
  ge::Session session(usual);
  (void)ge::GEGetWarningMsgV2();
  EXPECT_EQ(session.AddGraph(1, graph, empty_key), ge::FAILED);
  EXPECT_NE(last_message(), "");
  EXPECT_EQ(session.AddGraph(1, graph, unknown_key), ge::SUCCESS);
  EXPECT_NE(std::string(ge::GEGetWarningMsgV2().GetString()).find("ge.no.such.option"),
            std::string::npos);
  std::vector<ge::Tensor> outputs;
  EXPECT_EQ(session.RunGraph(1, feeds_of(call), outputs), ge::SUCCESS) << last_message();
  EXPECT_EQ(ge::GEFinalize(), ge::SUCCESS);
}

// The shape and type that an operator infers for an output.
struct Inferred {
  const char* output;
  Shape shape;
  ge::DataType dtype;
};

void expect_inferred(const char* type, const std::vector<Operand>& inputs,
                     const std::vector<Inferred>& outputs) {
  ge::Operator node = ge::OperatorFactory::CreateOperator("node", type);
  for (const Operand& input : inputs) {
    ASSERT_EQ(node.UpdateInputDesc(input.name, input.desc()), ge::GRAPH_SUCCESS) << input.name;
  }
  ASSERT_EQ(node.InferShapeAndType(), ge::GRAPH_SUCCESS) << type;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Inferred& expected = outputs[i];
    SCOPED_TRACE(type + std::string(" ") + expected.output);
    for (const ge::TensorDesc& desc :
         {node.GetOutputDescByName(expected.output), node.GetOutputDesc(expected.output),
          node.GetOutputDesc(static_cast<uint32_t>(i))}) {
      EXPECT_EQ(desc.GetShape().GetDims(), expected.shape);
      EXPECT_EQ(desc.GetDataType(), expected.dtype);
    }
  }
}

// pd_x has the shape of dy and the type of x, the parameters' gradients those of gamma; nothing is
// checked, and what is not known passes through.
TEST(GeInference, LayerNorm) {
  const ge::DataType f32 = ge::DT_FLOAT, f16 = ge::DT_FLOAT16, bf16 = ge::DT_BF16;
  const Shape shapes[][3] = {{{2, 3, 4}, {2, 3, 4}, {4}},  {{-1, 3, 4}, {2, 3, 4}, {4}},
                             {{2, -1, -1}, {-2}, {-1}},    {{-2}, {2, 3, 4}, {4}},
                             {{2, 3, 4}, {2, 3, 4}, {-2}}, {{-2}, {-2}, {-2}},
                             {{7}, {2, 3}, {9, 9}}};
  for (const auto& [dy, x, gamma] : shapes) {
    for (const auto& [type, spread] :
         {std::make_pair("LayerNormGrad", "variance"), {"LayerNormGradV3", "rstd"}}) {
      expect_inferred(type,
                      {{"dy", f32, dy},
                       {"x", f16, x},
                       {spread, f32, {2, 3, 1}},
                       {"mean", f32, {2, 3, 1}},
                       {"gamma", bf16, gamma}},
                      {{"pd_x", dy, f16}, {"pd_gamma", gamma, bf16}, {"pd_beta", gamma, bf16}});
    }
  }
}

TEST(GeInference, RmsNormAndBatchNorm) {
  const ge::DataType f32 = ge::DT_FLOAT, f16 = ge::DT_FLOAT16;
  for (const Shape& shape : {Shape{2, 3, 4}, {-1, 3, -1}, {-2}}) {
    for (const Shape& vector : {Shape{3}, {-1}, {-2}}) {
      expect_inferred(
          "RmsNormGrad",
          {{"dy", f16, shape}, {"x", f16, shape}, {"rstd", f32, {2, 3}}, {"gamma", f16, vector}},
          {{"dx", shape, f16}, {"dgamma", vector, f32}});
      expect_inferred("BatchNormGradV3",
                      {{"dy", f16, shape},
                       {"x", f16, shape},
                       {"weight", f32, vector},
                       {"running_mean", f32, vector},
                       {"running_var", f32, vector},
                       {"save_mean", f32, vector},
                       {"save_rstd", f32, vector}},
                      {{"dx", shape, f16}, {"dweight", vector, f32}, {"dbias", vector, f32}});
    }
  }
}

// A type stated for the gradients of the parameters stays, as the columns of FLOAT gradients with a
// 16-bit gamma need it.
TEST(GeInference, StatedTypesStay) {
  ge::op::LayerNormGrad node("node");
  const ge::TensorDesc half(ge::Shape({4}), ge::FORMAT_ND, ge::DT_FLOAT16);
  const ge::TensorDesc single(ge::Shape({4}), ge::FORMAT_ND, ge::DT_FLOAT);
  for (const char* name : {"dy", "x", "gamma"}) (void)node.UpdateInputDesc(name, half);
  (void)node.update_output_desc_pd_gamma(single);
  ASSERT_EQ(node.InferShapeAndType(), ge::GRAPH_SUCCESS);
  EXPECT_EQ(node.get_output_desc_pd_gamma().GetDataType(), ge::DT_FLOAT);
  EXPECT_EQ(node.get_output_desc_pd_beta().GetDataType(), ge::DT_FLOAT16);
  EXPECT_EQ(node.get_output_desc_pd_x().GetDataType(), ge::DT_FLOAT16);
}

}  // namespace
}  // namespace ge_test
