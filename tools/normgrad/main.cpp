// normgrad: the command line of the library. All options are declared here, so that CLI11 is
// compiled once.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <map>
#include <string>

#include "commands.hpp"
#include "normgrad/info.hpp"

namespace normgrad::tool {
namespace {

// An option whose value is one of these names: `option->transform(one_of(kOps))`.
template <class Enum>
CLI::Validator one_of(const std::map<std::string, Enum>& names) {
  const auto find = [&names](std::string& text) -> std::string {
    if (const auto found = names.find(text); found != names.end()) {
      text = std::to_string(static_cast<int>(found->second));
      return "";
    }
    std::string expected;
    for (const auto& [name, value] : names) expected += (expected.empty() ? "" : ", ") + name;
    return fmt::format("expected one of {}; got '{}'", expected, text);
  };
  return CLI::Validator(find, "");
}

void add_device(CLI::App& app, Device& device) {
  app.add_option("--device", device, "cpu or cuda")->transform(one_of(kDevices));
}

void add_ops(CLI::App& app, std::vector<Op>& ops) {
  app.add_option("--op", ops, "Operators: layer_norm, rms_norm, batch_norm")
      ->transform(one_of(kOps))
      ->delimiter(',');
}

void add_dtypes(CLI::App& app, std::vector<DType>& dtypes) {
  app.add_option("--dtype", dtypes, "Element types: f32, f16, bf16")
      ->transform(one_of(kDTypes))
      ->delimiter(',');
}

void add_info(CLI::App& app, InfoOptions& options) {
  add_ops(app, options.ops);
  app.add_option("--shape", options.shapes, "Shapes of x, such as 16384x4096")->delimiter(',');
  add_dtypes(app, options.dtypes);
  add_device(app, options.device);
}

void add_run(CLI::App& app, RunOptions& options) {
  app.footer(
      "The input file has x, dy and, if there is one, gamma, and the statistics under the name "
      "of their form:\n"
      "  layer_norm_backward   mean and rstd; mean and variance; or x_hat (for x) and std\n"
      "  rms_norm_backward     none\n"
      "  batch_norm_backward   mean and variance; or mean and rstd");
  app.add_option("op", options.op, "layer_norm_backward, rms_norm_backward or batch_norm_backward")
      ->required()
      ->transform(one_of(kOps));
  app.add_option("input", options.input, "The file of the inputs, safetensors")->required();
  app.add_option("-o,--output", options.output, "The file for the gradients, safetensors")
      ->required();
  app.add_option("--outputs", options.outputs, "What to compute; all if not given")
      ->delimiter(',')
      ->check(CLI::IsMember({"dx", "dgamma", "dbeta"}));
  app.add_option("--params-dtype", options.params_dtype,
                 "Type of dgamma and dbeta: f32, f16 or bf16; that of gamma, or x, if not given")
      ->transform(one_of(kDTypes));
  app.add_option("--eps", options.eps, "Added to the variance or to the mean square");
  app.add_flag("--frozen", options.frozen,
               "BatchNorm: the statistics do not depend on x (eval mode)");
  add_device(app, options.device);
}

void add_check(CLI::App& app, CheckOptions& options) {
  add_device(app, options.device);
  add_ops(app, options.ops);
  app.add_option("--impl", options.implementation,
                 "An implementation that `normgrad info` lists, such as cpu:avx2");
  app.add_flag("--long", options.long_mode,
               "Also the cases with 10^7 rows and with gigabytes of data");
}

#ifdef NORMGRAD_TOOL_INFINIOP
void add_bench(CLI::App& app, BenchOptions& options) {
  add_device(app, options.device);
  CLI::Option* const shapes = app.add_option(
      "--shapes", options.shapes, "Files of shapes; those that come with the tool if not given");
  add_ops(app, options.ops);
  add_dtypes(app, options.dtypes);
  app.add_option("--threads", options.threads,
                 "Numbers of threads, such as 1,2; what OpenMP gives if not given")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app.add_option("--against", options.against, "Libraries to run on the same data: onednn, torch")
      ->delimiter(',');
  app.add_option("--time", options.seconds, "Seconds per case; 0.5, or 0.05 with --quick")
      ->check(CLI::PositiveNumber);
  app.add_flag("--quick", options.quick, "A few tiny cases instead of the files of shapes")
      ->excludes(shapes);
  app.add_option("--json", options.json, "Writes the results to a file, as google-benchmark does");
  app.add_option("--compare", options.compare,
                 "Compares with the results that --json wrote earlier; exit code 3 if a case lost "
                 "more than 10 % of its share of the limit");
  app.add_option("--html", options.html, "Writes the results as one web page");
}
#endif

int run(int argc, char** argv) {
  CLI::App tool("NormGrad: the gradients of LayerNorm, RMSNorm and BatchNorm.", "normgrad");
  tool.set_version_flag("--version", version());
  tool.require_subcommand(0, 1);  // none is caught below: CLI11 would not name a misspelt one
#ifdef NORMGRAD_TOOL_INFINIOP
  CLI::App& demo = *tool.add_subcommand(
      "demo", "The main job: gradients at real sizes through InfiniOP, checked and timed");
  CLI::App& bench = *tool.add_subcommand(
      "bench", "How fast, how near to what memory allows, and beside other libraries");
  BenchOptions bench_options;
  add_bench(bench, bench_options);
#endif
  CLI::App& info =
      *tool.add_subcommand("info", "Devices, instruction sets, and which kernel a shape takes");
  CLI::App& run = *tool.add_subcommand("run", "The gradients of the tensors in a file");
  CLI::App& check =
      *tool.add_subcommand("check", "Runs the case table on a device against the float64 oracle");
  InfoOptions info_options;
  RunOptions run_options;
  CheckOptions check_options;
  add_info(info, info_options);
  add_run(run, run_options);
  add_check(check, check_options);
  try {
    tool.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return tool.exit(error) == 0 ? 0 : 2;  // 0: the help or the version was asked for
  }
#ifdef NORMGRAD_TOOL_INFINIOP
  if (demo.parsed()) return run_demo();
  if (bench.parsed()) return run_bench(bench_options);
#endif
  if (info.parsed()) return run_info(info_options);
  if (run.parsed()) return run_run(run_options);
  if (check.parsed()) return run_check(check_options);
  fmt::print(stderr, "{}", tool.help());
  return 2;
}

}  // namespace
}  // namespace normgrad::tool

int main(int argc, char** argv) try {
  return normgrad::tool::run(argc, argv);
} catch (const std::exception& error) {
  fmt::print(stderr, "normgrad: {}\n", error.what());
  return 1;
}
