#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace normgrad::tool {

ProgressBar::ProgressBar(size_t total)
    : total_(total), shown_(isatty(STDERR_FILENO) && total > 0) {}

ProgressBar::~ProgressBar() {
  if (shown_) fmt::print(stderr, "\r\033[K");
}

void ProgressBar::step(const std::string& what) {
  if (!shown_) return;
  constexpr size_t kWidth = 20, kText = 45;  // with the numbers less than 80 columns
  const std::string done(kWidth * done_ / total_, '#');
  fmt::print(stderr, "\r\033[K[{:<{}}] {}/{} {:.{}}", done, kWidth, done_, total_, what, kText);
  std::fflush(stderr);
  ++done_;
}

}  // namespace normgrad::tool
