// What the backend's table is made of. Each choose function answers with a kernel for the problem
// or says why it has none; the choice depends on shape and dtype alone, so that the bits do.
#pragma once

#include "ops/backend.hpp"

namespace normgrad::cuda {

Status choose_rows_forward(const RowsForwardProblem& problem, Kernel<RowsForwardProblem>& kernel);
Status choose_rows(const RowsProblem& problem, Kernel<RowsProblem>& kernel);
Status choose_rows_across(const RowsProblem& problem, Kernel<RowsProblem>& kernel);
Status choose_ring_rows(const RowsProblem& problem, Kernel<RowsProblem>& kernel);
Status choose_small_rows(const RowsProblem& problem, Kernel<RowsProblem>& kernel);
Status choose_split_rows(const RowsProblem& problem, Kernel<RowsProblem>& kernel);
// Whether there is no gradient of a residual to add: so far rows_split alone does that.
Status check_no_dh(const char* kernel, const RowsProblem& problem);
Status choose_channels(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel);
Status choose_channels_forward(const ChannelsForwardProblem& problem,
                               Kernel<ChannelsForwardProblem>& kernel);
Status copy(const CopyProblem& problem, const void* from, void* to, void* stream);

}  // namespace normgrad::cuda
