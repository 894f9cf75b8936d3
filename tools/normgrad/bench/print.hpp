// The results of `normgrad bench` as text on standard output.
#pragma once

#include "bench/compare.hpp"
#include "bench/results.hpp"

namespace normgrad::tool {

// A table per operator, and below it the geometric means of what the report is about.
void print_results(const BenchResults& results);

void print_comparison(const Comparison& comparison);

}  // namespace normgrad::tool
