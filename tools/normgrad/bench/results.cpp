#include "bench/results.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "machine.hpp"
#include "normgrad/info.hpp"

namespace normgrad::tool {
namespace {

using Json = nlohmann::ordered_json;

#ifdef NDEBUG
constexpr const char* kBuildType = "release";
#else
constexpr const char* kBuildType = "debug";
#endif

std::string implementation_in_use(Device device) {
  const char* const forced = std::getenv("NORMGRAD_IMPL");
  for (const Implementation& each : implementations()) {
    if (each.device == device) return forced ? forced : each.name;
  }
  return "";
}

Json context_of(const BenchResults& results) {
  Json context = {
      {"date", fmt::format("{:%FT%T+00:00}", fmt::gmtime(std::time(nullptr)))},
      {"host_name", host_name()},
      {"executable", "normgrad"},
      {"num_cpus", std::thread::hardware_concurrency()},
      {"mhz_per_cpu", cpu_megahertz()},
      {"cpu_scaling_enabled", frequency_scaling()},
      {"caches", Json::array()},
      {"load_avg", load()},
      {"library_build_type", kBuildType},
      {"cpu_model", cpu_model()},
      {"normgrad_version", version()},
      {"normgrad_implementation",
       implementation_in_use(results.gpu.empty() ? Device::kCpu : Device::kCuda)},
      {"peers", results.peers},
  };
  if (!results.gpu.empty()) context["gpu"] = results.gpu;
  for (const Cache& each : caches()) {
    context["caches"].push_back({{"type", each.type},
                                 {"level", each.level},
                                 {"size", each.bytes},
                                 {"num_sharing", each.sharing}});
  }
  for (const BenchResult& each : results.cases) {
    if (!each.wrong.empty())
      context["wrong"].push_back(each.description.name() + ": " + each.wrong);
  }
  return context;
}

Json entry_of(const BenchResult& result, const BenchEntry& entry, size_t family) {
  constexpr double kMicro = 1e6;
  const BenchCase& each = result.description;
  const std::string name = each.name() + "/" + entry.implementation;
  const Spread& seconds = entry.timing.seconds;
  return {
      {"name", name},
      {"family_index", family},
      {"per_family_instance_index", 0},
      {"run_name", name},
      {"run_type", "iteration"},
      {"repetitions", 1},
      {"repetition_index", 0},
      {"threads", 1},
      {"iterations", entry.timing.runs},
      {"real_time", seconds.median * kMicro},
      {"cpu_time", seconds.median * kMicro},
      {"time_unit", "us"},
      {"bytes_per_second", result.bytes_per_second(entry)},
      {"p10", seconds.p10 * kMicro},
      {"p90", seconds.p90 * kMicro},
      {"implementation", entry.implementation},
      {"operator", name_of(each.shape.op)},
      {"shape", format_shape(each.shape.extents)},
      {"layout", name_of(each.shape.layout)},
      {"dtype", name_of(each.dtype)},
      {"omp_threads", each.threads},
      {"minimal_bytes", result.minimal_bytes},
      {"limit_bytes_per_second", result.limit()},
      {"limit_plain_bytes_per_second", result.limit_plain},
      {"limit_nt_bytes_per_second", result.limit_nt},
      {"share_of_limit", result.share_of_limit(entry)},
  };
}

}  // namespace

Json to_json(const BenchResults& results) {
  Json document = {{"context", context_of(results)}, {"benchmarks", Json::array()}};
  Json& benchmarks = document["benchmarks"];
  for (const BenchResult& result : results.cases) {
    for (const BenchEntry& entry : result.entries) {
      benchmarks.push_back(entry_of(result, entry, benchmarks.size()));
    }
  }
  return document;
}

nlohmann::json read_results(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(fmt::format("{}: cannot open it", path));
  nlohmann::json document = nlohmann::json::parse(file, nullptr, false);
  if (!document.is_object() || !document.contains("context") || !document.contains("benchmarks") ||
      !document["benchmarks"].is_array()) {
    throw std::runtime_error(
        fmt::format("{}: expected a file that `normgrad bench --json` wrote", path));
  }
  return document;
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(fmt::format("{}: cannot write it", path));
}

}  // namespace normgrad::tool
