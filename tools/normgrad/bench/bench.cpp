// normgrad bench: how fast the gradients are, how near to what memory allows, and beside others.
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <utility>

#include "bench/compare.hpp"
#include "bench/gpu.hpp"
#include "bench/measure.hpp"
#include "bench/print.hpp"
#include "bench/report.hpp"
#include "bench/results.hpp"
#include "bench/rivals.hpp"
#include "bench/shapes.hpp"
#include "bench/trial.hpp"
#include "commands.hpp"
#include "limit.hpp"
#include "progress.hpp"

namespace normgrad::tool {
namespace {

constexpr double kSeconds = 0.5, kQuickSeconds = 0.05;  // per case
constexpr int kWrong = 1, kRegressed = 3;

std::vector<BenchCase> cases_of(const BenchOptions& options) {
  std::vector<BenchShape> shapes;
  if (options.quick) {
    shapes = quick_shapes();
  } else {
    for (const std::string& file :
         options.shapes.empty() ? shape_files(options.device) : options.shapes) {
      const std::vector<BenchShape> more = read_shapes(file);
      shapes.insert(shapes.end(), more.begin(), more.end());
    }
  }
  std::vector<int> threads = options.threads;
  if (threads.empty()) threads.push_back(omp_get_max_threads());
  std::vector<BenchCase> cases;
  for (const int count : threads) {
    for (const BenchShape& shape : shapes) {
      if (std::find(options.ops.begin(), options.ops.end(), shape.op) == options.ops.end())
        continue;
      for (const DType dtype : options.dtypes) cases.push_back({shape, dtype, count});
    }
  }
  if (cases.empty()) throw std::runtime_error("--op: the shape files have no such operator");
  return cases;
}

// How often the limit moves the arrays in a call: 16 MiB, so that starting threads (1 us of 100)
// does not count.
int64_t sweeps_of(const Trial& trial) {
  return std::max<int64_t>(1, (int64_t{16} << 20) / (3 * trial.data_bytes()));
}

// The limit and this library, in this order.
std::vector<Contestant> own_contestants(const Trial& trial) {
  const auto limit = [&trial](bench::Stores stores) {
    return [&trial, stores, sweeps = sweeps_of(trial)](int64_t calls) {
      const Buffers& data = trial.buffers();
      bench::add_arrays(data.x, data.dy, data.dx, trial.data_bytes(), stores, calls * sweeps);
    };
  };
  return {local("limit, plain", limit(bench::Stores::kPlain)),
          local("limit, non-temporal", limit(bench::Stores::kNonTemporal)),
          local("normgrad", [&trial](int64_t calls) {
            for (int64_t i = 0; i < calls; ++i) trial.run();
          })};
}

BenchResult run_case(const BenchCase& description, double seconds, Rivals& rivals) {
  BenchResult result;
  result.description = description;
  const Trial trial(description);
  result.minimal_bytes = trial.minimal_bytes();
  result.wrong = trial.verify();
  if (!result.wrong.empty()) return result;

  std::vector<Contestant> contestants = own_contestants(trial);
  const size_t limits = contestants.size() - 1;
  for (Contestant& each : rivals.enter(description, trial)) contestants.push_back(std::move(each));
  const std::vector<Timing> timings = measure(contestants, seconds);
  rivals.leave();

  const double moved = 3 * static_cast<double>(trial.data_bytes() * sweeps_of(trial));
  result.limit_plain = moved / timings[0].seconds.median;
  result.limit_nt = moved / timings[1].seconds.median;
  for (size_t i = limits; i < timings.size(); ++i) {
    result.entries.push_back({contestants[i].name, timings[i]});
  }
  return result;
}

BenchResults run_cases(const BenchOptions& options, const std::vector<BenchCase>& cases) {
  const double seconds = options.seconds.value_or(options.quick ? kQuickSeconds : kSeconds);
  BenchResults results;
  Rivals rivals(options.against);
  int threads = 0;
  ProgressBar bar(cases.size());
  for (const BenchCase& each : cases) {
    bar.step(each.name());
    if (each.threads != threads) {
      threads = each.threads;
      omp_set_num_threads(threads);
      rivals.start(threads);
    }
    results.cases.push_back(run_case(each, seconds, rivals));
  }
  results.peers = rivals.versions();
  results.absences = rivals.absences();
  return results;
}

BenchResults run_on_gpu(const std::vector<BenchCase>& cases) {
  Gpu gpu;
  BenchResults results;
  results.gpu = gpu.name();
  ProgressBar bar(cases.size());
  for (const BenchCase& each : cases) {
    bar.step(each.name());
    results.cases.push_back(gpu.run(each));
  }
  return results;
}

// Before minutes are spent on results that cannot be kept. What is in the file stays until then.
void require_writable(const std::string& path) {
  if (!path.empty() && !std::ofstream(path, std::ios::app)) {
    throw std::runtime_error(fmt::format("{}: cannot write it", path));
  }
}

}  // namespace

int run_bench(const BenchOptions& options) {
  if (options.device == Device::kCuda && !options.against.empty()) {
    throw std::runtime_error("--against: expected --device cpu; the peers run there only");
  }
  const std::vector<BenchCase> cases = cases_of(options);
  std::optional<nlohmann::json> old_results;
  if (!options.compare.empty()) old_results = read_results(options.compare);
  require_writable(options.json);
  require_writable(options.html);

  const BenchResults results =
      options.device == Device::kCuda ? run_on_gpu(cases) : run_cases(options, cases);
  print_results(results);
  const nlohmann::ordered_json document = to_json(results);
  if (!options.json.empty()) write_text(options.json, document.dump(1) + "\n");
  if (!options.html.empty()) write_text(options.html, html_report(nlohmann::json(document)));

  int exit_code = 0;
  if (old_results) {
    const Comparison comparison = compare(*old_results, nlohmann::json(document));
    print_comparison(comparison);
    for (const Change& each : comparison.changes) {
      if (each.regressed) exit_code = kRegressed;
    }
  }
  for (const BenchResult& each : results.cases) {
    if (each.wrong.empty()) continue;
    fmt::print(stderr, "normgrad: {}: wrong gradients, not timed: {}\n", each.description.name(),
               each.wrong);
    exit_code = kWrong;
  }
  return exit_code;
}

}  // namespace normgrad::tool
