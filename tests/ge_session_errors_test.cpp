// Wrong graphs, wrong sessions and wrong feeds: FAILED, a message that says which node and what,
// and outputs as they were.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <string>

#include "ge_spoiled_call.hpp"

namespace ge_test {
namespace {

using normgrad::reference::Instance;

class Engine : public testing::Environment {
  void SetUp() override { ASSERT_EQ(ge::GEInitialize(Options()), ge::SUCCESS); }
  void TearDown() override { EXPECT_EQ(ge::GEFinalize(), ge::SUCCESS); }
};
const testing::Environment* const kEngine = testing::AddGlobalTestEnvironment(new Engine);

constexpr const char* kTypes[] = {"LayerNormGrad", "LayerNormGradV3", "RmsNormGrad",
                                  "BatchNormGradV3"};

std::string last_message() { return ge::GEGetErrorMsgV2().GetString(); }

void expect_refused(const ge::Graph& graph, const std::vector<ge::Tensor>& feeds,
                    const std::string& node, const std::string& argument) {
  const Kept kept;
  const Result result = run(graph, feeds, kept.outputs);
  EXPECT_EQ(result.status, ge::FAILED);
  EXPECT_FALSE(result.message.empty());
  expect_named(result.message, node, argument);
  EXPECT_TRUE(kept.intact(result.outputs));
}

// What is fed is not what was announced, or not what it says. The message names the Data.
TEST(GeErrors, FedTensors) {
  using Feeds = std::vector<ge::Tensor>;
  const struct {
    const char* what;
    const char* node;  // empty: no single one
    std::function<void(Feeds&, Call&)> spoil;
  } table[] = {
      {"too few", "", [](Feeds& feeds, Call&) { feeds.pop_back(); }},
      {"none", "", [](Feeds& feeds, Call&) { feeds.clear(); }},
      {"too many", "", [](Feeds& feeds, Call&) { feeds.push_back(feeds[0]); }},
      {"another shape", "data_x",
       [](Feeds& feeds, Call& c) {
         c["x"].shape = {3, 2, 4, 5};
         feeds[1] = tensor_of(c["x"]);
       }},
      {"another rank", "data_gamma",
       [](Feeds& feeds, Call& c) {
         c["gamma"].shape = {20};
         feeds[4] = tensor_of(c["gamma"]);
       }},
      {"another type", "data_dy",
       [](Feeds& feeds, Call& c) {
         c["dy"].dtype = ge::DT_INT32;
         feeds[0] = tensor_of(c["dy"]);
       }},
      {"a default tensor", "data_mean", [](Feeds& feeds, Call&) { feeds[3] = ge::Tensor(); }},
      {"no data", "data_dy",
       [](Feeds& feeds, Call& c) {
         c["dy"].data = nullptr;
         feeds[0] = tensor_of(c["dy"]);
       }},
      {"too few bytes", "data_x",
       [](Feeds& feeds, Call& c) {
         feeds[1] =
             ge::Tensor(c["x"].desc(), static_cast<uint8_t*>(c["x"].data), c["x"].bytes() - 4);
       }},
      {"too many bytes", "data_mean",
       [](Feeds& feeds, Call& c) {
         feeds[3] = ge::Tensor(c["mean"].desc(), static_cast<uint8_t*>(c["x"].data), 64);
       }},
      {"data that is not aligned", "data_x",
       [](Feeds& feeds, Call& c) {
         c["x"].data = static_cast<char*>(c["x"].data) + 2;
         feeds[1] = tensor_of(c["x"]);
       }},
  };
  for (const auto& wrong : table) {
    SCOPED_TRACE(wrong.what);
    const Instance instance(correct("LayerNormGrad", DType::kF32));
    Call call = translate(instance);
    const ge::Graph graph = graph_of(call);
    Feeds feeds = feeds_of(call);
    wrong.spoil(feeds, call);
    expect_refused(graph, feeds, wrong.node, "");
  }
}

// Unknown extents are filled in by what is fed: there -1 is no extent any more.
TEST(GeErrors, FedExtentsAreKnown) {
  const Instance instance(correct("LayerNormGrad", DType::kF32));
  Call call = translate(instance);
  for (Operand& output : call.outputs) output.stated = false;
  const std::vector<ge::Tensor> good = feeds_of(call);
  for (Operand& input : call.inputs) input.shape = {-2};
  const ge::Graph graph = graph_of(call);
  ASSERT_EQ(run(graph, good).status, ge::SUCCESS);
  for (const Shape& shape : {Shape{-2}, {-1, 3, 4, 5}, {2, -3, 4, 5}, {-1}}) {
    std::vector<ge::Tensor> feeds = good;
    feeds[1] = ge::Tensor(ge::TensorDesc(ge::Shape(shape)), good[1].GetData(), good[1].GetSize());
    expect_refused(graph, feeds, "data_x", "");
  }
}

// The parts of a graph of one operator, to be put together wrongly.
struct Parts {
  explicit Parts(const char* type, const char* name = kNode)
      : instance(correct(type, DType::kF32)),
        call(translate(instance)),
        node(node_of(call, name)),
        feeds(feeds_of(call)) {
    for (const Operand& input : call.inputs) sources.push_back(data_of(input));
  }
  void connect(const std::string& except = "") {
    for (size_t i = 0; i < sources.size(); ++i) {
      if (call.inputs[i].name != except) node.SetInput(call.inputs[i].name.c_str(), sources[i]);
    }
  }
  ge::Graph graph() {
    ge::Graph made("graph");
    made.SetInputs(sources).SetOutputs(std::vector<ge::Operator>{node});
    return made;
  }

