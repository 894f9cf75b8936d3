// Timing of several contestants on the same data: in rounds, each of them a while, so that what
// happens to the machine meanwhile happens to all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace normgrad::tool {

// Quantiles of samples, in their unit; between two samples it is interpolated.
struct Spread {
  double p10 = 0, median = 0, p90 = 0;
};
Spread spread_of(std::vector<double> samples);

struct Contestant {
  std::string name;
  // After one call that is not timed, `samples` times `calls` calls in a row: the seconds of a
  // call, for each sample.
  std::function<std::vector<double>(int64_t samples, int64_t calls)> burst;
};

// One that runs in this process: run(calls) makes that many calls.
Contestant local(std::string name, std::function<void(int64_t calls)> run);

struct Timing {
  Spread seconds;
  int64_t runs = 0;  // that were timed
};

// At least 3 rounds, or 5 if no contestant takes 50 ms, and more until `seconds` are over. In a
// round each contestant has about 20 ms, less if `seconds` are short, but at least one sample.
// A sample is one call, or as many as take 20 us: reading the clock takes about 50 ns.
std::vector<Timing> measure(const std::vector<Contestant>& contestants, double seconds);

}  // namespace normgrad::tool
