// The subcommands: the options of each, as main.cpp reads them, and how to run it. Each returns the
// exit code and throws std::exception with a sentence for people.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "arguments.hpp"

namespace normgrad::tool {

struct InfoOptions {
  std::vector<Op> ops = {std::begin(kAllOps), std::end(kAllOps)};
  std::vector<std::string> shapes;  // empty: a few of each operator
  std::vector<DType> dtypes = {std::begin(kAllDTypes), std::end(kAllDTypes)};
  Device device = Device::kCpu;
};
int run_info(const InfoOptions& options);

struct RunOptions {
  Op op = Op::kLayerNorm;
  std::string input, output;
  std::vector<std::string> outputs;  // empty: all
  std::optional<DType> params_dtype;
  double eps = 0;
  bool frozen = false;
  Device device = Device::kCpu;
};
int run_run(const RunOptions& options);

struct CheckOptions {
  Device device = Device::kCpu;
  std::vector<Op> ops = {std::begin(kAllOps), std::end(kAllOps)};
  std::string implementation;  // empty: the best
  bool long_mode = false;
};
int run_check(const CheckOptions& options);

int run_demo();

struct BenchOptions {
  Device device = Device::kCpu;
  std::vector<std::string> shapes;  // files; empty: those that come with the tool
  std::vector<Op> ops = {std::begin(kAllOps), std::end(kAllOps)};
  std::vector<DType> dtypes = {std::begin(kAllDTypes), std::end(kAllDTypes)};
  std::vector<int> threads;          // empty: as many as OpenMP gives
  std::vector<std::string> against;  // peers
  std::string json, compare, html;   // files; empty: none
  std::optional<double> seconds;     // per case
  bool quick = false;
};
int run_bench(const BenchOptions& options);

}  // namespace normgrad::tool
