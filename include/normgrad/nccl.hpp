// Communicators between NVIDIA GPUs, by NCCL 2.17 or newer. NCCL is not needed to build or to load
// this library: the first call loads libnccl.so.2, and says so if it is not there.
//
// Collectives are queued on the stream and may be captured into a CUDA graph; capture after the
// first call of their kind, which connects the ranks. Communicator::wait is what notices a rank
// that died or stalls: it aborts the communicator, and what was queued behind the collective then
// runs with whatever the collective left. Inside a group any call may stand, of all the
// communicators of the thread, which is how one thread drives several GPUs.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "normgrad/communicator.hpp"

namespace normgrad {

// What the ranks of a communicator have in common: one makes it, all get a copy of its bytes.
struct NcclUniqueId {
  char bytes[128];
};
NORMGRAD_EXPORT Status nccl_unique_id(NcclUniqueId& id) noexcept;

// Rank `rank` of `size`, on the calling thread's CUDA device; every rank needs a GPU of its own.
// Returns when all ranks have come, or kCommunication when the deadline has passed. `communicator`
// is changed only on success.
NORMGRAD_EXPORT Status nccl_communicator(int size, const NcclUniqueId& id, int rank,
                                         std::chrono::duration<double> deadline,
                                         std::unique_ptr<Communicator>& communicator) noexcept;

// All ranks in this process: one for each of these GPUs, in this order.
NORMGRAD_EXPORT Status
nccl_communicators(std::span<const int> devices, std::chrono::duration<double> deadline,
                   std::vector<std::unique_ptr<Communicator>>& communicators) noexcept;

}  // namespace normgrad
