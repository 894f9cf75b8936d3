// Graph mode computes what the documents say: the case table, every column of dtypes with every
// mask, the values of epsilon, and graphs of several operators. All with the bits of the native
// API.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "ge_table_call.hpp"

namespace ge_test {
namespace {

using normgrad::Statistics;
using normgrad::Status;
using normgrad::reference::Case;
using normgrad::reference::Instance;
using normgrad::reference::run_native;

class Engine : public testing::Environment {
  void SetUp() override { ASSERT_EQ(ge::GEInitialize(Options()), ge::SUCCESS); }
  void TearDown() override { EXPECT_EQ(ge::GEFinalize(), ge::SUCCESS); }
};
const testing::Environment* const kEngine = testing::AddGlobalTestEnvironment(new Engine);

// Within the bounds, and the bits of the native API.
void expect_right(const Case& c, const Instance& run) {
  const Instance::Report report = run.check();
  EXPECT_TRUE(report.ok) << report.why;
  const Instance native(c);
  const Status status = run_native(native.call(), native.buffers());
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(run.hash(), native.hash());
}

class GeTable : public testing::TestWithParam<normgrad::reference::Op> {};

TEST_P(GeTable, IsWithinTheBoundsAndEqualsTheNativeApi) {
  int expressible = 0;
  for (Case& c : normgrad::reference::cases(GetParam(), false)) {
    SCOPED_TRACE(c.name);
    // Graph mode has these in FLOAT, whatever x is, and no words for memory that is shared.
    c.statistics_dtype = DType::kF32;
    if (c.op == normgrad::reference::Op::kRmsNorm) c.params = DType::kF32;
    c.eps = static_cast<float>(c.eps);
    if (c.in_place != normgrad::reference::InPlace::kNone) continue;
    const Instance graph(c);
    if (!translate(graph.call(), graph.buffers())) continue;
    ++expressible;
    const Status status = run_graph(graph.call(), graph.buffers());
    EXPECT_TRUE(status.ok()) << status.message();
    if (status.ok()) expect_right(c, graph);
  }
  RecordProperty("expressible", expressible);
  EXPECT_GT(expressible, 100);
}

INSTANTIATE_TEST_SUITE_P(Cases, GeTable,
                         testing::Values(normgrad::reference::Op::kLayerNorm,
                                         normgrad::reference::Op::kRmsNorm,
                                         normgrad::reference::Op::kBatchNorm),
                         [](const auto& test) {
                           std::string name = normgrad::reference::name_of(test.param);
                           std::erase(name, '_');
                           return name;
                         });

struct Column {
  DType data, gamma, gradients;
};
constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16;
constexpr Column kColumns[] = {{kF32, kF32, kF32},   {kF16, kF32, kF32},  {kF16, kF16, kF32},
                               {kF16, kF16, kF16},   {kBF16, kF32, kF32}, {kBF16, kBF16, kF32},
                               {kBF16, kBF16, kBF16}};

Case column_case(const Column& column, Statistics statistics, const Shape& shape, int axes) {
  Case c;
  c.shape = shape;
  c.normalized_axes = axes;
  c.keep_axis = true;
  c.data = column.data;
  c.gamma = column.gamma;
  c.params = column.gradients;
  c.statistics = statistics;
  if (statistics == Statistics::kMeanVariance) c.eps = 0.0078125;
  c.random = false;  // a few elements are no average
  return c;
}

// An output is left out in two ways: by the mask, or because the graph does not give it out.
void expect_masks_right(Case c) {
  for (unsigned mask = 0; mask < 8; ++mask) {
    c.want_dx = mask & 1;
    c.want_dgamma = mask & 2;
    c.want_dbeta = mask & 4;
    for (bool attribute : {true, false}) {
      if (mask == 0 && !attribute) continue;
      SCOPED_TRACE("mask " + std::to_string(mask) + (attribute ? "" : " by outputs"));
      const Instance graph(c);
      Call call = translate(graph);
      if (!attribute) call.mask.reset();
      // What is not stated has the type of gamma.
      for (Operand& output : call.outputs) output.stated = c.params != c.gamma;
      const Status status = run_and_copy(call);
      ASSERT_TRUE(status.ok()) << status.message();
      expect_right(c, graph);
    }
  }
}

class GeColumns : public testing::TestWithParam<Column> {};

TEST_P(GeColumns, EveryMaskAndShape) {
  const struct {
    Shape shape;
    int axes;
  } shapes[] = {{{6, 40}, 1},  {{2, 3, 4, 5}, 2}, {{2, 3, 4, 5}, 4},
                {{37}, 1},     {{130, 7, 9}, 2},  {{1, 2, 1, 3, 2, 1, 2, 5}, 5},
                {{3, 1000}, 1}};
  for (Statistics statistics : {Statistics::kMeanVariance, Statistics::kMeanRstd}) {
    for (const auto& s : shapes) {
      SCOPED_TRACE(std::to_string(s.shape.size()) + " axes, " + std::to_string(s.axes));
      expect_masks_right(column_case(GetParam(), statistics, s.shape, s.axes));
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, GeColumns, testing::ValuesIn(kColumns), [](const auto& test) {
  return std::string(name_of(test.param.data)) + "_" + name_of(test.param.gamma) + "_" +
         name_of(test.param.gradients);
});

// Masked off: still an output of the graph, in its place, and its bytes are always the same.
TEST(GeLayerNorm, MaskedOutputsKeepTheirPlaces) {
  const Instance instance(column_case(kColumns[3], Statistics::kMeanRstd, {6, 40}, 1));
  Call call = translate(instance);
  for (unsigned mask = 0; mask < 8; ++mask) {
    call.mask = {bool(mask & 1), bool(mask & 2), bool(mask & 4)};
    const Result result = run(call), again = run(call);
    ASSERT_EQ(result.status, ge::SUCCESS) << result.message;
    ASSERT_EQ(result.outputs.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      const ge::Tensor& tensor = result.outputs[i];
      if (mask >> i & 1) {
        EXPECT_EQ(misfit(call.outputs[i], tensor), "");
      }
      ASSERT_EQ(tensor.GetSize(), again.outputs[i].GetSize());
      if (tensor.GetSize() == 0) continue;
      EXPECT_EQ(std::memcmp(tensor.GetData(), again.outputs[i].GetData(), tensor.GetSize()), 0);
    }
  }
}

// A variance of 0 leaves nothing but epsilon. With x = mean and a dy that sums to 0 in its row,
// dx = dy / sqrt(epsilon), rounded once.
TEST(GeLayerNorm, Epsilon) {
  const struct {
    DType dtype;
    std::optional<float> attribute;
    double eps;
  } cases[] = {{kF32, {}, 1e-12},    {kF16, {}, 1e-5},      {kBF16, {}, 1e-5},
               {kF32, -1.0F, 1e-12}, {kF16, -1.0F, 1e-5},   {kF32, 0.0625F, 0.0625},
               {kF16, 0.25F, 0.25},  {kBF16, 1e-5F, 1e-5F}, {kF32, 0.0F, 0}};
  for (const auto& e : cases) {
    SCOPED_TRACE(std::string(name_of(e.dtype)) + ", epsilon " + std::to_string(e.eps));
    Case c = column_case({e.dtype, kF32, kF32}, Statistics::kMeanVariance, {4, 16}, 1);
    c.eps = e.eps;
    const Instance graph(c), native(c);
    const std::vector<double> signs = {0.5, 0.5, -0.5, -0.5};
    for (const Instance* instance : {&graph, &native}) {
      const auto fill = [](const void* data, DType dtype, const std::vector<double>& values) {
        normgrad::reference::scatter({dtype, {static_cast<int64_t>(values.size())}},
                                     const_cast<void*>(data), values);
      };
      const normgrad::Buffers& b = instance->buffers();
      std::vector<double> dy(16, 0);
      std::copy(signs.begin(), signs.end(), dy.begin());
      fill(b.dy, e.dtype, dy);
      fill(b.x, e.dtype, std::vector<double>(16, 0));
      fill(b.mean, kF32, {0});
      fill(b.spread, kF32, {0});
      fill(b.gamma, kF32, std::vector<double>(16, 1));
    }
    Call call = translate(graph);
    call.epsilon = e.attribute;
    const Status status = run_and_copy(call);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(run_native(native.call(), native.buffers()).ok());
    EXPECT_EQ(graph.hash(), native.hash());
    const double r = e.eps == 0 ? 0 : 1 / std::sqrt(e.eps);
    const std::vector<double> dx = normgrad::reference::gather({e.dtype, {4}}, graph.buffers().dx);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(dx[i], normgrad::reference::round_to(e.dtype, signs[i] * r)) << i;
    }
  }
}

TEST(GeBatchNorm, OneElementPerChannelGivesZero) {
  Case c;
  c.op = normgrad::reference::Op::kBatchNorm;
  c.shape = {1, 5, 1};
  const Instance graph(c);
  ASSERT_TRUE(run_graph(graph.call(), graph.buffers()).ok());
  for (double dx : normgrad::reference::gather({kF32, {5}}, graph.buffers().dx)) EXPECT_EQ(dx, 0);
}

// The default of epsilon, with frozen statistics, is 1e-5.
TEST(GeBatchNorm, Epsilon) {
  Case c;
  c.op = normgrad::reference::Op::kBatchNorm;
  c.shape = {3, 4, 10};
  c.statistics = Statistics::kMeanVariance;
  c.frozen = true;
  c.random = false;
  c.values = normgrad::reference::Values::kZeroDenominators;
  for (std::optional<float> attribute : {std::optional<float>(), {1e-5F}, {0.0F}, {0.5F}}) {
    c.eps = attribute.value_or(1e-5F);
    const Instance graph(c);
    Call call = translate(graph);
    call.epsilon = attribute;
    ASSERT_TRUE(run_and_copy(call).ok());
    expect_right(c, graph);
  }
}

// Two gradients in a row that share x and the statistics, the second with a gamma that is part of
// the graph: as two native calls.
TEST(GeGraph, OperatorsFeedEachOther) {
  for (const Column& column : kColumns) {
    const Case c = column_case(column, Statistics::kMeanRstd, {2, 3, 50}, 1);
    const Instance instance(c), outer(c), inner(c, 2);
    Call call = translate(instance), second = translate(inner);

    std::vector<ge::Operator> sources;
    ge::Operator first = node_of(call, "first"), last = node_of(second, "last");
    ge::op::Const gamma("gamma");
    gamma.SetAttr("value", tensor_of(second["gamma"]));
    for (const Operand& input : call.inputs) {
      ge::op::Data data = data_of(input);
      first.SetInput(input.name.c_str(), data);
      if (input.name != "dy" && input.name != "gamma") last.SetInput(input.name.c_str(), data);
      sources.push_back(data);
    }
    last.SetInput("dy", first, "pd_x").SetInput("gamma", gamma, 0);
    sources.insert(sources.begin() + 2, gamma);
    ge::Graph graph("two");
    graph.SetInputs(sources).SetOutputs(std::vector<std::pair<ge::Operator, ge::AscendString>>{
        {last, "pd_x"}, {first, "pd_gamma"}, {last, "pd_beta"}});
    const Result result = run(graph, feeds_of(call));
    ASSERT_EQ(result.status, ge::SUCCESS) << result.message;
    ASSERT_EQ(result.outputs.size(), 3u);

    ASSERT_TRUE(run_native(outer.call(), outer.buffers()).ok());
    normgrad::Buffers b = outer.buffers();
    b.dy = outer.buffers().dx;
    b.gamma = inner.buffers().gamma;
    b.dx = inner.buffers().dx;
    b.dgamma = inner.buffers().dgamma;
    b.dbeta = inner.buffers().dbeta;
    ASSERT_TRUE(run_native(inner.call(), b).ok());
    const Operand expected[] = {second["pd_x"], call["pd_gamma"], second["pd_beta"]};
    const void* bits[] = {b.dx, outer.buffers().dgamma, b.dbeta};
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(misfit(expected[i], result.outputs[i]), "");
      EXPECT_EQ(std::memcmp(result.outputs[i].GetData(), bits[i], expected[i].bytes()), 0) << i;
    }
  }
}

// The indices of Data say which tensor is whose, unless they are not 0 to n - 1: then the order of
// SetInputs does.
TEST(GeGraph, FeedsByIndexOrByOrder) {
  const Instance instance(column_case(kColumns[0], Statistics::kMeanVariance, {6, 40}, 1));
  const Call call = translate(instance);
  const Result expected = run(call);
  ASSERT_EQ(expected.status, ge::SUCCESS) << expected.message;
  const struct {
    bool counts;
    size_t indices[5];
  } orders[] = {{false, {0, 0, 0, 0, 0}},
                {true, {4, 3, 2, 1, 0}},
                {true, {2, 0, 4, 1, 3}},
                {false, {5, 4, 3, 2, 1}}};
  for (const auto& order : orders) {
    ge::Operator node = node_of(call);
    std::vector<ge::Operator> sources;
    std::vector<ge::Tensor> feeds(5);
    for (size_t i = 0; i < 5; ++i) {
      ge::op::Data data = data_of(call.inputs[i]);
      data.set_attr_index(static_cast<int64_t>(order.indices[i]));
      node.SetInput(call.inputs[i].name.c_str(), data);
      sources.push_back(data);
      feeds[order.counts ? order.indices[i] : i] = tensor_of(call.inputs[i]);
    }
    ge::Graph graph("graph");
    graph.SetInputs(sources).SetOutputs(std::vector<ge::Operator>{node});
    const Result result = run(graph, feeds);
    ASSERT_EQ(result.status, ge::SUCCESS) << result.message;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(std::memcmp(result.outputs[i].GetData(), expected.outputs[i].GetData(),
                            call.outputs[i].bytes()),
                0);
    }
  }
}

// Descriptions are optional: of Data, on either side, of the inputs that they feed, and of outputs,
// which may also be described as not known.
TEST(GeGraph, DescriptionsAreOptional) {
  for (const Column& column : {kColumns[0], kColumns[3], kColumns[6]}) {
    const Case c = column_case(column, Statistics::kMeanRstd, {2, 3, 4, 5}, 2);
    for (int described = 0; described < 5; ++described) {
      SCOPED_TRACE(described);
      const Instance instance(c);
      Call call = translate(instance);
      ge::Operator node = ge::OperatorFactory::CreateOperator(kNode, call.type.c_str());
      std::vector<ge::Operator> sources;
      for (const Operand& input : call.inputs) {
        ge::op::Data data(input.name.c_str());
        if (described == 1) (void)data.update_input_desc_x(input.desc());
        if (described == 2) (void)data.update_output_desc_y(input.desc());
        if (described == 3) (void)node.UpdateInputDesc(input.name, input.desc());
        node.SetInput(input.name.c_str(), data);
        sources.push_back(data);
      }
      for (Operand output : call.outputs) {
        output.shape = {-2};
        if (described == 4) (void)node.UpdateOutputDesc(output.name, output.desc());
      }
      ge::Graph graph("graph");
      graph.SetInputs(sources).SetOutputs(std::vector<ge::Operator>{node});
      const Result result = run(graph, feeds_of(call));
      ASSERT_EQ(result.status, ge::SUCCESS) << result.message;
      const Status status = copy(call, result.outputs);
      ASSERT_TRUE(status.ok()) << status.message();
      expect_right(c, instance);
    }
  }
}

// A graph whose Data state little is compiled for what it is fed, again and again.
TEST(GeGraph, RunsForTheShapesThatItIsFed) {
  ge::Session session{Options()};
  Case c = column_case(kColumns[3], Statistics::kMeanRstd, {2, 3, 4, 5}, 2);
  const Instance first(c);
  for (uint32_t unknown : {0, 1}) {
    Call call = translate(first);
    for (Operand& input : call.inputs) {
      input.shape = unknown ? Shape{-2} : Shape(input.shape.size(), -1);
    }
    for (Operand& output : call.outputs) output.stated = false;
    ASSERT_EQ(session.AddGraph(unknown, graph_of(call)), ge::SUCCESS);
    for (const Shape& shape : {Shape{2, 3, 4, 5}, {7, 1, 8, 2}, {2, 3, 4, 5}, {1, 2, 1, 30}}) {
      c.shape = shape;
      const Instance instance(c);
      const Call fed = translate(instance);
      std::vector<ge::Tensor> outputs;
      ASSERT_EQ(session.RunGraph(unknown, feeds_of(fed), outputs), ge::SUCCESS)
          << ge::GEGetErrorMsgV2().GetString();
      const Status status = copy(fed, outputs);
      ASSERT_TRUE(status.ok()) << status.message();
      expect_right(c, instance);
    }
  }
}

}  // namespace
}  // namespace ge_test