  const Instance instance;
  Call call;
  ge::Operator node;
  std::vector<ge::Tensor> feeds;
  std::vector<ge::Operator> sources;
};

TEST(GeErrors, MissingInput) {
  for (const char* type : kTypes) {
    for (size_t i = 0; i < Parts(type).call.inputs.size(); ++i) {
      Parts parts(type);
      const std::string name = parts.call.inputs[i].name;
      SCOPED_TRACE(type + (" without " + name));
      parts.connect(name);
      // The Data is not part of the graph either.
      parts.sources.erase(parts.sources.begin() + static_cast<std::ptrdiff_t>(i));
      parts.feeds.erase(parts.feeds.begin() + static_cast<std::ptrdiff_t>(i));
      expect_refused(parts.graph(), parts.feeds, kNode, name);
    }
  }
}

TEST(GeErrors, Cycles) {
  Parts self("LayerNormGrad");
  self.connect("dy");
  self.node.SetInput("dy", self.node, "pd_x");
  expect_refused(self.graph(), self.feeds, kNode, "cycle");

  Parts first("LayerNormGradV3", "first"), second("LayerNormGradV3", "second");
  first.connect("dy");
  second.sources = first.sources;
  second.connect("dy");
  first.node.SetInput("dy", second.node, "pd_x");
  second.node.SetInput("dy", first.node, "pd_x");
  expect_refused(first.graph(), first.feeds, "first", "cycle");
}

TEST(GeErrors, TwoNodesOfOneName) {
  Parts first("LayerNormGradV3"), second("LayerNormGradV3");
  first.connect();
  second.sources = first.sources;
  second.connect("dy");
  second.node.SetInput("dy", first.node, "pd_x");
  ge::Graph graph("graph");
  graph.SetInputs(first.sources).SetOutputs(std::vector<ge::Operator>{second.node});
  expect_refused(graph, first.feeds, kNode, "");

  Parts data("LayerNormGradV3");
  ge::op::Data twin("data_x");
  data.sources[0] = twin;
  data.connect();
  expect_refused(data.graph(), data.feeds, "data_x", "");
}

TEST(GeErrors, ConnectionsThatAreNot) {
  const struct {
    const char* what;
    const char* words;
    std::function<void(Parts&)> spoil;
  } table[] = {
      {"an input that is not there", "beta",
       [](Parts& p) { p.node.SetInput("beta", p.sources[0]); }},
      {"an output that is not there", "z",
       [](Parts& p) { p.node.SetInput("dy", p.sources[0], "z"); }},
      {"an index that is not there", "dy",
       [](Parts& p) { p.node.SetInput("dy", p.sources[0], 1); }},
      {"no operator", "dy", [](Parts& p) { p.node.SetInput("dy", ge::Operator()); }},
  };
  for (const auto& wrong : table) {
    SCOPED_TRACE(wrong.what);
    Parts parts("LayerNormGrad");
    parts.connect();
    wrong.spoil(parts);
    expect_refused(parts.graph(), parts.feeds, kNode, wrong.words);
  }
}

TEST(GeErrors, UnknownOperator) {
  EXPECT_TRUE(ge::OperatorFactory::CreateOperator("n", "NoSuchOperator").IsEmpty());
  Parts parts("LayerNormGrad");
  ge::Operator stranger("stranger", "NoSuchOperator");
  ge::Graph graph("graph");
  parts.connect();
  std::vector<ge::Operator> sources = parts.sources;
  sources.push_back(stranger);
  graph.SetInputs(sources).SetOutputs(std::vector<ge::Operator>{parts.node});
  expect_refused(graph, parts.feeds, "stranger", "NoSuchOperator");
}

TEST(GeErrors, OutputsThatAreNot) {
  using Indices = std::vector<std::pair<ge::Operator, std::vector<size_t>>>;
  using Names = std::vector<std::pair<ge::Operator, ge::AscendString>>;
  for (int wrong = 0; wrong < 3; ++wrong) {
    Parts parts("LayerNormGrad");
    parts.connect();
    ge::Graph graph("graph");
    graph.SetInputs(parts.sources);
    if (wrong == 0) graph.SetOutputs(Indices{{parts.node, {0, 3}}});
    if (wrong == 1) graph.SetOutputs(Names{{parts.node, "pd_delta"}});
    expect_refused(graph, parts.feeds, "", "output");
  }
  // An operator of another graph is skipped with a warning.
  Parts parts("LayerNormGrad"), other("LayerNormGrad", "other");
  parts.connect();
  (void)ge::GEGetWarningMsgV2();
  ge::Graph graph("graph");
  graph.SetInputs(parts.sources).SetOutputs(std::vector<ge::Operator>{other.node, parts.node});
  const Result result = run(graph, parts.feeds);
  EXPECT_EQ(result.status, ge::SUCCESS) << result.message;
  EXPECT_EQ(result.outputs.size(), 3u);
  EXPECT_NE(std::string(ge::GEGetWarningMsgV2().GetString()).find("other"), std::string::npos);
}

TEST(GeErrors, InputsGivenNeverOrTwice) {
  Parts parts("LayerNormGrad");
  parts.connect();
  expect_refused(ge::Graph(), parts.feeds, "", "");
  expect_refused(ge::Graph("empty"), parts.feeds, "", "SetInputs");
  ge::Graph none("none");
  (void)last_message();
  none.SetInputs({}).SetOutputs(std::vector<ge::Operator>{parts.node});
  EXPECT_NE(last_message(), "");
  EXPECT_FALSE(none.IsValid());
  expect_refused(none, parts.feeds, "", "SetInputs");
  ge::Graph twice = parts.graph();
  EXPECT_TRUE(twice.IsValid());
  (void)last_message();
  twice.SetInputs(parts.sources);
  EXPECT_NE(last_message(), "");
}

TEST(GeErrors, ConstantsWithoutAValue) {
  for (int wrong = 0; wrong < 2; ++wrong) {
    Parts parts("LayerNormGrad");
    ge::op::Const gamma("constant");
    if (wrong == 1) {
      gamma.set_attr_value(ge::Tensor(parts.call["gamma"].desc(), std::vector<uint8_t>(76)));
    }
    parts.sources[4] = gamma;
    parts.feeds.pop_back();
    parts.connect();
    expect_refused(parts.graph(), parts.feeds, "constant", "value");
  }
}

// The ids of graphs, and what a session does after an error: go on.
TEST(GeErrors, Ids) {
  Parts parts("LayerNormGrad");
  parts.connect();
  ge::Session session{Options()};
  const Kept kept;
  std::vector<ge::Tensor> outputs = kept.outputs;
  const std::vector<std::pair<const char*, std::function<ge::Status()>>> calls = {
      {"RunGraph", [&] { return session.RunGraph(77, parts.feeds, outputs); }},
      {"RunGraphWithStreamAsync",
       [&] { return session.RunGraphWithStreamAsync(77, nullptr, parts.feeds, outputs); }},
      {"CompileGraph", [&] { return session.CompileGraph(77); }},
      {"BuildGraph", [&] { return session.BuildGraph(77, parts.feeds); }},
      {"RemoveGraph", [&] { return session.RemoveGraph(77); }}};
  const auto expect_unknown = [&] {
    for (const auto& [name, call] : calls) {
      SCOPED_TRACE(name);
      EXPECT_EQ(call(), ge::FAILED);
      EXPECT_NE(last_message().find("77"), std::string::npos);
      EXPECT_TRUE(kept.intact(outputs));
    }
  };
  expect_unknown();
  ASSERT_EQ(session.AddGraph(77, parts.graph()), ge::SUCCESS);
  EXPECT_EQ(session.AddGraph(77, parts.graph()), ge::FAILED);
  EXPECT_NE(last_message().find("77"), std::string::npos);
  EXPECT_EQ(session.RunGraph(77, {}, outputs), ge::FAILED);
  EXPECT_TRUE(kept.intact(outputs));
  outputs.clear();
  EXPECT_EQ(session.RunGraph(77, parts.feeds, outputs), ge::SUCCESS) << last_message();
  EXPECT_EQ(outputs.size(), 3u);
  EXPECT_EQ(session.RemoveGraph(77), ge::SUCCESS);
  outputs = kept.outputs;
  expect_unknown();
}

TEST(GeErrors, AnAsynchronousRunTellsItsCallback) {
  Parts parts("LayerNormGrad");
  parts.connect();
  ge::Session session{Options()};
  ASSERT_EQ(session.AddGraph(1, parts.graph()), ge::SUCCESS);
  const auto run_async = [&](uint32_t id, const std::vector<ge::Tensor>& feeds) {
    std::promise<std::pair<ge::Status, size_t>> promise;
    const ge::Status status =
        session.RunGraphAsync(id, feeds, [&](ge::Status s, std::vector<ge::Tensor>& outputs) {
          promise.set_value({s, outputs.size()});
        });
    return status == ge::SUCCESS ? promise.get_future().get() : std::make_pair(status, size_t{0});
  };
  EXPECT_EQ(run_async(1, parts.feeds), std::make_pair(ge::Status{ge::SUCCESS}, size_t{3}));
  EXPECT_EQ(run_async(1, {}).first, ge::FAILED);
  EXPECT_EQ(run_async(2, parts.feeds).first, ge::FAILED);
}

// Memory of the caller for the outputs: nothing is written unless all of it fits.
TEST(GeErrors, OutputsOfTheCaller) {
  using Tensors = std::vector<ge::Tensor>;
  const struct {
    const char* what;
    ge::Status status;
    std::function<void(Tensors&, Parts&, std::vector<uint8_t>&)> change;
  } table[] = {
      {"fitting", ge::SUCCESS, [](Tensors&, Parts&, std::vector<uint8_t>&) {}},
      {"too few", ge::FAILED, [](Tensors& t, Parts&, std::vector<uint8_t>&) { t.pop_back(); }},
      {"too many", ge::FAILED,
       [](Tensors& t, Parts&, std::vector<uint8_t>&) { t.push_back(t[0].Clone()); }},
      {"too small", ge::FAILED,
       [](Tensors& t, Parts& p, std::vector<uint8_t>& memory) {
         (void)t[0].SetData(memory.data(), p.call["pd_x"].bytes() - 4, [](uint8_t*) {});
       }},
      {"two in one place", ge::FAILED,
       [](Tensors& t, Parts& p, std::vector<uint8_t>& memory) {
         (void)t[2].SetData(memory.data() + 40, p.call["pd_beta"].bytes(), [](uint8_t*) {});
       }},
      {"over a part of dy", ge::FAILED,
       [](Tensors& t, Parts& p, std::vector<uint8_t>&) {
         Operand shifted = p.call["pd_gamma"];
         shifted.data = static_cast<uint8_t*>(p.call["dy"].data) + 4;
         t[1] = tensor_of(shifted);
       }},
  };
  for (const auto& row : table) {
    SCOPED_TRACE(row.what);
    Parts parts("LayerNormGrad");
    parts.connect();
    std::vector<uint8_t> memory(4096, 0xFF);
    const std::vector<uint8_t> before = memory;
    Tensors outputs;
    for (size_t i = 0; i < 3; ++i) {
      Operand output = parts.call.outputs[i];
      output.data = memory.data() + 1024 * i;
      outputs.push_back(tensor_of(output));
    }
    row.change(outputs, parts, memory);
    const Operand& dy = parts.call["dy"];
    const uint8_t* fed = static_cast<const uint8_t*>(dy.data);
    const std::vector<uint8_t> input(fed, fed + dy.bytes());
    ge::Session session{Options()};
    ASSERT_EQ(session.AddGraph(1, parts.graph()), ge::SUCCESS);
    EXPECT_EQ(session.RunGraphWithStreamAsync(1, nullptr, parts.feeds, outputs), row.status)
        << last_message();
    EXPECT_EQ(memory == before, row.status != ge::SUCCESS);
    EXPECT_TRUE(std::equal(input.begin(), input.end(), fed));
  }
}

}  // namespace
}  // namespace ge_test
