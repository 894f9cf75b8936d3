// What `normgrad bench` measured, and the document that --json writes: google-benchmark's layout,
// with the figures of a case as counters beside its times.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/measure.hpp"
#include "bench/shapes.hpp"

namespace normgrad::tool {

// One implementation on a case: this library, which comes first, or a peer.
struct BenchEntry {
  std::string implementation;
  Timing timing;
};

struct BenchResult {
  BenchCase description;
  int64_t minimal_bytes = 0;
  double limit_plain = 0, limit_nt = 0;  // bytes per second that memory allows, by kind of store
  std::vector<BenchEntry> entries;
  std::string wrong;  // what the oracle has against the gradients; such a case is not timed

  double limit() const { return limit_plain > limit_nt ? limit_plain : limit_nt; }
  double bytes_per_second(const BenchEntry& entry) const {
    return static_cast<double>(minimal_bytes) / entry.timing.seconds.median;
  }
  double share_of_limit(const BenchEntry& entry) const { return bytes_per_second(entry) / limit(); }
};

struct BenchResults {
  std::vector<BenchResult> cases;
  std::map<std::string, std::string> peers;  // name and version
  std::map<std::string, int> absences;       // why a peer did not compete, and in how many cases
  std::string gpu = {};  // its name, if the cases ran on one; their limit is then a copy there
};

nlohmann::ordered_json to_json(const BenchResults& results);

// Throws std::runtime_error if it is not such a document.
nlohmann::json read_results(const std::string& path);
void write_text(const std::string& path, const std::string& text);

}  // namespace normgrad::tool
