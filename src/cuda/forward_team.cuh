// The threads that share a row or a channel of a forward operator, and the statistics they make of
// it.
#pragma once

#include "cuda/normalizer.cuh"
#include "cuda/ptx.cuh"

namespace normgrad::cuda {

inline constexpr int kForwardThreads = 512;  // of a block, at most
inline constexpr int kForwardCluster = 16;   // blocks, at most
inline constexpr int kForwardUnits = 4;      // of 16 bytes that a thread keeps, at most

struct TeamMemory {
  double warps[2][kForwardThreads / 32];
  double blocks[2][kForwardCluster];
  Barrier barriers[2];
};

// The threads of a row or channel: lanes of a warp, a block, or a cluster of blocks. All threads of
// a block add up together, also for rows that are not there.
struct Team {
  int size, cluster;
  int sums = 0;

  __device__ Team(int size, int cluster) : size(size), cluster(cluster) {
#if NORMGRAD_HOPPER
    if (cluster == 1) return;
    if (threadIdx.x == 0) {
      TeamMemory& memory = in_shared<TeamMemory>();
      for (Barrier& barrier : memory.barriers) init_barrier(&barrier, 1);
      fence_barrier_init();
    }
    sync_cluster();
#endif
  }

  // The team's place in the block, and the thread's in the team.
  __device__ int index() const { return static_cast<int>(threadIdx.x) / size; }
  __device__ int threads() const { return size * cluster; }
  __device__ int thread() const {
    const int in_block = static_cast<int>(threadIdx.x) % size;
#if NORMGRAD_HOPPER
    if (cluster > 1) return static_cast<int>(cluster_rank()) * size + in_block;
#endif
    return in_block;
  }

  // The same bits on all threads. Two sums take turns in memory: who is a sum ahead waits for the
  // others before it writes where they may still read.
  __device__ double sum(double value) {
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) {
      if (mask < size) value += __shfl_xor_sync(~0u, value, mask);
    }
    if (size <= 32) return value;
    TeamMemory& memory = in_shared<TeamMemory>();
    const int turn = sums % 2, warps = size / 32;
    if (threadIdx.x % 32 == 0) memory.warps[turn][threadIdx.x / 32] = value;
    __syncthreads();
    value = memory.warps[turn][threadIdx.x % warps];
#pragma unroll
    for (int mask = 1; mask < kForwardThreads / 32; mask *= 2) {
      if (mask < warps) value += __shfl_xor_sync(~0u, value, mask);
    }
#if NORMGRAD_HOPPER
    if (cluster > 1) value = sum_of_cluster(value, turn);
#endif
    ++sums;
    return value;
  }

 private:
#if NORMGRAD_HOPPER
  __device__ double sum_of_cluster(double value, int turn) const {
    TeamMemory& memory = in_shared<TeamMemory>();
    Barrier* barrier = &memory.barriers[turn];
    if (threadIdx.x == 0) arrive_expecting(barrier, static_cast<uint32_t>(8 * cluster));
    if (static_cast<int>(threadIdx.x) < cluster) {
      send(remote_address(&memory.blocks[turn][cluster_rank()], threadIdx.x), value,
           remote_address(barrier, threadIdx.x));
    }
    wait(barrier, static_cast<uint32_t>(sums / 2 % 2));
    double total = memory.blocks[turn][0];
    for (int block = 1; block < cluster; ++block) total += memory.blocks[turn][block];
    return total;
  }
#endif
};

struct ForwardStatistics {
  double mean = 0, variance = 0;  // RMSNorm: 0, mean of the squares
  double r = 0;
  bool zero = true;  // variance + eps is exactly zero: r = 0 and x_hat = 0

  __device__ void set_variance(double value, double eps) {
    variance = value;
    zero = value + eps == 0;
    r = zero ? 0 : rsqrt(value + eps);
  }
  __device__ double x_hat(double x) const { return zero ? 0 : (x - mean) * r; }
  // Whether float32 serves: squares did not leave its range, nor will products.
  __device__ bool is_served() const { return is_safe(variance) && is_safe(r); }
};

}  // namespace normgrad::cuda
