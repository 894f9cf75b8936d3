#include "table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace normgrad::tool {

void Table::print() const {
  std::vector<size_t> widths(rows_[0].size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const char* const gap = i == 0 ? "" : "  ";
      line += i < left_ ? fmt::format("{}{:<{}}", gap, row[i], widths[i])
                        : fmt::format("{}{:>{}}", gap, row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
  }
}

}  // namespace normgrad::tool
