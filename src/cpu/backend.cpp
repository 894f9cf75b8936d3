// The CPU's backends: one per instruction set, best first.
#include "ops/backend.hpp"

#include <array>
#include <vector>

#include "cpu/parallel.hpp"
#include "cpu/targets.hpp"
#include "hwy/highway.h"

namespace normgrad::cpu {
namespace {

// A backend's functions carry no state, so each instruction set has functions of its own.
template <int64_t kTarget>
Status choose_rows(const RowsProblem& problem, Kernel<RowsProblem>& kernel) {
  kernel = {"rows", rows_workspace(problem), rows_launch(kTarget)};
  return {};
}

template <int64_t kTarget>
Status choose_rows_forward(const RowsForwardProblem& problem, Kernel<RowsForwardProblem>& kernel) {
  kernel = {"rows", rows_forward_workspace(problem), rows_forward_launch(kTarget)};
  return {};
}

// Channels that lie side by side without a length to walk along are columns, too.
template <class Problem>
bool are_columns(const Problem& problem) {
  const bool flat = problem.length <= 1 && problem.channels > 1;
  return !problem.contiguous_along_length() || (flat && problem.contiguous_along_channels());
}

template <int64_t kTarget>
Status choose_channels(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel) {
  if (are_columns(problem)) {
    kernel = {"channels_last", channels_last_workspace(problem), channels_last_launch(kTarget)};
  } else {
    kernel = {"planes", planes_workspace(problem), planes_launch(kTarget)};
  }
  return {};
}

template <int64_t kTarget>
Status choose_channels_forward(const ChannelsForwardProblem& problem,
                               Kernel<ChannelsForwardProblem>& kernel) {
  if (are_columns(problem)) {
    kernel = {"channels_last", channels_last_forward_workspace(problem),
              channels_last_forward_launch(kTarget)};
  } else {
    kernel = {"planes", planes_forward_workspace(problem), planes_forward_launch(kTarget)};
  }
  return {};
}

template <int64_t kTarget>
constexpr Backend make_backend(const char* name) {
  return {name,
          Device::kCpu,
          &choose_rows_forward<kTarget>,
          &choose_channels_forward<kTarget>,
          &choose_rows<kTarget>,
          &choose_channels<kTarget>,
          &copy};
}

constexpr struct {
  int64_t target;
  Backend backend;
} kCompiled[] = {
#define NORMGRAD_TARGET(target, name) \
  { target, make_backend<target>(name) }
#if HWY_ARCH_X86
    NORMGRAD_TARGET(HWY_AVX3, "cpu:avx3"),
    NORMGRAD_TARGET(HWY_AVX2, "cpu:avx2"),
#elif HWY_ARCH_ARM
    NORMGRAD_TARGET(HWY_NEON, "cpu:neon"),
#endif
    NORMGRAD_TARGET(HWY_STATIC_TARGET, "cpu:baseline"),
#undef NORMGRAD_TARGET
};

}  // namespace

std::span<const Backend> backends() {
  static const std::vector<Backend> list = [] {
    watch_forks();
    std::vector<Backend> usable;
    // The baseline always works; SupportedTargets does not name it on every platform, but also
    // names targets that were left out (targets.hpp).
    const int64_t supported = (hwy::SupportedTargets() & HWY_TARGETS) | HWY_STATIC_TARGET;
    for (const auto& compiled : kCompiled) {
      if ((compiled.target & supported) != 0) usable.push_back(compiled.backend);
    }
    return usable;
  }();
  return list;
}

}  // namespace normgrad::cpu
