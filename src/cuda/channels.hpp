// The kernels for BatchNorm. Each choose function refuses what its kernel cannot take.
#pragma once

#include "cuda/kernels.hpp"

namespace normgrad::cuda {

// Whether units of elements lie along the channels: there channels that lie side by side without a
// length to walk along are columns, too.
template <class Problem>
bool walks_channels(const Problem& problem) {
  const bool flat = problem.length <= 1 && problem.channels > 1;
  return !problem.contiguous_along_length() || (flat && problem.contiguous_along_channels());
}

// What the kernels that read everything once have in common: there are sums to make and a dx to
// make of them (anything else takes one pass anyway), on a GPU with clusters and bulk copies.
Status check_fused(const char* kernel, const ChannelsProblem& problem);

Status choose_channels_two_pass(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel);
Status choose_channels_columns(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel);
Status choose_channels_resident(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel);
Status choose_channels_small(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel);
Status choose_channels_cluster(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel);
Status choose_channels_team(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel);

}  // namespace normgrad::cuda
