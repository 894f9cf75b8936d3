// `normgrad bench` as a process: what it prints and writes, and its exit codes.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tool_fixture.hpp"

namespace normgrad::tool {
namespace {

using Json = nlohmann::json;

class BenchCommand : public Tool {
 protected:
  Json results(const std::string& name) const { return Json::parse(text(name)); }
  std::string text(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  bool mentions(const std::string& words) const { return said.find(words) != std::string::npos; }
};

TEST_F(BenchCommand, QuickResultsAgreeWithThemselves) {
  ASSERT_EQ(normgrad("bench --quick --time 0.02 --threads 1 --json " + path("json") + " --html " +
                     path("html")),
            0)
      << said;
  const Json document = results("json");
  std::set<std::string> names, seen;
  for (const Json& each : document["benchmarks"]) {
    const double seconds = each["real_time"].get<double>() * 1e-6;
    const double bytes = each["minimal_bytes"], speed = each["bytes_per_second"];
    const double plain = each["limit_plain_bytes_per_second"],
                 nt = each["limit_nt_bytes_per_second"];
    EXPECT_NEAR(speed * seconds, bytes, 1e-6 * bytes);
    EXPECT_EQ(each["limit_bytes_per_second"], std::max(plain, nt));
    EXPECT_NEAR(each["share_of_limit"], speed / std::max(plain, nt), 1e-9);
    EXPECT_LE(each["p10"], each["real_time"]);
    EXPECT_LE(each["real_time"], each["p90"]);
    EXPECT_GE(each["iterations"], 5);
    EXPECT_EQ(each["implementation"], "normgrad");
    names.insert(each["name"]);
    for (const char* key : {"operator", "layout", "dtype"}) seen.insert(each[key]);
    EXPECT_EQ(each["omp_threads"], 1);
  }
  EXPECT_EQ(names.size(), 4u * 3);
  EXPECT_EQ(seen, (std::set<std::string>{"layer_norm", "rms_norm", "batch_norm", "rows",
                                         "channels_first", "channels_last", "f32", "f16", "bf16"}));
  EXPECT_FALSE(document["context"].contains("wrong"));
  // The page carries the results, and the table shows every case.
  EXPECT_NE(text("html").find(*names.begin()), std::string::npos);
  for (const char* word : {"layer_norm\n", "share", "channels_last   bf16"}) {
    EXPECT_TRUE(mentions(word)) << word << "\n" << said;
  }
  EXPECT_FALSE(mentions("\r")) << "a progress bar in a file";
}

TEST_F(BenchCommand, ShapesAndOptionsPickCases) {
  std::ofstream(path("shapes")) << "layer_norm 3x40\nrms_norm 4x50\nbatch_norm 2x3x4\n";
  ASSERT_EQ(normgrad("bench --time 0.001 --shapes " + path("shapes") +
                     " --op rms_norm,layer_norm --dtype bf16 --threads 2,1 --json " + path("json")),
            0)
      << said;
  const Json entries = results("json")["benchmarks"];
  ASSERT_EQ(entries.size(), 4u);
  EXPECT_EQ(entries[0]["name"], "layer_norm/3x40/rows/bf16/threads:2/normgrad");
  EXPECT_EQ(entries[1]["name"], "rms_norm/4x50/rows/bf16/threads:2/normgrad");
  EXPECT_EQ(entries[2]["name"], "layer_norm/3x40/rows/bf16/threads:1/normgrad");
}

TEST_F(BenchCommand, CompareFlagsAPlantedRegression) {
  const std::string measure = "bench --quick --op layer_norm --dtype f32 --threads 1 --json ";
  ASSERT_EQ(normgrad(measure + path("json")), 0) << said;
  const Json before = results("json");
  const auto times_as_fast = [&](double factor) {
    Json document = before;
    for (Json& each : document["benchmarks"]) {
      for (const char* key : {"real_time", "p10", "p90"}) {
        each[key] = each[key].get<double>() / factor;
      }
      each["share_of_limit"] = each["share_of_limit"].get<double>() * factor;
    }
    std::ofstream(path("old")) << document;
    return normgrad(measure + path("json") + " --compare " + path("old"));
  };
  EXPECT_EQ(times_as_fast(100), 3) << said;
  EXPECT_TRUE(mentions("REGRESSED")) << said;
  EXPECT_TRUE(mentions("1 cases compared, 1 regressed; 0 only in the old")) << said;
  EXPECT_EQ(times_as_fast(0.01), 0) << said;
  EXPECT_FALSE(mentions("REGRESSED")) << said;
  // Comparing with the file that is written to: read first.
  std::filesystem::rename(path("old"), path("json"));
  EXPECT_EQ(normgrad(measure + path("json") + " --compare " + path("json")), 0) << said;
  EXPECT_TRUE(mentions("1 cases compared, 0 regressed")) << said;
}

// InfiniOP's RMSNorm replaced by one that writes nothing.
TEST_F(BenchCommand, WrongGradientsAreNotTimed) {
  const std::string environment =
      "ASAN_OPTIONS=verify_asan_link_order=0 LD_PRELOAD=" NORMGRAD_WRONG_RMS_NORM;
  const std::string arguments =
      "bench --quick --time 0.001 --dtype f32 --threads 3 --json " + path("json");
  EXPECT_EQ(normgrad(arguments, environment), 1) << said;
  EXPECT_TRUE(mentions("called with 3 threads")) << said;
  EXPECT_TRUE(mentions("rms_norm/64x768/rows/f32")) << said;
  EXPECT_TRUE(mentions("wrong gradients, not timed: rows 0 to 63: dx[0]: expected")) << said;
  EXPECT_TRUE(mentions("WRONG")) << said;
  const Json document = results("json");
  EXPECT_EQ(document["benchmarks"].size(), 3u);
  EXPECT_EQ(document["context"]["wrong"].size(), 1u);
  for (const Json& each : document["benchmarks"]) EXPECT_NE(each["operator"], "rms_norm");
}

// Rows of x with mean and rstd, in plain Python: right for LayerNorm, which shows that the files
// are; wrong for BatchNorm; without RMSNorm.
constexpr const char* kStubPeer = R"(#!/usr/bin/env python3
import array, json, sys

def read(path):
    values = array.array('f')
    values.frombytes(open(path, 'rb').read())
    return values

def layer_norm(case):
    rows, cols = case['shape']
    x, dy, gamma, mean, rstd = (read(case[key]) for key in ('x', 'dy', 'gamma', 'mean', 'rstd'))
    dx = array.array('f')
    for row in range(rows):
        part = range(row * cols, row * cols + cols)
        x_hat = [(x[i] - mean[row]) * rstd[row] for i in part]
        assert abs(sum(x_hat)) < 1e-3 and abs(sum(v * v for v in x_hat) / cols - 1) < 1e-3
        g = [dy[i] * gamma[i - part[0]] for i in part]
        a, b = sum(g) / cols, sum(u * v for u, v in zip(g, x_hat)) / cols
        dx.extend(rstd[row] * (u - a - v * b) for u, v in zip(g, x_hat))
    return dx

for line in sys.stdin:
    request = json.loads(line)
    answer = {'ok': True}
    if request['do'] == 'hello':
        answer = {'name': 'torch', 'version': '0.stub'}
    elif request['do'] == 'prepare' and request['operator'] == 'rms_norm':
        answer = {'ok': False, 'why': 'no RMSNorm in a stub'}
    elif request['do'] == 'prepare':
        wrong = array.array('f', [1] * len(read(request['x'])))
        dx = layer_norm(request) if request['operator'] == 'layer_norm' else wrong
    elif request['do'] == 'run':
        answer['seconds'] = [0.06] * request['repeat']
    elif request['do'] == 'check':
        open(request['dx'], 'wb').write(dx.tobytes())
    print(json.dumps(answer), flush=True)
)";

TEST_F(BenchCommand, PeersComputeOnTheSameData) {
  std::ofstream(path("python")) << kStubPeer;
  std::filesystem::permissions(path("python"), std::filesystem::perms::owner_all);
  std::ofstream(path("shapes")) << "layer_norm 6x70\nrms_norm 6x70\nbatch_norm 2x3x40\n";
  ASSERT_EQ(normgrad("bench --time 0.001 --dtype f32 --threads 1 --against torch --shapes " +
                         path("shapes") + " --json " + path("json"),
                     "NORMGRAD_PYTHON=" + path("python")),
            0)
      << said;
  const Json document = results("json");
  EXPECT_EQ(document["context"]["peers"], (Json{{"torch", "0.stub"}}));
  const Json& entries = document["benchmarks"];
  ASSERT_EQ(entries.size(), 4u) << said;
  EXPECT_EQ(entries[0]["name"], "layer_norm/6x70/rows/f32/threads:1/normgrad");
  EXPECT_EQ(entries[1]["name"], "layer_norm/6x70/rows/f32/threads:1/torch");
  EXPECT_EQ(entries[1]["minimal_bytes"], entries[0]["minimal_bytes"]);
  EXPECT_NEAR(entries[1]["real_time"], 60000, 1e-6);
  EXPECT_EQ(entries[1]["iterations"], 3) << "3 rounds of one run: it takes 60 ms";
  EXPECT_TRUE(mentions("60.000 ms")) << said;
  EXPECT_TRUE(mentions("torch: no RMSNorm in a stub (cases: 1)")) << said;
  EXPECT_TRUE(mentions("torch: its dx is wrong by")) << said;
}

TEST_F(BenchCommand, WrongCallsSayWhy) {
  std::ofstream(path("wrong")) << "layer_norm 8x8\nlayer_norm 8\n";
  std::ofstream(path("rows")) << "layer_norm 8x8\n";
  const struct {
    std::string arguments;
    int exit_code;
    std::string reason;
  } cases[] = {
      {"--device cuda --against torch", 1, "--against: expected --device cpu"},
      {"--shapes " + path("wrong"), 1, path("wrong") + ":2: expected rows x columns; got '8'"},
      {"--shapes " + path("absent"), 1, path("absent") + ": cannot open it"},
      {"--shapes " + path("rows") + " --op rms_norm", 1, "--op"},
      {"--shapes " + path("rows") + " --quick", 2, "--quick"},
      {"--quick --threads 0", 2, "--threads"},
      {"--quick --time 0", 2, "--time"},
      {"--quick --dtype f64", 2, "got 'f64'"},
      {"--quick --against nonsense", 1, "nonsense"},
      {"--quick --json " + path("no/folder"), 1, path("no/folder") + ": cannot write it"},
      {"--quick --compare " + path("rows"), 1,
       "expected a file that `normgrad bench --json` wrote"},
      // The shapes that come with the tool were found, or it would complain about them first.
      {"--compare " + path("absent"), 1, path("absent") + ": cannot open it"},
  };
  for (const auto& each : cases) {
    EXPECT_EQ(normgrad("bench " + each.arguments), each.exit_code) << each.arguments << said;
    EXPECT_TRUE(mentions(each.reason)) << each.arguments << "\n" << said;
  }
}

}  // namespace
}  // namespace normgrad::tool
