// normgrad check: runs the case table on a device and says how large the errors are.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "arguments.hpp"
#include "commands.hpp"
#include "normgrad/info.hpp"
#include "progress.hpp"
#include "reference/cases.hpp"
#include "table.hpp"

namespace normgrad::tool {
namespace {

using reference::Case;
using reference::Report;

// At least this share of the 16-bit outputs of random data is the exact result, rounded.
constexpr double kNearestShare = 0.999;
constexpr size_t kPrintedFailures = 10;

// How many terms an element of dgamma sums up.
int64_t summed_rows(const Case& each) {
  int64_t rows = 1;
  for (size_t i = 0; i < each.shape.size(); ++i) {
    const bool is_parameter_axis = each.op == Op::kBatchNorm ? i == 1 : i + 1 == each.shape.size();
    if (!is_parameter_axis) rows *= each.shape[i];
  }
  return rows;
}

// The same random data at a growing number of rows: K must not grow with it.
std::vector<Case> growing_cases(Op op, bool long_mode) {
  std::vector<Case> cases;
  for (const int64_t rows : {1'000, 100'000, 10'000'000}) {
    if (rows > 1'000'000 && !long_mode) continue;
    for (const DType dtype : kAllDTypes) {
      Case each;
      each.op = op;
      each.shape = {rows, 8};
      if (op == Op::kBatchNorm) {
        each.shape = {rows / 10, 3, 10};
        each.statistics = Statistics::kMeanVariance;
      }
      each.data = each.gamma = dtype;
      each.name =
          fmt::format("{} {} {} growing", name_of(op), format_shape(each.shape), name_of(dtype));
      cases.push_back(each);
    }
  }
  return cases;
}

// The largest K, on random data and on any.
struct Worst {
  int64_t cases = 0, failures = 0;
  double random = 0, any = 0;

  void add(const Case& each, bool ok, double k) {
    ++cases;
    failures += !ok;
    any = std::max(any, k);
    if (each.random) random = std::max(random, k);
  }
};

struct Rounding {
  int64_t elements = 0, nearest = 0;
  double share() const { return static_cast<double>(nearest) / static_cast<double>(elements); }
};

class Summary {
 public:
  void add(const Case& each, const Report& report) {
    if (!report.ok) failures_.push_back(each.name + ": " + report.why);
    ++cases_;
    for (const Report::Output& output : report.outputs) {
      worst_[{each.op, output.name, output.dtype}].add(each, report.ok, output.k);
    }
    if (!each.random) return;
    if (!each.forward && each.step == reference::Step::kNone) {
      auto& [dx, params] = by_rows_[{each.op, summed_rows(each)}];
      if (each.want_dx) dx.add(each, report.ok, report.k("dx"));
      if (each.want_dgamma || each.want_dbeta) {
        params.add(each, report.ok, std::max(report.k("dgamma"), report.k("dbeta")));
      }
    }
    const DType dtype16 = each.data != DType::kF32 ? each.data : each.params;
    Rounding& rounding = rounding_[{each.op, dtype16}];
    rounding.elements += report.elements16;
    rounding.nearest += report.nearest16;
  }

  size_t failures() const { return failures_.size(); }

  // True if everything is as promised.
  bool print() const;

 private:
  int64_t cases_ = 0;
  std::vector<std::string> failures_;
  std::map<std::tuple<Op, std::string, DType>, Worst> worst_;
  std::map<std::tuple<Op, int64_t>, std::pair<Worst, Worst>> by_rows_;  // dx; dgamma, dbeta
  std::map<std::tuple<Op, DType>, Rounding> rounding_;
};

bool Summary::print() const {
  fmt::print("K: the error of an output beyond its own rounding, in fp32 roundings\n\n");
  Table worst({"operator", "output", "dtype", "cases", "failures", "K, random data", "K, any data"},
              3);
  for (const auto& [key, each] : worst_) {
    const auto& [op, output, dtype] = key;
    worst.add({name_of(op), output, name_of(dtype), fmt::format("{}", each.cases),
               fmt::format("{}", each.failures), fmt::format("{:.2f}", each.random),
               fmt::format("{:.2f}", each.any)});
  }
  worst.print();

  fmt::print("\nK by rows, random data\n");
  Table by_rows({"operator", "rows", "cases", "K of dx", "K of dgamma, dbeta"}, 1);
  for (const Op op : kAllOps) {
    for (const int64_t rows : {1'000, 100'000, 10'000'000}) {
      const auto found = by_rows_.find({op, rows});
      if (found == by_rows_.end()) continue;
      const auto& [dx, params] = found->second;
      by_rows.add({name_of(op), fmt::format("{}", rows), fmt::format("{}", dx.cases),
                   fmt::format("{:.2f}", dx.random), fmt::format("{:.2f}", params.random)});
    }
  }
  by_rows.print();

  fmt::print("\n16-bit outputs, random data\n");
  bool rounded = true;
  Table rounding({"operator", "dtype", "elements", "correctly rounded"}, 2);
  for (const auto& [key, each] : rounding_) {
    if (each.elements == 0) continue;
    rounded = rounded && each.share() >= kNearestShare;
    rounding.add({name_of(std::get<Op>(key)), name_of(std::get<DType>(key)),
                  fmt::format("{}", each.elements), fmt::format("{:.3f} %", 100 * each.share())});
  }
  rounding.print();
  fmt::print("\n");

  for (size_t i = 0; i < std::min(failures_.size(), kPrintedFailures); ++i) {
    fmt::print("FAILED {}\n", failures_[i]);
  }
  if (failures_.size() > kPrintedFailures) {
    fmt::print("and {} more\n", failures_.size() - kPrintedFailures);
  }
  if (!rounded) fmt::print("FAILED less than {} % correctly rounded\n", 100 * kNearestShare);
  fmt::print("{} cases, {} failures\n", cases_, failures_.size());
  return failures_.empty() && rounded;
}

Report run_case(const Case& each, Device device) {
  const auto instance = reference::make_instance(each);
  const Status status = reference::run_on(*instance, device);
  if (status.ok()) return instance->check();
  Report report;
  report.ok = false;
  report.why = status.message();
  return report;
}

// The implementation asked for, or any of the device, must be there: one sentence now instead of a
// failure for every case.
void require_implementation(const CheckOptions& options) {
  std::string available;
  for (const Implementation& each : implementations()) {
    if (each.device != options.device) continue;
    if (options.implementation.empty() || options.implementation == each.name) return;
    available += (available.empty() ? "" : ", ") + each.name;
  }
  if (available.empty()) throw std::runtime_error("--device: it is not in this build");
  throw std::runtime_error(
      fmt::format("--impl: expected one of {}; got '{}'", available, options.implementation));
}

}  // namespace

int run_check(const CheckOptions& options) {
  require_implementation(options);
  if (!options.implementation.empty()) {
    setenv("NORMGRAD_IMPL", options.implementation.c_str(), 1);
  }
  std::vector<Case> table;
  for (const Op op : options.ops) {
    for (const auto& part : {reference::forward_cases(op), reference::cases(op, options.long_mode),
                             reference::extended_cases(op), reference::step_cases(op),
                             growing_cases(op, options.long_mode)}) {
      table.insert(table.end(), part.begin(), part.end());
    }
  }
  Summary summary;
  {
    ProgressBar bar(table.size());
    for (const Case& each : table) {
      bar.step(fmt::format("{} failed, {}", summary.failures(), each.name));
      summary.add(each, run_case(each, options.device));
    }
  }
  return summary.print() ? 0 : 1;
}

}  // namespace normgrad::tool
