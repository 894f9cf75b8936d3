#include "bench/measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace normgrad::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kBurst = 20e-3, kSample = 20e-6, kSlow = 50e-3;
constexpr int kRounds = 5, kSlowRounds = 3;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double quantile(const std::vector<double>& sorted, double share) {
  const double position = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

}  // namespace

Spread spread_of(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  return {quantile(samples, 0.1), quantile(samples, 0.5), quantile(samples, 0.9)};
}

Contestant local(std::string name, std::function<void(int64_t calls)> run) {
  const auto burst = [run = std::move(run)](int64_t samples, int64_t calls) {
    run(1);
    std::vector<double> seconds(static_cast<size_t>(samples));
    for (double& each : seconds) {
      const Clock::time_point start = Clock::now();
      run(calls);
      each = seconds_since(start) / static_cast<double>(calls);
    }
    return seconds;
  };
  return {std::move(name), burst};
}

std::vector<Timing> measure(const std::vector<Contestant>& contestants, double seconds) {
  const Clock::time_point start = Clock::now();
  const double share = seconds / static_cast<double>(kRounds * contestants.size());
  struct Plan {
    int64_t samples, calls;
    std::vector<double> seconds;
  };
  std::vector<Plan> plans;
  int least = kRounds;
  for (const Contestant& each : contestants) {
    // The shortest of a few: the first call of all may fault its pages in or start threads.
    const std::vector<double> trial = each.burst(3, 1);
    const double call = std::max(*std::min_element(trial.begin(), trial.end()), 1e-9);
    const int64_t calls = std::max<int64_t>(1, std::llround(kSample / call));
    const double sample = call * static_cast<double>(calls);
    plans.push_back(
        {std::max<int64_t>(1, std::llround(std::min(kBurst, share) / sample)), calls, {}});
    if (call > kSlow) least = kSlowRounds;
  }
  for (int round = 0; round < least || seconds_since(start) < seconds; ++round) {
    for (size_t i = 0; i < contestants.size(); ++i) {
      const std::vector<double> more = contestants[i].burst(plans[i].samples, plans[i].calls);
      plans[i].seconds.insert(plans[i].seconds.end(), more.begin(), more.end());
    }
  }
  std::vector<Timing> timings;
  timings.reserve(plans.size());
  for (const Plan& plan : plans) {
    timings.push_back(
        {spread_of(plan.seconds), static_cast<int64_t>(plan.seconds.size()) * plan.calls});
  }
  return timings;
}

}  // namespace normgrad::tool
