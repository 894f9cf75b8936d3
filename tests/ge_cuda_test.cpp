// Graph mode with NORMGRAD_ACL_DEVICE=cuda: the case table within the bounds, with tensors of the
// host and of the device, chains, constants, and asynchronous runs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <string>

#include "device_test.hpp"
#include "ge_table_call.hpp"

namespace ge_test {
namespace {

using device_test::DeviceMirror;
using normgrad::Statistics;
using normgrad::Status;
using normgrad::reference::Case;
using normgrad::reference::Instance;

// Before anybody asks for the device, which is once.
[[maybe_unused]] const int kChosen = setenv("NORMGRAD_ACL_DEVICE", "cuda", 1);

std::string last_message() { return ge::GEGetErrorMsgV2().GetString(); }

class GeCuda : public device_test::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(ge::GEInitialize(Options()), ge::SUCCESS) << last_message();
  }
  void TearDown() override { EXPECT_EQ(ge::GEFinalize(), ge::SUCCESS); }
};

void expect_right(const Instance& instance) {
  const Instance::Report report = instance.check();
  EXPECT_TRUE(report.ok) << report.why;
}

// What graph mode has words for.
Case in_its_words(Case c) {
  c.statistics_dtype = DType::kF32;
  if (c.op == normgrad::reference::Op::kRmsNorm) c.params = DType::kF32;
  c.eps = static_cast<float>(c.eps);
  return c;
}

Case small_case(Statistics statistics = Statistics::kMeanRstd) {
  Case c = {.name = "small", .shape = {60, 768}, .data = DType::kBF16, .gamma = DType::kBF16};
  c.statistics = statistics;
  if (statistics == Statistics::kMeanVariance) c.eps = 0.0078125;
  return c;
}

Options on_gpu(const std::string& id) { return {{"ge.exec.deviceId", id.c_str()}}; }

class GeCudaTable : public GeCuda, public testing::WithParamInterface<normgrad::reference::Op> {};

TEST_P(GeCudaTable, IsWithinTheBoundsAndEqualsTheNativeApi) {
  int expressible = 0;
  for (const Case& given : normgrad::reference::cases(GetParam(), false)) {
    SCOPED_TRACE(given.name);
    const Case c = in_its_words(given);
    if (c.in_place != normgrad::reference::InPlace::kNone) continue;
    const Instance instance(c);
    if (!translate(instance.call(), instance.buffers())) continue;
    ++expressible;
    const Status status = run_graph(instance.call(), instance.buffers());
    EXPECT_TRUE(status.ok()) << status.message();
    if (!status.ok()) continue;
    expect_right(instance);
    Instance native(c);
    device_test::expect_ok(normgrad::reference::run_on(native, normgrad::Device::kCuda));
    EXPECT_EQ(instance.hash(), native.hash());
  }
  RecordProperty("expressible", expressible);
  EXPECT_GT(expressible, 100);
}

INSTANTIATE_TEST_SUITE_P(Cases, GeCudaTable,
                         testing::Values(normgrad::reference::Op::kLayerNorm,
                                         normgrad::reference::Op::kRmsNorm,
                                         normgrad::reference::Op::kBatchNorm),
                         [](const auto& test) {
                           std::string name = normgrad::reference::name_of(test.param);
                           std::erase(name, '_');
                           return name;
                         });

TEST_F(GeCuda, TensorsMayLieOnTheDevice) {
  Instance instance(small_case());
  DeviceMirror mirror(instance);
  Call call = translate(instance.call(), mirror.buffers()).value();
  std::vector<ge::Tensor> outputs;
  for (const Operand& output : call.outputs) outputs.push_back(tensor_of(output));
  ge::Session session{Options()};
  ASSERT_EQ(session.AddGraph(1, graph_of(call)), ge::SUCCESS) << last_message();
  void* stream = nullptr;
  device_test::expect_ok(normgrad::cuda::create_stream(stream));
  for (int run = 0; run < 3; ++run) {
    mirror.upload();
    ASSERT_EQ(session.RunGraphWithStreamAsync(1, stream, feeds_of(call), outputs), ge::SUCCESS)
        << last_message();
    mirror.download();
    expect_right(instance);
  }
  device_test::expect_ok(normgrad::cuda::destroy_stream(stream));
}

