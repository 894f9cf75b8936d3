// Graphs that run: several operators, constants, formats, outputs by index and name, asynchronous
// runs, many threads.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "ge_call.hpp"
#include "normgrad/normgrad.hpp"

namespace ge_test {
namespace {

using ge::SUCCESS;

class GeGraph : public ::testing::Test {
 protected:
  const Engine engine_;
};

std::string message() { return ge::GEGetErrorMsgV2().GetString(); }

// Two nodes in one graph give what two graphs give one after the other.
TEST_F(GeGraph, OperatorsFeedEachOther) {
  auto first = layer_norm_v3();
  Tensors one, two, both;
  Tensors feeds = first.feeds();
  ASSERT_EQ(run(first.build(), feeds, one), SUCCESS) << message();
  auto second = rms_norm();
  Tensors second_feeds = second.feeds();
  second_feeds[0] = one[0];
  ASSERT_EQ(run(second.build(), second_feeds, two), SUCCESS) << message();

  auto chained = layer_norm_v3();
  chained.build();
  ge::op::RmsNormGrad rms("rms");
  ge::op::Data rstd("rms_rstd"), gamma("rms_gamma");
  rms.set_input_dy(chained.node, 0).set_input_x_by_name(chained.data[1], "y");
  rms.set_input_rstd(rstd).set_input_gamma(gamma);
  std::vector<ge::Operator> inputs(chained.data.begin(), chained.data.end());
  inputs.push_back(rstd);
  inputs.push_back(gamma);
  ge::Graph graph("two");
  graph.SetInputs(inputs).SetOutputs(std::vector<ge::Operator>{rms, chained.node});
  feeds.push_back(second_feeds[2]);
  feeds.push_back(second_feeds[3]);
  second_feeds[1] = feeds[1];
  ASSERT_EQ(run(second.build(), second_feeds, two), SUCCESS) << message();
  ASSERT_EQ(run(graph, feeds, both), SUCCESS) << message();
  ASSERT_EQ(both.size(), 5u);
  EXPECT_TRUE(same_bytes(both[0], two[0]));
  EXPECT_TRUE(same_bytes(both[1], two[1]));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bytes(both[2 + i], one[i]));
}

// Half a million nodes, each fed by the one before, are freed without half a million stack frames.
TEST_F(GeGraph, LongChainsAreFreed) {
  ge::Operator last = ge::op::Data("first");
  for (int i = 0; i < 500000; ++i) {
    ge::op::RmsNormGrad next(std::to_string(i).c_str());
    next.set_input_dy(last);
    last = next;
  }
}

TEST_F(GeGraph, BatchNormFormatsAgree) {
  auto nchw = batch_norm(ge::FORMAT_NCHW), nhwc = batch_norm(ge::FORMAT_NHWC);
  Tensors feeds = nchw.feeds(), turned = feeds, outputs, turned_outputs;
  const auto turn = [](const std::vector<double>& from) {
    std::vector<double> to(from.size());
    for (int n = 0; n < 2; ++n) {
      for (int c = 0; c < 5; ++c) {
        for (int i = 0; i < 12; ++i) to[(n * 12 + i) * 5 + c] = from[(n * 5 + c) * 12 + i];
      }
    }
    return to;
  };
  for (const int i : {0, 1}) turned[i] = tensor_of(nhwc.inputs[i].desc, turn(values_of(feeds[i])));
  for (const bool training : {true, false}) {
    nchw.node.set_attr_is_training(training);
    nhwc.node.set_attr_is_training(training);
    ASSERT_EQ(run(nchw.build(), feeds, outputs), SUCCESS) << message();
    ASSERT_EQ(run(nhwc.build(), turned, turned_outputs), SUCCESS) << message();
    const std::vector<double> a = turn(values_of(outputs[0])), b = values_of(turned_outputs[0]);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4) << i;
    // The description of the Data tells the format as well.
    Tensors plain = turned, plain_outputs;
    for (const int i : {0, 1}) plain[i] = tensor_of(desc_of({2, 4, 3, 5}), values_of(turned[i]));
    ASSERT_EQ(run(nhwc.graph, plain, plain_outputs), SUCCESS) << message();
    EXPECT_TRUE(same_bytes(plain_outputs[0], turned_outputs[0]));
  }
}

