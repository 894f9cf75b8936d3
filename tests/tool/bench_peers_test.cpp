// Peers: a stub that answers, refuses, dies, hangs or talks nonsense; and those that are installed,
// against the oracle.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/peers.hpp"
#include "reference/elements.hpp"
#include "reference/reference.hpp"
#include "tool_fixture.hpp"

namespace normgrad::tool {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

class Peers : public Tool {
 protected:
  // A peer that notes what it is told, and answers as the branches of a shell's `case` say. Those
  // of the test come before its own.
  Peer stub(const std::string& branches, std::chrono::milliseconds time_limit = 20s) {
    const std::string script = path("stub" + std::to_string(++stubs_));
    std::ofstream(script) << "while read -r line; do\n  echo \"$line\" >>" << path("told")
                          << "\n  case $line in\n" + branches + R"(
    *'"hello"'*) echo '{"name": "stub", "version": "1.2"}' ;;
    *'"run"'*) echo '{"ok": true, "seconds": [0.25, 0.5]}' ;;
    *) echo '{"ok": true}' ;;
  esac
done
)";
    return Peer("stub", {"sh", script}, 3, time_limit);
  }

  // The requests that the stub was told, in their order.
  std::vector<json> told() const {
    std::ifstream file(path("told"));
    std::vector<json> requests;
    for (std::string line; std::getline(file, line);) requests.push_back(json::parse(line));
    return requests;
  }

 private:
  int stubs_ = 0;
};

// The sentence that an action fails with.
template <class Action>
std::string failure(const Action& action) {
  try {
    action();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no failure";
}

auto open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST_F(Peers, AreToldTheProtocol) {
  {
    Peer peer = stub("");
    EXPECT_EQ(peer.name(), "stub");
    EXPECT_EQ(peer.version(), "1.2");
    EXPECT_EQ(peer.prepare({"layer_norm", {4, 8}, "rows", "bf16", "/x", "/dy", "/g", "/m", "/r"}),
              std::nullopt);
    EXPECT_EQ(peer.run(2), (std::vector<double>{0.25, 0.5}));
    peer.check({"/dx", "/dgamma", "/dbeta"});
    peer.release();
    EXPECT_EQ(peer.prepare({"batch_norm",
                            {4, 8, 2},
                            "channels_last",
                            "f32",
                            "/x",
                            "/dy",
                            "/g",
                            "/m",
                            "",
                            "/v",
                            0.5}),
              std::nullopt);
    peer.check({"/dx", "/dgamma", ""});
  }
  const std::vector<json> expected = {
      json::parse(R"({"do": "hello", "threads": 3})"),
      json::parse(R"({"do": "prepare", "operator": "layer_norm", "shape": [4, 8],
                      "layout": "rows", "dtype": "bf16", "x": "/x", "dy": "/dy", "gamma": "/g",
                      "mean": "/m", "rstd": "/r", "eps": 0.0})"),
      json::parse(R"({"do": "run", "repeat": 2})"),
      json::parse(R"({"do": "check", "dx": "/dx", "dgamma": "/dgamma", "dbeta": "/dbeta"})"),
      json::parse(R"({"do": "release"})"),
      json::parse(R"({"do": "prepare", "operator": "batch_norm", "shape": [4, 8, 2],
                      "layout": "channels_last", "dtype": "f32", "x": "/x", "dy": "/dy",
                      "gamma": "/g", "mean": "/m", "variance": "/v", "eps": 0.5})"),
      json::parse(R"({"do": "check", "dx": "/dx", "dgamma": "/dgamma"})"),
  };
  EXPECT_EQ(told(), expected);
}

TEST_F(Peers, HaveThreadsAndMemoryByTheEnvironment) {
  setenv("OMP_NUM_THREADS", "7", 1);
  setenv("NORMGRAD_PEERS_TEST", "kept", 1);
  const Peer peer = stub(R"SH(
    *'"hello"'*) found=$(env | grep -c '^OMP_NUM_THREADS=')
      echo "{\"version\": \"$found $OMP_NUM_THREADS $MALLOC_MMAP_MAX_ $NORMGRAD_PEERS_TEST\"}" ;;)SH");
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(peer.version(), "1 3 0 kept");
}

