// Which instruction sets the kernels are compiled for: all that Highway knows on this architecture,
// less SSSE3 and SSE4 (CPUs without AVX2, older than 2013, take the baseline) and SVE (its vectors
// cannot be members). Sanitizers, which look at what is around the kernels, take AVX2: AVX-512 is
// half of what there is to compile.
#pragma once

#include <cstdint>

#if defined(NORMGRAD_SANITIZE_ADDRESS) || defined(NORMGRAD_SANITIZE_THREAD)
#define NORMGRAD_LEFT_OUT HWY_AVX3
#else
#define NORMGRAD_LEFT_OUT 0
#endif
#define HWY_DISABLED_TARGETS \
  (NORMGRAD_LEFT_OUT | HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include "hwy/targets.h"
#include "ops/backend.hpp"

namespace normgrad::cpu {

// The launch functions compiled for one target (a bit of hwy::SupportedTargets()).
template <class Problem>
using Launch = Status (*)(const Problem&, const Buffers&, void* workspace, void* stream);
Launch<RowsForwardProblem> rows_forward_launch(int64_t target);
Launch<ChannelsForwardProblem> planes_forward_launch(int64_t target);
Launch<ChannelsForwardProblem> channels_last_forward_launch(int64_t target);
Launch<RowsProblem> rows_launch(int64_t target);
Launch<ChannelsProblem> planes_launch(int64_t target);
Launch<ChannelsProblem> channels_last_launch(int64_t target);

// Without vectors: it waits for memory.
Status copy(const CopyProblem& problem, const void* from, void* to, void* stream);

// Bytes of workspace they need.
size_t rows_forward_workspace(const RowsForwardProblem& problem);
size_t planes_forward_workspace(const ChannelsForwardProblem& problem);
size_t channels_last_forward_workspace(const ChannelsForwardProblem& problem);
size_t rows_workspace(const RowsProblem& problem);
size_t planes_workspace(const ChannelsProblem& problem);
size_t channels_last_workspace(const ChannelsProblem& problem);

// The position of a target's function in a table that HWY_EXPORT makes.
inline size_t table_index(int64_t target) {
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  return chosen.GetIndex();
}

}  // namespace normgrad::cpu