// Where x is ND, dy says where the channels are.
TEST_F(GeGraph, EitherFormatTellsTheChannels) {
  auto both = batch_norm(ge::FORMAT_NHWC), one = batch_norm(ge::FORMAT_NHWC);
  one["x"].SetFormat(ge::FORMAT_ND);
  Tensors expected, outputs;
  ASSERT_EQ(run(both.build(), both.feeds(), expected), SUCCESS) << message();
  ASSERT_EQ(run(one.build(), one.feeds(), outputs), SUCCESS) << message();
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bytes(outputs[i], expected[i])) << i;
}

TEST_F(GeGraph, ConstantsAreNotFed) {
  auto fed = layer_norm();
  Tensors feeds = fed.feeds(), expected, outputs;
  ASSERT_EQ(run(fed.build(), feeds, expected), SUCCESS) << message();
  auto call = layer_norm();
  call.build();
  ge::op::Const gamma("constant_gamma");
  gamma.SetAttr("value", feeds[4]);
  gamma.update_output_desc_y(desc_of({5}));
  call.node.set_input_gamma(gamma);
  call.data.pop_back();
  std::vector<ge::Operator> inputs(call.data.begin(), call.data.end());
  inputs.insert(inputs.begin(), gamma);
  ge::Graph graph("constant");
  graph.SetInputs(inputs).SetOutputs(std::vector<ge::Operator>{call.node, gamma});
  feeds.pop_back();
  ASSERT_EQ(run(graph, feeds, outputs), SUCCESS) << message();
  ASSERT_EQ(outputs.size(), 4u);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bytes(outputs[i], expected[i]));
  EXPECT_TRUE(same_bytes(outputs[3], fed.feeds()[4]));
}

TEST_F(GeGraph, OutputsByIndexAndName) {
  auto call = layer_norm();
  const Tensors feeds = call.feeds();
  Tensors all, some;
  ASSERT_EQ(run(call.build(), feeds, all), SUCCESS) << message();
  call.graph.SetOutputs(
      std::vector<std::pair<ge::Operator, std::vector<size_t>>>{{call.node, {2, 0, 2}}});
  ASSERT_EQ(run(call.graph, feeds, some), SUCCESS) << message();
  ASSERT_EQ(some.size(), 3u);
  EXPECT_TRUE(same_bytes(some[0], all[2]) && same_bytes(some[1], all[0]));
  EXPECT_TRUE(same_bytes(some[2], all[2]) && some[2].GetData() != some[0].GetData());
  call.graph.SetOutputs(std::vector<std::pair<ge::Operator, std::string>>{{call.node, "pd_gamma"}});
  ASSERT_EQ(run(call.graph, feeds, some), SUCCESS) << message();
  ASSERT_EQ(some.size(), 1u);
  EXPECT_TRUE(same_bytes(some[0], all[1]));
}

// What the program does after AddGraph has no effect on the graph.
TEST_F(GeGraph, AddGraphCopies) {
  ge::Session session(Options{});
  Tensors feeds, outputs, later;
  {
    auto call = layer_norm();
    feeds = call.feeds();
    ASSERT_EQ(session.AddGraph(1, call.build()), SUCCESS) << message();
    ASSERT_EQ(session.RunGraph(1, feeds, outputs), SUCCESS) << message();
    call.node.set_attr_output_mask({false, false, false});
    call.node.set_input_dy(call.data[1]);
  }
  ASSERT_EQ(session.RunGraph(1, feeds, later), SUCCESS) << message();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bytes(outputs[i], later[i]));
}

