// A backend is one table: for each canonical problem the kernel it would run, or why it cannot.
#pragma once

#include <cstddef>
#include <span>

#include "normgrad/plan.hpp"
#include "normgrad/status.hpp"
#include "ops/problem.hpp"

namespace normgrad {

template <class Problem>
struct Kernel {
  const char* name = nullptr;
  size_t workspace = 0;  // bytes; launch gets a pointer aligned to kWorkspaceAlignment
  Status (*launch)(const Problem&, const Buffers&, void* workspace, void* stream) = nullptr;
};

struct Backend {
  const char* name;  // "cpu:avx3"
  Device device;
  Status (*rows_forward)(const RowsForwardProblem&, Kernel<RowsForwardProblem>&);
  Status (*channels_forward)(const ChannelsForwardProblem&, Kernel<ChannelsForwardProblem>&);
  Status (*rows)(const RowsProblem&, Kernel<RowsProblem>&);
  Status (*channels)(const ChannelsProblem&, Kernel<ChannelsProblem>&);
  Status (*copy)(const CopyProblem&, const void* from, void* to, void* stream);
};

inline constexpr size_t kWorkspaceAlignment = 64;

// The backends of a device that this machine can run, best first. Asking for those of GPUs starts
// CUDA's driver, which takes a while and does not survive a fork: the CPU's plans do not.
std::span<const Backend> backends(Device device);

// The backend for a device: NORMGRAD_IMPL if it names one of that device, else the best.
Status choose_backend(Device device, const Backend*& backend);

// The tables of the backend folders.
namespace cpu {
std::span<const Backend> backends();
}
namespace cuda {
std::span<const Backend> backends();  // none without a GPU
}

}  // namespace normgrad
