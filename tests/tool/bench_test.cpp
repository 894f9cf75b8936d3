// The parts of `normgrad bench`: shapes, statistics, the limit, the check of a case, results.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/compare.hpp"
#include "bench/measure.hpp"
#include "bench/results.hpp"
#include "bench/shapes.hpp"
#include "bench/trial.hpp"
#include "limit.hpp"
#include "tool_fixture.hpp"

namespace normgrad::tool {
namespace {

class Bench : public Tool {
 protected:
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
};

TEST_F(Bench, ShapeFiles) {
  const std::vector<BenchShape> shapes = read_shapes(file("shapes", R"(# a comment

layer_norm 8192x1024
  rms_norm	1x64   # another one
batch_norm 32x64x3136
batch_norm 32x64x3136 channels_first
batch_norm 4096x256x1 channels_last)"));
  ASSERT_EQ(shapes.size(), 5u);
  EXPECT_EQ(shapes[0].op, Op::kLayerNorm);
  EXPECT_EQ(shapes[0].extents, (std::vector<int64_t>{8192, 1024}));
  EXPECT_EQ(shapes[0].layout, BenchLayout::kRows);
  EXPECT_EQ(shapes[1].op, Op::kRmsNorm);
  EXPECT_EQ(shapes[2].layout, BenchLayout::kChannelsFirst);
  EXPECT_EQ(shapes[3].layout, BenchLayout::kChannelsFirst);
  EXPECT_EQ(shapes[4].layout, BenchLayout::kChannelsLast);
  EXPECT_EQ((BenchCase{shapes[4], DType::kBF16, 3}.name()),
            "batch_norm/4096x256x1/channels_last/bf16/threads:3");
}

TEST_F(Bench, WrongShapeFilesSayWhere) {
  const struct {
    const char *line, *reason;
  } cases[] = {
      {"layernorm 8x8", "expected layer_norm, rms_norm or batch_norm; got 'layernorm'"},
      {"layer_norm", "expected extents joined by x, such as 16384x4096; got ''"},
      {"layer_norm 8by8", "got '8by8'"},
      {"layer_norm 8", "expected rows x columns; got '8'"},
      {"layer_norm 2x8x8", "expected rows x columns; got '2x8x8'"},
      {"batch_norm 8x8", "expected samples x channels x length; got '8x8'"},
      {"rms_norm 0x8", "expected extents of 1 to 2^40 elements in all; got '0x8'"},
      {"rms_norm 4294967296x4294967296", "2^40"},
      {"rms_norm 1048576x1048577", "2^40"},
      {"rms_norm 8x8 channels_last", "expected nothing behind the shape; got 'channels_last'"},
      {"batch_norm 2x8x8 rows", "expected channels_first or channels_last; got 'rows'"},
      {"batch_norm 2x8x8 channels_last 3", "expected nothing behind the layout; got '3'"},
  };
  for (const auto& each : cases) {
    const std::string path = file("wrong", std::string("# first\nrms_norm 1x1\n") + each.line);
    try {
      read_shapes(path);
      ADD_FAILURE() << "accepted " << each.line;
    } catch (const std::runtime_error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(path + ":3: ")) << error.what();
      EXPECT_NE(std::string(error.what()).find(each.reason), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(read_shapes(file("empty", "# nothing\n")), std::runtime_error);
  EXPECT_THROW(read_shapes(path("absent")), std::runtime_error);
}

TEST_F(Bench, TheToolsOwnShapes) {
  std::map<std::string, size_t> counts;
  for (const char* name : {"language_models", "vision", "edge"}) {
    counts[name] = read_shapes(std::string(NORMGRAD_SHAPES "/") + name + ".txt").size();
  }
  EXPECT_EQ(counts["language_models"], 18u);
  EXPECT_EQ(counts["vision"], 16u);
  EXPECT_EQ(counts["edge"], 16u);
}

TEST(Measure, Quantiles) {
  std::vector<double> samples(11);
  std::iota(samples.rbegin(), samples.rend(), 1);  // 11, 10, ... 1
  const Spread spread = spread_of(samples);
  EXPECT_DOUBLE_EQ(spread.p10, 2);
  EXPECT_DOUBLE_EQ(spread.median, 6);
  EXPECT_DOUBLE_EQ(spread.p90, 10);
  EXPECT_DOUBLE_EQ(spread_of({1, 4}).median, 2.5);
  EXPECT_DOUBLE_EQ(spread_of({1, 2}).p10, 1.1);
  EXPECT_DOUBLE_EQ(spread_of({1, 2}).p90, 1.9);
  EXPECT_DOUBLE_EQ(spread_of({7}).p10, 7);
  EXPECT_DOUBLE_EQ(spread_of({7}).p90, 7);
}

// Contestants that say how long they take, without taking it.
TEST(Measure, RoundsAreInterleaved) {
  std::string order;
  std::map<char, std::pair<int64_t, int64_t>> bursts;  // samples and calls of the last one
  const auto contestant = [&](char name, double seconds) {
    return Contestant{std::string(1, name), [&, name, seconds](int64_t samples, int64_t calls) {
                        order += name;
                        bursts[name] = {samples, calls};
                        return std::vector<double>(static_cast<size_t>(samples), seconds);
                      }};
  };
  // A budget that is over at once: 1 burst to learn the time, then the least number of rounds.
  std::vector<Timing> timings = measure({contestant('a', 1e-6), contestant('b', 1e-2)}, 1e-9);
  EXPECT_EQ(order,
            "ababababab"
            "ab");
  EXPECT_EQ(bursts['a'], (std::pair<int64_t, int64_t>{1, 20}));  // a sample of 20 us
  EXPECT_EQ(bursts['b'], (std::pair<int64_t, int64_t>{1, 1}));
  EXPECT_EQ(timings[0].runs, 5 * 20);
  EXPECT_EQ(timings[1].runs, 5);
  EXPECT_DOUBLE_EQ(timings[1].seconds.median, 1e-2);

  order.clear();
  timings = measure({contestant('a', 1e-6), contestant('c', 0.06)}, 1e-9);
  EXPECT_EQ(order,
            "ac"
            "acacac");
  EXPECT_EQ(timings[1].runs, 3);
}

TEST(Measure, LocalContestantsAreTimedInThisProcess) {
  int64_t calls = 0;
  const Contestant counting = local("counting", [&](int64_t count) { calls += count; });
  EXPECT_EQ(counting.burst(4, 3).size(), 4u);
  EXPECT_EQ(calls, 1 + 4 * 3);

  // Five sleeps of a millisecond in a sample: a call takes one or, on a busy machine, a bit more.
  const Contestant sleeper = local("sleeper", [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  const std::vector<double> seconds = sleeper.burst(4, 5);
  EXPECT_GE(*std::min_element(seconds.begin(), seconds.end()), 1e-3);
  EXPECT_LT(*std::min_element(seconds.begin(), seconds.end()), 4e-3);
}

TEST(Limit, AddsWholeArraysWithBothKindsOfStores) {
  for (const int64_t words : {1, 15, 16, 17, 255, 4096, 100003}) {
    for (const auto stores : {bench::Stores::kPlain, bench::Stores::kNonTemporal}) {
      const auto bytes = static_cast<size_t>(words) * sizeof(uint32_t);
      const DeviceMemory x = allocate(bytes), dy = allocate(bytes), dx = allocate(bytes + 64);
      for (int64_t i = 0; i < words; ++i) {
        static_cast<uint32_t*>(x.get())[i] = static_cast<uint32_t>(i * 7);
        static_cast<uint32_t*>(dy.get())[i] = static_cast<uint32_t>(i * 5 + 1);
      }
      std::memset(dx.get(), 0xAB, bytes + 64);
      bench::add_arrays(x.get(), dy.get(), dx.get(), static_cast<int64_t>(bytes), stores, 2);
      const auto* sums = static_cast<const uint32_t*>(dx.get());
      for (int64_t i = 0; i < words; ++i) {
        ASSERT_EQ(sums[i], static_cast<uint32_t>(12 * i + 1)) << i << " of " << words;
      }
      for (int64_t i = words; i < words + 16; ++i) ASSERT_EQ(sums[i], 0xABABABABu) << words;
    }
  }
}

// Shapes of one piece and of several, whose lengths no vector divides.
std::vector<BenchCase> checked_cases() {
  std::vector<BenchCase> cases;
  const std::vector<BenchShape> shapes = {
      {Op::kLayerNorm, {5, 67}, BenchLayout::kRows},
      {Op::kLayerNorm, {3001, 201}, BenchLayout::kRows},
      {Op::kRmsNorm, {1, 1}, BenchLayout::kRows},
      {Op::kRmsNorm, {3001, 201}, BenchLayout::kRows},
      {Op::kBatchNorm, {3, 5, 7}, BenchLayout::kChannelsFirst},
      {Op::kBatchNorm, {7, 41, 2003}, BenchLayout::kChannelsFirst},
      {Op::kBatchNorm, {7, 41, 2003}, BenchLayout::kChannelsLast},
  };
  for (const BenchShape& shape : shapes) {
    for (const DType dtype : kAllDTypes) cases.push_back({shape, dtype, 1});
  }
  return cases;
}

TEST(Trial, EveryElementIsChecked) {
  for (const BenchCase& each : checked_cases()) {
    const Trial trial(each);
    EXPECT_EQ(trial.verify(), "") << each.name();
    EXPECT_EQ(trial.what_is_wrong(), "") << each.name();
    const Buffers& data = trial.buffers();
    const auto size = static_cast<int64_t>(size_of(each.dtype));
    const int64_t channels = each.shape.extents[1];
    // The high byte of an element: its sign and most of its exponent.
    const auto spoilt = [&](void* output, int64_t element) {
      auto& byte = static_cast<unsigned char*>(output)[element * size + size - 1];
      byte ^= 0xC0;
      const std::string wrong = trial.what_is_wrong();
      byte ^= 0xC0;
      return wrong;
    };
    const int64_t last = trial.data_bytes() / size - 1;
    for (const int64_t element : {int64_t{0}, last / 2, last}) {
      EXPECT_NE(spoilt(data.dx, element).find(": dx["), std::string::npos) << each.name();
    }
    EXPECT_NE(spoilt(data.dgamma, channels - 1).find("dgamma["), std::string::npos) << each.name();
    if (data.dbeta) {
      EXPECT_NE(spoilt(data.dbeta, channels / 2).find("dbeta["), std::string::npos) << each.name();
    }
    EXPECT_EQ(trial.what_is_wrong(), "") << each.name();
  }
}

TEST(Trial, MinimalBytesCountEveryOperandOnce) {
  const auto bytes = [](Op op, std::vector<int64_t> extents, BenchLayout layout, DType dtype) {
    return Trial({{op, std::move(extents), layout}, dtype, 1}).minimal_bytes();
  };
  // x, dy, dx; std; gamma, dgamma, dbeta
  EXPECT_EQ(bytes(Op::kLayerNorm, {10, 64}, BenchLayout::kRows, DType::kF32),
            4 * (3 * 640 + 10 + 3 * 64));
  // x, dy, dx; gamma, dgamma
  EXPECT_EQ(bytes(Op::kRmsNorm, {10, 64}, BenchLayout::kRows, DType::kBF16),
            2 * (3 * 640 + 2 * 64));
  // x, dy, dx; mean, variance, gamma, dgamma, dbeta
  for (const auto layout : {BenchLayout::kChannelsFirst, BenchLayout::kChannelsLast}) {
    EXPECT_EQ(bytes(Op::kBatchNorm, {2, 3, 5}, layout, DType::kF16), 2 * (3 * 30 + 5 * 3));
  }
}

BenchResults some_results() {
  BenchResult result;
  result.description = {{Op::kLayerNorm, {8192, 1024}, BenchLayout::kRows}, DType::kBF16, 2};
  result.minimal_bytes = 50'000'000;
  result.limit_plain = 40e9;
  result.limit_nt = 50e9;
  result.entries = {{"normgrad", {{1.9e-3, 2e-3, 2.4e-3}, 100}},
                    {"onednn", {{3e-3, 4e-3, 5e-3}, 7}}};
  BenchResult wrong;
  wrong.description = {{Op::kRmsNorm, {1, 64}, BenchLayout::kRows}, DType::kF32, 2};
  wrong.wrong = "dx[0]: expected 1, got 2";
  return {{result, wrong}, {{"onednn", "2.6.3"}}, {}};
}

TEST_F(Bench, JsonIsGoogleBenchmarks) {
  write_text(path("json"), to_json(some_results()).dump());
  const nlohmann::json document = read_results(path("json"));
  const nlohmann::json& context = document["context"];
  for (const char* key : {"date", "host_name", "executable", "num_cpus", "mhz_per_cpu",
                          "cpu_scaling_enabled", "caches", "load_avg", "library_build_type",
                          "cpu_model", "normgrad_version", "normgrad_implementation"}) {
    EXPECT_TRUE(context.contains(key)) << key;
  }
  EXPECT_EQ(context["peers"], (nlohmann::json{{"onednn", "2.6.3"}}));
  EXPECT_EQ(context["wrong"],
            nlohmann::json({"rms_norm/1x64/rows/f32/threads:2: dx[0]: expected 1, got 2"}));
  ASSERT_EQ(document["benchmarks"].size(), 2u);
  const nlohmann::json& ours = document["benchmarks"][0];
  EXPECT_EQ(ours["name"], "layer_norm/8192x1024/rows/bf16/threads:2/normgrad");
  EXPECT_EQ(ours["run_name"], ours["name"]);
  EXPECT_EQ(ours["run_type"], "iteration");
  EXPECT_EQ(ours["time_unit"], "us");
  EXPECT_EQ(ours["iterations"], 100);
  EXPECT_DOUBLE_EQ(ours["real_time"], 2000);
  EXPECT_DOUBLE_EQ(ours["cpu_time"], 2000);
  EXPECT_DOUBLE_EQ(ours["p10"], 1900);
  EXPECT_DOUBLE_EQ(ours["p90"], 2400);
  EXPECT_DOUBLE_EQ(ours["bytes_per_second"], 25e9);
  EXPECT_DOUBLE_EQ(ours["limit_bytes_per_second"], 50e9);
  EXPECT_DOUBLE_EQ(ours["share_of_limit"], 0.5);
  EXPECT_EQ(ours["omp_threads"], 2);
  EXPECT_EQ(document["benchmarks"][1]["implementation"], "onednn");
  EXPECT_DOUBLE_EQ(document["benchmarks"][1]["share_of_limit"], 0.25);
}

TEST_F(Bench, ResultsThatAreNoneAreRefused) {
  for (const char* text :
       {"", "{", "[]", "{}", R"({"context": {}})", R"({"context": {}, "benchmarks": 3})"}) {
    EXPECT_THROW(read_results(file("wrong", text)), std::runtime_error) << text;
  }
  EXPECT_THROW(read_results(path("absent")), std::runtime_error);
  EXPECT_THROW(write_text(path("no/folder"), ""), std::runtime_error);
}

TEST(Compare, FlagsWhatLostItsShareBeyondTheNoise) {
  const nlohmann::json before = to_json(some_results());
  const auto now = [&](double time, double share, double p10) {
    nlohmann::json document = before;
    nlohmann::json& entry = document["benchmarks"][0];
    entry["real_time"] = time;
    entry["share_of_limit"] = share;
    entry["p10"] = p10;
    return compare(before, document);
  };
  // Before: 2000 us (1900 to 2400), half of the limit.
  ASSERT_EQ(now(2000, 0.5, 1900).changes.size(), 1u) << "peers are not compared";
  EXPECT_FALSE(now(2000, 0.5, 1900).changes[0].regressed);
  EXPECT_TRUE(now(2500, 0.4, 2450).changes[0].regressed);
  EXPECT_DOUBLE_EQ(now(2500, 0.4, 2450).changes[0].ratio, 0.8);
  EXPECT_FALSE(now(2500, 0.4, 2350).changes[0].regressed) << "the times overlap";
  EXPECT_FALSE(now(2500, 0.46, 2450).changes[0].regressed) << "the machine became slower";
  EXPECT_FALSE(now(1000, 0.9, 900).changes[0].regressed);
  // Without a limit the times decide.
  EXPECT_TRUE(now(2500, 0, 2450).changes[0].regressed);
  EXPECT_FALSE(now(2200, 0, 2450).changes[0].regressed);

  nlohmann::json other = before;
  other["benchmarks"][0]["name"] = "another/normgrad";
  const Comparison apart = compare(before, other);
  EXPECT_TRUE(apart.changes.empty());
  EXPECT_EQ(apart.only_old, 1u);
  EXPECT_EQ(apart.only_new, 1u);
}

}  // namespace
}  // namespace normgrad::tool
