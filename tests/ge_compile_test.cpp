// What becomes of a graph before it runs: the order of steps, what is computed and what is not, how
// the arena is shared, and its dump.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "ge_call.hpp"
#include "ge_ir_build.h"
#include "graph/snapshot.hpp"
#include "runner/arena.hpp"
#include "runner/infer.hpp"
#include "runner/program.hpp"

namespace ge_test {
namespace {

using normgrad::Buffers;
using normgrad::graph_mode::Arena;
using normgrad::graph_mode::Descs;
using normgrad::graph_mode::execution_order;
using normgrad::graph_mode::Location;
using normgrad::graph_mode::Program;
using normgrad::graph_mode::Snapshot;
using normgrad::graph_mode::take_snapshot;

// LayerNormGradV3 nodes in a row, pd_x of each the dy of the next; they share x, rstd, mean, gamma.
struct Chain {
  explicit Chain(int length) {
    for (const char* name : {"dy", "x", "rstd", "mean", "gamma"}) data.emplace_back(name);
    for (int i = 0; i < length; ++i) {
      ge::op::LayerNormGradV3 node(("node" + std::to_string(i)).c_str());
      if (i == 0) {
        node.set_input_dy(data[0]);
      } else {
        node.set_input_dy(nodes.back(), "pd_x");
      }
      node.set_input_x(data[1]).set_input_rstd(data[2]).set_input_mean(data[3]);
      node.set_input_gamma(data[4]);
      nodes.push_back(node);
    }
    graph.SetInputs(std::vector<ge::Operator>(data.begin(), data.end()));
  }

  Descs feeds(int64_t rows, int64_t cols) const {
    return {desc_of({rows, cols}), desc_of({rows, cols}), desc_of({rows}), desc_of({rows}),
            desc_of({cols})};
  }