TEST_F(Peers, RefuseWithAReason) {
  Peer peer = stub(R"(
    *'"rms_norm"'*) echo '{"ok": false, "why": "no RMSNorm in stub 1.2"}' ;;
    *'"batch_norm"'*) echo '{"ok": false}' ;;)");
  EXPECT_EQ(peer.prepare({"rms_norm", {4, 8}, "rows", "f32", "/x", "/dy", "/g", "", ""}),
            "no RMSNorm in stub 1.2");
  EXPECT_EQ(
      peer.prepare(
          {"batch_norm", {4, 8, 2}, "channels_first", "f32", "/x", "/dy", "/g", "/m", "", "/v"}),
      "it gave no reason");
  EXPECT_EQ(peer.prepare({"layer_norm", {4, 8}, "rows", "f32", "/x", "/dy", "/g", "/m", "/r"}),
            std::nullopt);
  EXPECT_EQ(failure([&] { stub(R"(*) echo '{"ok": false, "why": "install stub"}' ;;)"); }),
            "stub: install stub");
}

TEST_F(Peers, MayAnswerInPieces) {
  Peer peer = stub(R"(
    *'"run"'*) printf '{"seconds": '; sleep 0.05; echo '[1, 2]}' ;;)");
  EXPECT_EQ(peer.run(2), (std::vector<double>{1, 2}));
}

TEST_F(Peers, ThatDieLeaveTheirLastWords) {
  const struct {
    const char *action, *sentence;
  } cases[] = {
      {"echo first >&2; echo out of ideas >&2; exit 3",
       "stub: the program ended at 'run' with exit code 3: out of ideas"},
      {"exit 0", "stub: the program ended at 'run' with exit code 0"},
      {"kill -KILL $$", "stub: the program ended at 'run' with signal Killed"},
  };
  for (const auto& each : cases) {
    Peer peer = stub("*'\"run\"'*) " + std::string(each.action) + " ;;");
    EXPECT_EQ(failure([&] { peer.run(2); }), each.sentence);
    EXPECT_TRUE(failure([&] { peer.release(); }).starts_with("stub: the program ended"));
  }
  EXPECT_EQ(failure([&] { stub("*) exit 4 ;;"); }),
            "stub: the program ended at 'hello' with exit code 4");
  // Dead before it is asked: no SIGPIPE.
  Peer peer = stub(R"(*) echo '{"version": "1.2"}'; exit 5 ;;)");
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(failure([&] { peer.run(2); }), "stub: the program ended at 'run' with exit code 5");
}

TEST_F(Peers, ThatHangAreEnded) {
  Peer peer = stub("*'\"run\"'*) echo $$ >" + path("pid") + "; exec sleep 100 ;;", 300ms);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(failure([&] { peer.run(2); }), "stub: no answer to 'run' within 0.3 s");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  pid_t pid = 0;
  std::ifstream(path("pid")) >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_EQ(kill(pid, 0), -1);
}

// No peer holds the input of another open, whose end is what ends it.
TEST_F(Peers, EndOneByOne) {
  std::optional<Peer> first = stub("");
  Peer second = stub("");
  const auto start = std::chrono::steady_clock::now();
  first.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 1s);
  second.release();
}

