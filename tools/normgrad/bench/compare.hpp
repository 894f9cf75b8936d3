// Two results of `normgrad bench`, case by case: what became slower?
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace normgrad::tool {

// This library on a case that both results have.
struct Change {
  std::string name;
  double old_microseconds = 0, new_microseconds = 0;
  // New share of the limit over the old one, so that a slow day of the machine cancels; of two
  // results without limits, the old time over the new one.
  double ratio = 0;
  bool regressed = false;
};

// Regressed: more than 10 % of the share is lost and the times from p10 to p90 do not overlap.
struct Comparison {
  std::vector<Change> changes;
  size_t only_old = 0, only_new = 0;
};
Comparison compare(const nlohmann::json& old_results, const nlohmann::json& new_results);

}  // namespace normgrad::tool