  std::vector<ge::op::Data> data;
  std::vector<ge::op::LayerNormGradV3> nodes;
  ge::Graph graph{"chain"};
};

Program compile(const ge::Graph& graph, const Descs& feeds) {
  const Snapshot snapshot = take_snapshot(graph);
  return normgrad::graph_mode::compile(snapshot, execution_order(snapshot), feeds);
}

using Outputs = std::vector<std::pair<ge::Operator, ge::AscendString>>;

TEST(GeCompile, OrderHasProducersFirst) {
  Chain chain(5);
  chain.graph.SetOutputs(Outputs{{chain.nodes.back(), "pd_x"}});
  const Snapshot snapshot = take_snapshot(chain.graph);
  std::set<int> seen;
  for (const int node : execution_order(snapshot)) {
    for (const auto& input : snapshot.nodes[node].inputs) EXPECT_TRUE(seen.count(input.from.node));
    seen.insert(node);
  }
  EXPECT_EQ(seen.size(), snapshot.nodes.size());
}

TEST(GeCompile, UnusedOutputsBecomeMasks) {
  Chain chain(3);
  chain.graph.SetOutputs(Outputs{{chain.nodes.back(), "pd_beta"}});
  const Program program = compile(chain.graph, chain.feeds(6, 40));
  ASSERT_EQ(program.steps.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(program.steps[i].outputs.size(), 1u);
    EXPECT_EQ(program.steps[i].outputs[0].first, i < 2 ? &Buffers::dx : &Buffers::dbeta);
  }
}

TEST(GeCompile, NodesOfNoUseAreNotRun) {
  Chain chain(4);
  chain.graph.SetOutputs(Outputs{{chain.nodes[1], "pd_x"}});
  EXPECT_EQ(compile(chain.graph, chain.feeds(6, 40)).steps.size(), 2u);
}

// A node whose output goes to an input that nobody reads: running_mean in training, or any input of
// a node that is masked altogether.
TEST(GeCompile, WhatIsNotReadIsNotComputed) {
  Chain chain(1);
  ge::op::BatchNormGradV3 batch_norm("batch_norm");
  std::vector<ge::op::Data> data;
  for (const char* name : {"bn_dy", "bn_x", "weight", "running_var", "save_mean", "save_rstd"}) {
    data.emplace_back(name);
  }
  batch_norm.set_input_dy(data[0]).set_input_x(data[1]).set_input_weight(data[2]);
  batch_norm.set_input_running_mean_by_name(chain.nodes[0], "pd_gamma");
  batch_norm.set_input_running_var(data[3]).set_input_save_mean(data[4]);
  batch_norm.set_input_save_rstd(data[5]);
  std::vector<ge::Operator> inputs(chain.data.begin(), chain.data.end());
  inputs.insert(inputs.end(), data.begin(), data.end());
  for (const bool training : {true, false}) {
    batch_norm.set_attr_is_training(training);
    ge::Graph graph("unread");
    graph.SetInputs(inputs).SetOutputs(std::vector<ge::Operator>{batch_norm});
    Descs feeds = chain.feeds(6, 40);
    for (int i = 0; i < 2; ++i) feeds.push_back(desc_of({3, 40, 2}));
    for (int i = 0; i < 4; ++i) feeds.push_back(desc_of({40}));
    EXPECT_EQ(compile(graph, feeds).steps.size(), training ? 1u : 2u);
  }
  Chain masked(2);
  masked.nodes[1].set_attr_output_mask({false, false, false});
  masked.graph.SetOutputs(std::vector<ge::Operator>{masked.nodes[1]});
  EXPECT_EQ(compile(masked.graph, masked.feeds(6, 40)).steps.size(), 0u);
}

TEST(GeCompile, MaskedOutputsAreZeros) {
  Chain chain(1);
  chain.nodes[0].set_attr_output_mask({false, true, false});
  chain.graph.SetOutputs(std::vector<ge::Operator>{chain.nodes[0]});
  const Program program = compile(chain.graph, chain.feeds(6, 40));
  ASSERT_EQ(program.steps.size(), 1u);
  EXPECT_EQ(program.steps[0].outputs.size(), 1u);
  EXPECT_EQ(program.zeros, (std::vector<size_t>{0, 2}));
}

// However long the chain, only two intermediate tensors live at a time.
TEST(GeCompile, ArenaReusesDeadBuffers) {
  constexpr size_t kBytes = 64 * 1024 * sizeof(float);
  size_t sizes[2];
  for (const int length : {4, 40}) {
    Chain chain(length);
    chain.graph.SetOutputs(Outputs{{chain.nodes.back(), "pd_x"}});
    const Program program = compile(chain.graph, chain.feeds(64, 1024));
    EXPECT_EQ(program.steps.size(), static_cast<size_t>(length));
    EXPECT_GE(program.arena_size, 2 * kBytes);
    sizes[length == 40] = program.arena_size;
  }
  EXPECT_EQ(sizes[0], sizes[1]);
}

TEST(GeCompile, GraphOutputsAreNotInTheArena) {
  Chain chain(2);
  chain.graph.SetOutputs(Outputs{{chain.nodes[0], "pd_x"}, {chain.nodes[1], "pd_x"}});
  const Program program = compile(chain.graph, chain.feeds(64, 1024));
  for (const auto& step : program.steps) {
    for (const auto& [member, location] : step.outputs) {
      EXPECT_EQ(location.place, Location::kOutput);
    }
  }
  EXPECT_EQ(program.output_bytes, (std::vector<size_t>{64 * 1024 * 4, 64 * 1024 * 4}));
}

// Buffers in use at the same time never share a byte, whatever comes in which order.
TEST(GeCompile, ArenaKeepsLiveBuffersApart) {
  uint32_t random = 1;
  const auto next = [&](uint32_t limit) {
    random = random * 1664525 + 1013904223;
    return (random >> 8) % limit;
  };
  for (int round = 0; round < 200; ++round) {
    Arena arena;
    struct Buffer {
      size_t bytes, first, last, number;
    };
    std::vector<Buffer> buffers;
    for (uint32_t i = 0; i < 1 + next(40); ++i) {
      const size_t first = next(20), last = first + next(6), bytes = next(1000);
      buffers.push_back({bytes, first, last, arena.add(bytes, first, last)});
    }
    arena.place();
    for (const Buffer& a : buffers) {
      EXPECT_EQ(arena.offset(a.number) % 64, 0u);
      EXPECT_LE(arena.offset(a.number) + a.bytes, arena.size());
      for (const Buffer& b : buffers) {
        if (a.number == b.number || a.last < b.first || b.last < a.first) continue;
        EXPECT_TRUE(arena.offset(a.number) + a.bytes <= arena.offset(b.number) ||
                    arena.offset(b.number) + b.bytes <= arena.offset(a.number));
      }
    }
  }
}

std::string content_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(GeCompile, Dump) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("normgrad_dump_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  auto call = layer_norm();
  call.build();
  const std::string path = (folder / "dump").string();
  std::vector<std::string> people, viewers;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(ge::aclgrphDumpGraph(call.graph, path.c_str(), path.size()), ge::GRAPH_SUCCESS)
        << ge::GEGetErrorMsgV2().GetString();
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    EXPECT_NE(name.find("_graph_0_dump."), std::string::npos) << name;
    EXPECT_EQ(name.substr(0, 12), name[3] == 'p' ? "ge_proto_000" : "ge_onnx_0000") << name;
    (name[3] == 'p' ? people : viewers).push_back(content_of(entry.path()));
  }
  std::filesystem::remove_all(folder);
  ASSERT_EQ(people.size(), 2u);
  ASSERT_EQ(viewers.size(), 2u);
  EXPECT_EQ(people[0], people[1]);
  EXPECT_EQ(viewers[0], viewers[1]);
  for (const char* part :
       {"graph graph\n", "input 0: dy\n", "output 2: node.pd_beta\n", "node node: LayerNormGrad\n",
        "  input variance <- variance.y\n", "  attribute output_mask = [true, true, true]\n",
        "  output pd_x: DT_FLOAT [3, 2, 5] ND\n"}) {
    EXPECT_NE(people[0].find(part), std::string::npos) << part << "\n" << people[0];
  }
  EXPECT_NE(viewers[0].find("op_type: \"LayerNormGrad\""), std::string::npos);
  EXPECT_EQ(ge::aclgrphDumpGraph(call.graph, "no/such/folder", 14), ge::GRAPH_PARAM_INVALID);
  EXPECT_EQ(ge::aclgrphDumpGraph(call.graph, path.c_str(), path.size() - 1),
            ge::GRAPH_PARAM_INVALID);
  EXPECT_EQ(ge::aclgrphDumpGraph(call.graph, nullptr, 0), ge::GRAPH_PARAM_INVALID);
  EXPECT_EQ(ge::aclgrphDumpGraph(ge::Graph("empty"), path.c_str(), path.size()),
            ge::GRAPH_PARAM_INVALID);
}

}  // namespace
}  // namespace ge_test
