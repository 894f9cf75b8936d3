// Rows of any length, in passes over memory.
#pragma once

#include "cuda/rows_launch.cuh"
#include "normgrad/status.hpp"

namespace normgrad::cuda {

size_t split_rows_workspace(const RowsProblem& problem);
Status launch_split_rows(const RowsProblem& problem, const Buffers& buffers, void* workspace,
                         void* stream);

}  // namespace normgrad::cuda
