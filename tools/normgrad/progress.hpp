// A progress bar on standard error: one line on a terminal, nothing in a file.
#pragma once

#include <cstddef>
#include <string>

namespace normgrad::tool {

class ProgressBar {
 public:
  explicit ProgressBar(size_t total);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Before each of the steps: what it is.
  void step(const std::string& what);

 private:
  size_t total_, done_ = 0;
  bool shown_;
};

}  // namespace normgrad::tool