TEST_F(GeGraph, AsynchronousRuns) {
  auto call = layer_norm();
  const Tensors feeds = call.feeds();
  Tensors expected;
  ASSERT_EQ(run(call.build(), feeds, expected), SUCCESS) << message();
  std::atomic<int> good{0}, refused{0};
  std::string why;
  {
    ge::Session session(Options{});
    ASSERT_EQ(session.AddGraph(1, call.graph), SUCCESS) << message();
    for (int i = 0; i < 50; ++i) {
      ASSERT_EQ(session.RunGraphAsync(1, feeds,
                                      [&](ge::Status status, std::vector<ge::Tensor>& outputs) {
                                        good += status == SUCCESS &&
                                                same_bytes(outputs[0], expected[0]);
                                      }),
                SUCCESS);
    }
    ASSERT_EQ(session.RemoveGraph(1), SUCCESS);
    ASSERT_EQ(session.AddGraph(1, call.graph), SUCCESS) << message();
    ASSERT_EQ(session.RunGraphAsync(1, {feeds[0]},
                                    [&](ge::Status status, std::vector<ge::Tensor>& outputs) {
                                      refused += status == ge::FAILED && outputs.empty();
                                      why = message();
                                      throw 1;  // stays in the thread of the session
                                    }),
              SUCCESS);
  }
  EXPECT_EQ(good, 50);
  EXPECT_EQ(refused, 1);
  EXPECT_NE(why.find("expected 5 input tensors"), std::string::npos) << why;
}

// A callback's captures may go once RemoveGraph has returned.
TEST_F(GeGraph, RemovingWaitsForTheCallback) {
  auto call = layer_norm();
  ge::Session session(Options{});
  ASSERT_EQ(session.AddGraph(1, call.build()), SUCCESS) << message();
  std::atomic<bool> done{false};
  std::promise<void> begun;
  ASSERT_EQ(session.RunGraphAsync(1, call.feeds(),
                                  [&](ge::Status, std::vector<ge::Tensor>&) {
                                    begun.set_value();
                                    std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                    done = true;
                                  }),
            SUCCESS);
  begun.get_future().wait();
  EXPECT_EQ(session.RemoveGraph(1), SUCCESS);
  EXPECT_TRUE(done);
}

TEST_F(GeGraph, ASessionMayEndInItsCallback) {
  auto call = layer_norm();
  auto* session = new ge::Session(Options{});
  ASSERT_EQ(session->AddGraph(1, call.build()), SUCCESS) << message();
  std::promise<ge::Status> ended;
  ASSERT_EQ(session->RunGraphAsync(1, call.feeds(),
                                   [&](ge::Status status, std::vector<ge::Tensor>&) {
                                     EXPECT_EQ(session->RemoveGraph(1), SUCCESS);
                                     delete session;
                                     ended.set_value(status);
                                   }),
            SUCCESS);
  EXPECT_EQ(ended.get_future().get(), SUCCESS);
}

TEST_F(GeGraph, StreamRunsWriteInPlace) {
  auto call = layer_norm();
  const Tensors feeds = call.feeds();
  ge::Session session(Options{});
  ASSERT_EQ(session.AddGraph(1, call.build()), SUCCESS) << message();
  Tensors expected, made;
  ASSERT_EQ(session.RunGraph(1, feeds, expected), SUCCESS) << message();
  ASSERT_EQ(session.RunGraphWithStreamAsync(1, nullptr, feeds, made), SUCCESS) << message();
  EXPECT_TRUE(same_bytes(made[0], expected[0]));
  std::vector<float> memory(30);
  Tensors given(3);
  ASSERT_EQ(given[0].SetData(reinterpret_cast<uint8_t*>(memory.data()), 120, [](uint8_t*) {}),
            ge::GRAPH_SUCCESS);
  ASSERT_EQ(session.RunGraphWithStreamAsync(1, nullptr, feeds, given), SUCCESS) << message();
  EXPECT_EQ(std::memcmp(memory.data(), expected[0].GetData(), 120), 0);
  EXPECT_TRUE(same_bytes(given[2], expected[2]));
}

TEST_F(GeGraph, OneSessionForManyThreads) {
  auto call = layer_norm();
  const Tensors feeds = call.feeds();
  Tensors expected;
  ASSERT_EQ(run(call.build(), feeds, expected), SUCCESS) << message();
  ge::Session session(Options{});
  ASSERT_EQ(session.AddGraph(0, call.graph), SUCCESS) << message();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint32_t t = 1; t <= 8; ++t) {
    threads.emplace_back([&, t] {
      wrong += session.AddGraph(t, call.graph) != SUCCESS;
      for (int i = 0; i < 50; ++i) {
        Tensors outputs;
        wrong += session.RunGraph(i % 2 == 0 ? 0 : t, feeds, outputs) != SUCCESS ||
                 !same_bytes(outputs[0], expected[0]);
      }
      wrong += session.RemoveGraph(t) != SUCCESS;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace ge_test
