#include "bench/compare.hpp"

#include <map>

namespace normgrad::tool {
namespace {

using Json = nlohmann::json;

constexpr double kLeastRatio = 0.9;

bool is_ours(const Json& entry) { return entry.value("implementation", "") == "normgrad"; }

Change change_of(const Json& before, const Json& now) {
  Change change;
  change.name = now.at("name");
  change.old_microseconds = before.at("real_time");
  change.new_microseconds = now.at("real_time");
  const double old_share = before.value("share_of_limit", 0.0);
  const double new_share = now.value("share_of_limit", 0.0);
  const bool shares = old_share > 0 && new_share > 0;
  change.ratio = shares ? new_share / old_share : change.old_microseconds / change.new_microseconds;
  const double old_p90 = before.value("p90", change.old_microseconds);
  const double new_p10 = now.value("p10", change.new_microseconds);
  change.regressed = change.ratio < kLeastRatio && new_p10 > old_p90;
  return change;
}

}  // namespace

Comparison compare(const Json& old_results, const Json& new_results) {
  std::map<std::string, Json> old_entries;
  for (const Json& entry : old_results.at("benchmarks")) {
    if (is_ours(entry)) old_entries[entry.at("name")] = entry;
  }
  Comparison comparison;
  for (const Json& entry : new_results.at("benchmarks")) {
    if (!is_ours(entry)) continue;
    const auto found = old_entries.find(entry.at("name"));
    if (found == old_entries.end()) {
      ++comparison.only_new;
      continue;
    }
    comparison.changes.push_back(change_of(found->second, entry));
    old_entries.erase(found);
  }
  comparison.only_old = old_entries.size();
  return comparison;
}

}  // namespace normgrad::tool
