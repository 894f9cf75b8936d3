// What the kernels that take clusters of blocks have in common.
#pragma once

#include "cuda/async.cuh"

namespace normgrad::cuda {

// The block in its cluster.
__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Between these two all blocks of the cluster have started and set up their barriers.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Both at once, and what the blocks wrote before it is there after it.
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

// 16 bytes from global to shared memory, past the registers. What a thread copied, it sees after
// wait_for_copies.
__device__ inline void copy_async(uint32_t slot, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(slot),
               "l"(__cvta_generic_to_global(from))
               : "memory");
}
__device__ inline void copy_async(void* slot, const void* from) {
  copy_async(shared_address(slot), from);
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace normgrad::cuda
