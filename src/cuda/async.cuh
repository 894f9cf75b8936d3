// Hopper's asynchronous copies: bulk copies into shared memory that report to a barrier there, and
// values sent to the other blocks of a cluster. One line of PTX each; <cuda/ptx> has them too, but
// from another release of the toolkit on each.
#pragma once

#include <cstdint>

namespace normgrad::cuda {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

using Barrier = uint64_t;  // an mbarrier, in shared memory

__device__ inline void init_barrier(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
// After the init of barriers that copies or other blocks of the cluster will use.
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// The phase also waits for that many bytes.
__device__ inline void expect_bytes(Barrier* barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
// Waits for the end of the phase with that parity: 0 for the first.
__device__ inline void wait(Barrier* barrier, uint32_t parity) {
  uint32_t done = 0;
#ifdef NORMGRAD_TRAP
  int spins = 0;
#endif
  while (!done) {
#ifdef NORMGRAD_TRAP
    if (++spins > 2000000) __trap();
#endif
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}\n"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}

// Global to shared memory; addresses and size are multiples of 16.
__device__ inline void bulk_copy(void* to, const void* from, uint32_t bytes, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// The address of a variable of this block in another block of the cluster.
__device__ inline uint32_t remote_address(const void* pointer, uint32_t block) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared_address(pointer)), "r"(block));
  return address;
}
// 8 bytes to another block, whose barrier counts them.
__device__ inline void send(uint32_t to, double value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to),
      "l"(__double_as_longlong(value)), "r"(barrier)
      : "memory");
}

}  // namespace normgrad::cuda