TEST_F(Peers, LeaveNothingBehind) {
  const auto files = open_files();
  pid_t pid = 0;
  {
    // Busy when its input ends.
    Peer peer = stub("*'\"release\"'*) echo $$ >" + path("pid") +
                     R"(; echo '{"ok": true}'; exec sleep 100 ;;)");
    peer.release();
    std::ifstream(path("pid")) >> pid;
    ASSERT_GT(pid, 0);
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_EQ(kill(pid, 0), -1);
  failure([&] { stub("*) exit 4 ;;"); });
  EXPECT_EQ(open_files(), files);
}

TEST_F(Peers, ThatTalkNonsenseAreNotBelieved) {
  const struct {
    const char *answer, *sentence;
  } cases[] = {
      {"echo nonsense", "stub: expected a JSON object as the answer to 'run'; got 'nonsense'"},
      {"echo", "stub: expected a JSON object as the answer to 'run'; got ''"},
      {"echo '[1, 2]'", "stub: expected a JSON object as the answer to 'run'; got '[1, 2]'"},
      {"echo '{}'", "stub: expected the seconds of 2 runs; got null"},
      {"echo '{\"seconds\": 3}'", "stub: expected the seconds of 2 runs; got 3"},
      {"echo '{\"seconds\": [1]}'", "stub: expected the seconds of 2 runs; got [1]"},
      {"echo '{\"seconds\": [1, 0]}'", "stub: expected the seconds of 2 runs; got [1,0]"},
      {"echo '{\"seconds\": [1, \"2\"]}'", "stub: expected the seconds of 2 runs; got [1,\"2\"]"},
      {"echo '{\"ok\": false, \"why\": \"broken\"}'", "stub: broken"},
      {"echo '{\"ok\": 1, \"why\": 2}'", "stub: it gave no reason"},
      {"exec tr '\\0' x </dev/zero",
       "stub: expected an answer to 'run' of at most 16777216 bytes; got more"},
  };
  for (const auto& each : cases) {
    Peer peer = stub("*'\"run\"'*) " + std::string(each.answer) + " ;;");
    EXPECT_EQ(failure([&] { peer.run(2); }), each.sentence);
  }
  EXPECT_EQ(failure([&] { stub("*) echo '{\"version\": 3}' ;;"); }),
            "stub: expected a version; got 3");
}

TEST_F(Peers, ThatAreMissingAreNamed) {
  EXPECT_EQ(failure([] { Peer("stub", {"/no/such/program"}, 1, 1s); }),
            "stub: cannot start '/no/such/program': No such file or directory");
  EXPECT_EQ(failure([] { Peer("nonsense", 1); }), "expected one of onednn, torch; got 'nonsense'");
  // No program of a peer lies beside this test.
  EXPECT_NE(failure([] { Peer("onednn", 1); }).find("libdnnl-dev"), std::string::npos);
}

#if defined(NORMGRAD_ONEDNN_PEER) || defined(NORMGRAD_TORCH_PYTHON)
double relative_error(const std::vector<double>& expected, const std::vector<double>& got) {
  double error = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(error / size);
}

// A case on random data in files, and what the oracle says of it.
class Installed : public Peers {
 protected:
  struct Problem {
    PeerCase description;
    Tensor data;        // x, dy, dx
    Tensor parameters;  // dgamma, dbeta
    reference::Gradients expected;
  };

  std::vector<double> draw(int64_t size, DType dtype, double mean) {
    std::normal_distribution<double> normal(mean, 1);
    std::vector<double> values(static_cast<size_t>(size));
    for (double& each : values) each = reference::round_to(dtype, normal(random_));
    return values;
  }

  std::string store(const std::string& name, const Tensor& tensor,
                    const std::vector<double>& values) {
    std::vector<char> bytes(values.size() * size_of(tensor.dtype));
    reference::scatter(tensor, bytes.data(), values);
    std::ofstream(path(name), std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path(name);
  }

  std::vector<double> load(const std::string& name, const Tensor& tensor) {
    std::ifstream file(path(name), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    const auto expected = static_cast<size_t>(reference::count(tensor)) * size_of(tensor.dtype);
    if (bytes.size() != expected) throw std::runtime_error(name + ": wrong size");
    return reference::gather(tensor, bytes.data());
  }

  Problem rows(bool rms, DType dtype) {
    const int64_t rows = 37, cols = 200;
    Problem result;
    result.description.op = rms ? "rms_norm" : "layer_norm";
    result.description.shape = {rows, cols};
    result.description.layout = "rows";
    result.description.dtype = name_of(dtype);
    result.data = {dtype, {rows, cols}};
    result.parameters = {DType::kF32, {cols}};
    reference::Rows oracle;
    oracle.rows = rows;
    oracle.cols = cols;
    oracle.rms = rms;
    oracle.x = draw(rows * cols, dtype, 0.5);
    oracle.dy = draw(rows * cols, dtype, 0.1);
    oracle.gamma = draw(cols, dtype, 1);
    if (!rms) {
      for (int64_t row = 0; row < rows; ++row) {
        const auto begin = oracle.x.begin() + row * cols;
        double mean = 0, variance = 0;
        for (auto x = begin; x != begin + cols; ++x) mean += *x / cols;
        for (auto x = begin; x != begin + cols; ++x) variance += (*x - mean) * (*x - mean) / cols;
        oracle.mean.push_back(reference::round_to(DType::kF32, mean));
        oracle.spread.push_back(reference::round_to(DType::kF32, 1 / std::sqrt(variance)));
      }
      result.description.mean = store("mean", {DType::kF32, {rows}}, oracle.mean);
      result.description.rstd = store("rstd", {DType::kF32, {rows}}, oracle.spread);
    }
    result.description.x = store("x", result.data, oracle.x);
    result.description.dy = store("dy", result.data, oracle.dy);
    result.description.gamma = store("gamma", result.parameters, oracle.gamma);
    result.expected = reference::rows_backward(oracle);
    return result;
  }

  Problem channels(bool last, DType dtype) {
    const int64_t samples = 3, channels = 20, length = 35;
    Problem result;
    result.description.op = "batch_norm";
    result.description.shape = {samples, channels, length};
    result.description.layout = last ? "channels_last" : "channels_first";
    result.description.dtype = name_of(dtype);
    result.data = {dtype, {samples, channels, length}};
    if (last) result.data.strides = {channels * length, 1, channels};
    result.parameters = {DType::kF32, {channels}};
    reference::Channels oracle;
    oracle.samples = samples;
    oracle.channels = channels;
    oracle.length = length;
    oracle.x = draw(samples * channels * length, dtype, 0.5);
    oracle.dy = draw(samples * channels * length, dtype, 0.1);
    oracle.gamma = draw(channels, dtype, 1);
    const double count = static_cast<double>(samples * length);
    for (int64_t channel = 0; channel < channels; ++channel) {
      double sum = 0, squares = 0;
      for (int64_t i = 0; i < samples * length; ++i) {
        const int64_t sample = i / length;
        const double x = oracle.x[(sample * channels + channel) * length + i % length];
        sum += x;
        squares += x * x;
      }
      const double mean = sum / count;
      oracle.mean.push_back(reference::round_to(DType::kF32, mean));
      oracle.spread.push_back(reference::round_to(DType::kF32, squares / count - mean * mean));
    }
    result.description.x = store("x", result.data, oracle.x);
    result.description.dy = store("dy", result.data, oracle.dy);
    result.description.gamma = store("gamma", result.parameters, oracle.gamma);
    result.description.mean = store("mean", result.parameters, oracle.mean);
    result.description.variance = store("variance", result.parameters, oracle.spread);
    result.expected = reference::channels_backward(oracle);
    return result;
  }

  // Whether the peer knows the problem, whose gradients must then be right.
  bool computes(Peer& peer, const Problem& problem) {
    const PeerCase& description = problem.description;
    SCOPED_TRACE(description.op + " " + description.layout + " " + description.dtype);
    if (const auto why = peer.prepare(description)) {
      EXPECT_NE(why->find(peer.version()), std::string::npos) << *why;
      return false;
    }
    EXPECT_EQ(peer.run(3).size(), 3u);
    const bool has_dbeta = description.op != "rms_norm";
    peer.check({path("dx"), path("dgamma"), has_dbeta ? path("dbeta") : ""});
    peer.release();
    const double bound = description.dtype == "f32" ? 1e-4 : 2e-2;
    EXPECT_LE(relative_error(problem.expected.dx, load("dx", problem.data)), bound);
    EXPECT_LE(relative_error(problem.expected.dgamma, load("dgamma", problem.parameters)), bound);
    if (has_dbeta) {
      EXPECT_LE(relative_error(problem.expected.dbeta, load("dbeta", problem.parameters)), bound);
    }
    return true;
  }

 private:
  std::mt19937 random_{1};
};

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
#endif

#ifdef NORMGRAD_ONEDNN_PEER
// RMSNorm came with version 3.9, and 16-bit types need a processor that has them.
TEST_F(Installed, OneDnnComputesGradients) {
  Peer peer("onednn", {NORMGRAD_ONEDNN_PEER}, 2, 1min);
  for (const DType dtype : kDTypes) {
    const bool plain = dtype == DType::kF32;
    EXPECT_TRUE(computes(peer, rows(false, dtype)) || !plain);
    EXPECT_TRUE(computes(peer, channels(false, dtype)) || !plain);
    EXPECT_TRUE(computes(peer, channels(true, dtype)) || !plain);
    computes(peer, rows(true, dtype));
  }
}
#endif

#ifdef NORMGRAD_TORCH_PYTHON
TEST_F(Installed, PyTorchComputesGradients) {
  Peer peer("torch", {NORMGRAD_TORCH_PYTHON, NORMGRAD_TORCH_PEER}, 2, 1min);
  for (const DType dtype : kDTypes) {
    EXPECT_TRUE(computes(peer, rows(false, dtype)));
    EXPECT_TRUE(computes(peer, rows(true, dtype)));
    EXPECT_TRUE(computes(peer, channels(false, dtype)));
    EXPECT_TRUE(computes(peer, channels(true, dtype)));
  }
}
#endif

}  // namespace
}  // namespace normgrad::tool
