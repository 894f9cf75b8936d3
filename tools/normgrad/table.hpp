// A table of text on standard output: columns as wide as their widest cell.
#pragma once

#include <string>
#include <vector>

namespace normgrad::tool {

class Table {
 public:
  // The first `left` columns are aligned to the left, the others to the right.
  Table(std::vector<std::string> header, size_t left) : rows_{std::move(header)}, left_(left) {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() == 1; }
  void print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  size_t left_;
};

}  // namespace normgrad::tool
