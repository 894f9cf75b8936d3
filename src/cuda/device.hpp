// The current GPU, as far as the choice of a kernel depends on it.
#pragma once

#include "normgrad/status.hpp"

namespace normgrad::cuda {

// 0 if there is none.
int multiprocessors();

// Whether the library has kernels for it at all.
Status check_gpu();

// Whether it has what the kernels need that read everything once: clusters, bulk copies and 227 KiB
// of shared memory. Other GPUs take the kernels that work in passes.
Status check_hopper(const char* kernel);

}  // namespace normgrad::cuda