TEST_F(GeCuda, MaskedOutputsAreZeros) {
  const Instance instance(small_case(Statistics::kMeanVariance));
  Call call = translate(instance);
  call.mask = {true, false, true};
  const Result result = run(call);
  ASSERT_EQ(result.status, ge::SUCCESS) << result.message;
  ASSERT_EQ(result.outputs.size(), 3u);
  const ge::Tensor& masked = result.outputs[1];
  const std::vector<uint8_t> zeros(masked.GetSize());
  ASSERT_GT(masked.GetSize(), 0u);
  EXPECT_EQ(std::memcmp(masked.GetData(), zeros.data(), zeros.size()), 0);
  call["pd_gamma"].wanted = false;
  EXPECT_TRUE(copy(call, result.outputs).ok());
}

// Two operators in a row, the second fed by the first, its gamma a constant; pd_x of the first is
// an output as well. The same graph by hand, one operator at a time, has the same bits.
TEST_F(GeCuda, ChainsKeepTheirIntermediates) {
  const Instance instance(small_case());
  const Call call = translate(instance);
  ge::Operator first = node_of(call, "first"), second = node_of(call, "second");
  std::vector<ge::Operator> sources;
  for (const Operand& input : call.inputs) {
    ge::op::Data data = data_of(input);
    first.SetInput(input.name.c_str(), data);
    if (input.name == "gamma") {
      ge::op::Const gamma("gamma_of_second");
      gamma.SetAttr("value", tensor_of(input));
      second.SetInput("gamma", gamma);
    } else if (input.name != "dy") {
      second.SetInput(input.name.c_str(), data);
    }
    sources.push_back(data);
  }
  second.SetInput("dy", first, "pd_x");
  ge::Graph graph("chain");
  graph.SetInputs(sources);
  graph.SetOutputs(std::vector<std::pair<ge::Operator, std::vector<size_t>>>{{second, {0, 1, 2}}});
  const Result chained = run(graph, feeds_of(call));
  ASSERT_EQ(chained.status, ge::SUCCESS) << chained.message;

  Call again = call;
  const Result once = run(call);
  ASSERT_EQ(once.status, ge::SUCCESS) << once.message;
  again["dy"].data = const_cast<uint8_t*>(once.outputs[0].GetData());
  const Result twice = run(again);
  ASSERT_EQ(twice.status, ge::SUCCESS) << twice.message;
  ASSERT_EQ(chained.outputs.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(chained.outputs[i].GetSize(), twice.outputs[i].GetSize());
    EXPECT_EQ(std::memcmp(chained.outputs[i].GetData(), twice.outputs[i].GetData(),
                          twice.outputs[i].GetSize()),
              0)
        << i;
  }
}

TEST_F(GeCuda, AsynchronousRuns) {
  const Instance instance(small_case());
  const Call call = translate(instance);
  ge::Session session{Options()};
  ASSERT_EQ(session.AddGraph(1, graph_of(call)), ge::SUCCESS) << last_message();
  std::promise<Status> done;
  ASSERT_EQ(session.RunGraphAsync(1, feeds_of(call),
                                  [&](ge::Status status, std::vector<ge::Tensor>& outputs) {
                                    done.set_value(
                                        status == ge::SUCCESS
                                            ? copy(call, outputs)
                                            : Status(normgrad::Code::kInternal, last_message()));
                                  }),
            ge::SUCCESS);
  const Status status = done.get_future().get();
  ASSERT_TRUE(status.ok()) << status.message();
  expect_right(instance);
}

TEST_F(GeCuda, TheOptionChoosesTheGpu) {
  const int gpus = normgrad::cuda::device_count();
  const Instance instance(small_case());
  const Call call = translate(instance);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    ge::Session session(on_gpu(std::to_string(gpu)));
    ASSERT_EQ(session.AddGraph(1, graph_of(call)), ge::SUCCESS) << last_message();
    std::vector<ge::Tensor> outputs;
    ASSERT_EQ(session.RunGraph(1, feeds_of(call), outputs), ge::SUCCESS) << last_message();
    ASSERT_TRUE(copy(call, outputs).ok());
    expect_right(instance);
    int current = -1;
    device_test::expect_ok(normgrad::cuda::get_device(current));
    EXPECT_EQ(current, 0);  // as it was
  }
  for (const char* wrong : {"-1", "1000", "x", ""}) {
    (void)last_message();
    ge::Session session(on_gpu(wrong));
    EXPECT_NE(last_message().find("ge.exec.deviceId: expected 0 to"), std::string::npos) << wrong;
    EXPECT_EQ(session.AddGraph(1, graph_of(call)), ge::FAILED);
  }
}

}  // namespace
}  // namespace ge_test
