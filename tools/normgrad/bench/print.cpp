#include "bench/print.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "machine.hpp"
#include "normgrad/info.hpp"
#include "table.hpp"

namespace normgrad::tool {
namespace {

// Smaller cases fit a core's own cache, where the limit is that of the cache without the cost of a
// call: a share of it says nothing about how memory is used.
constexpr int64_t kBytesInMeans = 4 << 20;

std::string microseconds_text(double value) {
  return value < 1000 ? fmt::format("{:.2f} us", value) : fmt::format("{:.3f} ms", value / 1000);
}

std::string spread_text(const Spread& seconds) {
  const bool micro = seconds.median < 1e-3;
  const double unit = micro ? 1e-6 : 1e-3;
  return fmt::format("{:.{}f}-{:.{}f}", seconds.p10 / unit, micro ? 2 : 3, seconds.p90 / unit,
                     micro ? 2 : 3);
}

const BenchEntry* find(const BenchResult& result, const std::string& implementation) {
  for (const BenchEntry& entry : result.entries) {
    if (entry.implementation == implementation) return &entry;
  }
  return nullptr;
}

// How many times faster than the fastest peer; 0 without one.
double speed_up(const BenchResult& result) {
  double fastest = std::numeric_limits<double>::infinity();
  for (size_t i = 1; i < result.entries.size(); ++i) {
    fastest = std::min(fastest, result.entries[i].timing.seconds.median);
  }
  return std::isinf(fastest) ? 0 : fastest / result.entries[0].timing.seconds.median;
}

class GeometricMean {
 public:
  void add(double value) {
    logarithms_ += std::log(value);
    ++count_;
  }
  bool empty() const { return count_ == 0; }
  double value() const { return std::exp(logarithms_ / count_); }

 private:
  double logarithms_ = 0;
  int count_ = 0;
};

std::vector<std::string> row_of(const BenchResult& result, const BenchResults& all) {
  const BenchCase& each = result.description;
  std::vector<std::string> row = {format_shape(each.shape.extents), name_of(each.shape.layout),
                                  name_of(each.dtype), fmt::format("{}", each.threads)};
  if (!result.wrong.empty()) {
    row.push_back("WRONG");
    row.resize(9 + (all.peers.empty() ? 0 : all.peers.size() + 1), "-");
    return row;
  }
  const BenchEntry& ours = result.entries[0];
  row.push_back(microseconds_text(ours.timing.seconds.median * 1e6));
  row.push_back(spread_text(ours.timing.seconds));
  row.push_back(fmt::format("{:.1f}", result.bytes_per_second(ours) / 1e9));
  row.push_back(fmt::format("{:.1f}", result.limit() / 1e9));
  row.push_back(fmt::format("{:.0f} %", 100 * result.share_of_limit(ours)));
  if (all.peers.empty()) return row;
  for (const auto& [name, number] : all.peers) {
    const BenchEntry* const entry = find(result, name);
    row.push_back(entry ? microseconds_text(entry->timing.seconds.median * 1e6) : "-");
  }
  const double factor = speed_up(result);
  row.push_back(factor > 0 ? fmt::format("{:.2f}x", factor) : "-");
  return row;
}

void print_means(const BenchResults& all, Op op) {
  for (const DType dtype : kAllDTypes) {
    GeometricMean shares, factors;
    for (const BenchResult& result : all.cases) {
      const BenchCase& each = result.description;
      if (each.shape.op != op || each.dtype != dtype || !result.wrong.empty()) continue;
      if (result.minimal_bytes >= kBytesInMeans)
        shares.add(result.share_of_limit(result.entries[0]));
      if (const double factor = speed_up(result); factor > 0) factors.add(factor);
    }
    std::string line;
    if (!shares.empty()) line += fmt::format("{:.0f} % of the limit", 100 * shares.value());
    if (!factors.empty()) {
      line += fmt::format("{}{:.2f} times as fast as the fastest peer", line.empty() ? "" : ", ",
                          factors.value());
    }
    if (!line.empty()) fmt::print("geometric mean, {}: {}\n", name_of(dtype), line);
  }
}

void print_operator(const BenchResults& all, Op op) {
  std::vector<std::string> header = {"shape",   "layout", "dtype",      "threads", "time",
                                     "p10-p90", "GB/s",   "limit GB/s", "share"};
  for (const auto& [name, number] : all.peers) header.push_back(name);
  if (!all.peers.empty()) header.emplace_back("speed-up");
  Table table(header, 3);
  for (const BenchResult& result : all.cases) {
    if (result.description.shape.op == op) table.add(row_of(result, all));
  }
  if (table.empty()) return;
  fmt::print("{}\n", name_of(op));
  table.print();
  print_means(all, op);
  fmt::print("\n");
}

}  // namespace

void print_results(const BenchResults& results) {
  fmt::print("NormGrad {} on {}", version(), results.gpu.empty() ? cpu_model() : results.gpu);
  const char* before = ", beside";
  for (const auto& [name, number] : results.peers) {
    fmt::print("{} {} {}", before, name, number);
    before = " and";
  }
  fmt::print("\n\n");
  for (const Op op : kAllOps) print_operator(results, op);
  if (!results.gpu.empty()) {
    fmt::print(
        "time   median of 31 replays of a graph with one call, each with an empty L2 cache\n"
        "limit  a copy on the device of as many bytes, timed alike; GB/s counts every operand "
        "once\n");
    return;
  }
  fmt::print(
      "time   median of a call; GB/s counts every operand once\n"
      "limit  two reads and one write of the same arrays by the same threads, the better of plain\n"
      "       and non-temporal stores; geometric means of the share: cases of 4 MiB and more\n");
  for (const auto& [why, cases] : results.absences)
    fmt::print("-      {} (cases: {})\n", why, cases);
}

void print_comparison(const Comparison& comparison) {
  Table table({"case", "old", "new", "share, new / old", ""}, 1);
  size_t regressed = 0;
  for (const Change& each : comparison.changes) {
    regressed += each.regressed;
    table.add({each.name, microseconds_text(each.old_microseconds),
               microseconds_text(each.new_microseconds), fmt::format("{:.2f}", each.ratio),
               each.regressed ? "REGRESSED" : ""});
  }
  fmt::print("\n");
  if (!table.empty()) table.print();
  fmt::print("\n{} cases compared, {} regressed; {} only in the old results, {} only in the new\n",
             comparison.changes.size(), regressed, comparison.only_old, comparison.only_new);
}

}  // namespace normgrad::tool
