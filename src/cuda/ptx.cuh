// Every instruction that CUDA C++ has no words for, one line of PTX each; <cuda/ptx> has most of
// them too, but other ones from one release of the toolkit to the next. And shared memory, by
// name. The only file that tests/emulator replaces.
#pragma once

#include <cstdint>

// Kernels that use them have no body on older GPUs, where nobody launches them.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define NORMGRAD_HOPPER 1
#else
#define NORMGRAD_HOPPER 0
#endif

namespace normgrad::cuda {

// What a launch gave the block, and a variable of the block: one for each type.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(128) char memory[];
  return reinterpret_cast<T*>(memory);
}
template <class T>
__device__ T& in_shared() {
  __shared__ alignas(T) char memory[sizeof(T)];
  return reinterpret_cast<T&>(memory);
}

// A value that all lanes of a warp have: branches by it are cheaper if the compiler knows.
__device__ inline uint32_t uniform(uint32_t value) { return __reduce_or_sync(~0u, value); }
// A value is made before this, not after.
__device__ inline void keep_here(float& value) { asm volatile("" : "+f"(value)); }

// So many cycles of the multiprocessor go by.
__device__ inline void wait_cycles(uint32_t cycles) {
  const int64_t start = clock64();
  while (clock64() - start < cycles) {
  }
}

// An address in shared memory, of this block or of another one of the cluster.
using SharedAddress = uint32_t;

__device__ inline SharedAddress shared_address(const void* pointer) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(pointer));
}

// Some warps of a block, whole ones, wait for each other at one of 16 barriers; __syncthreads() has
// the first.
__device__ inline void sync_some(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Barriers in shared memory, which also count the bytes of asynchronous copies: mbarriers.
using Barrier = uint64_t;

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
// Both at once.
__device__ inline void arrive_expecting(Barrier* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
// Waits for the end of the phase with that parity: 0 for the first.
__device__ inline void wait(Barrier* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done) {
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

// What lies there is on its way into the second-level cache; address and size are multiples of 16.
__device__ inline void prefetch_bulk(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)),
               "r"(bytes));
}

// What lies there is on its way into the second-level cache.
__device__ inline void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
}

// Read for the last time: what else is in the cache is wanted more.
__device__ inline uint4 load_last(const uint4* from) { return __ldcs(from); }

// 16 bytes from global to shared memory, past the registers. What a thread copied, it sees after
// wait_for_copies.
__device__ inline void copy_async(SharedAddress to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to),
               "l"(__cvta_generic_to_global(from))
               : "memory");
}
// The same, of a cache line of which the rest is wanted soon.
__device__ inline void copy_line_async(SharedAddress to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to),
               "l"(__cvta_generic_to_global(from))
               : "memory");
}
__device__ inline void copy_word_async(SharedAddress to, const void* from) {  // 4 bytes
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to),
               "l"(__cvta_generic_to_global(from))
               : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

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

// The address of a variable of this block in another block of the cluster.
__device__ inline SharedAddress remote_address(const void* pointer, uint32_t block) {
  SharedAddress address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared_address(pointer)), "r"(block));
  return address;
}
// 8 bytes to another block, whose barrier counts them.
__device__ inline void send(SharedAddress to, double value, SharedAddress barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to),
      "l"(__double_as_longlong(value)), "r"(barrier)
      : "memory");
}

// 16 bytes in global memory, whole, to and from any block of the grid.
struct alignas(16) Words {
  unsigned long long first, second;
};
__device__ inline void store_relaxed(Words* to, const Words& words) {
  asm volatile("st.relaxed.gpu.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(words.first),
               "l"(words.second)
               : "memory");
}
__device__ inline Words load_relaxed(const Words* from) {
  Words words;
  asm volatile("ld.relaxed.gpu.v2.b64 {%0, %1}, [%2];"
               : "=l"(words.first), "=l"(words.second)
               : "l"(from)
               : "memory");
  return words;
}

// To 22 bits; subnormals are 0.
__device__ inline float approximate_rsqrt(float value) {
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
__device__ inline float approximate_reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

}  // namespace normgrad::cuda
