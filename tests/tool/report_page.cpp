// The results of `normgrad bench --json` on standard input, its report on standard output.
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/report.hpp"

int main() {
  std::cout << normgrad::tool::html_report(nlohmann::json::parse(std::cin));
  return std::cout.flush() ? 0 : 1;
}
