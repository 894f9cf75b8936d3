// The threads that share a row or a channel of a forward operator, and the statistics they make of
// it.
#pragma once

#include "cuda/normalizer.cuh"
#include "cuda/ptx.cuh"
#include "cuda/rows_scalars.cuh"

namespace normgrad::cuda {

inline constexpr int kForwardThreads = 512;  // of a block, at most
inline constexpr int kForwardCluster = 16;   // blocks, at most
inline constexpr int kForwardUnits = 4;      // of 16 bytes that a thread keeps, at most

struct TeamMemory {
  double warps[2][kForwardThreads / 32];
  double blocks[2][kForwardCluster];
  Barrier barriers[2];
};

// Who shares a row or channel.
enum class Share { kLanes, kBlock, kCluster };

// The threads of a row or channel: lanes of a warp, a block, or a cluster of blocks, of which all
// numbers are powers of two, given as their logarithms. All threads of a block add up together,
// also for rows that are not there.
template <Share kShare>
struct Team {
  int size_log2, cluster_log2;
  int sums = 0;

  __device__ explicit Team(int size_log2, int cluster_log2 = 0)
      : size_log2(size_log2), cluster_log2(cluster_log2) {
#if NORMGRAD_HOPPER
    if constexpr (kShare == Share::kCluster) {
      if (threadIdx.x == 0) {
        TeamMemory& memory = in_shared<TeamMemory>();
        for (Barrier& barrier : memory.barriers) init_barrier(&barrier, 1);
        fence_barrier_init();
      }
      __syncwarp();
      cluster_arrive();  // the first sum waits: loads are under way until then
    }
#endif
  }

  // The team's place in the grid, and the thread's in the team.
  __device__ int64_t index() const {
    if (kShare == Share::kBlock) return blockIdx.x;
    if (kShare == Share::kCluster) return blockIdx.x >> cluster_log2;
    return int64_t{blockIdx.x} * (blockDim.x >> size_log2) + (threadIdx.x >> size_log2);
  }
  __device__ int threads() const { return 1 << (size_log2 + cluster_log2); }
  __device__ int thread() const {
    const int in_block = static_cast<int>(threadIdx.x) & ((1 << size_log2) - 1);
#if NORMGRAD_HOPPER
    if constexpr (kShare == Share::kCluster) {
      return (static_cast<int>(cluster_rank()) << size_log2) + in_block;
    }
#endif
    return in_block;
  }

  // The same bits on all threads. Two sums take turns in memory: who is a sum ahead waits for the
  // others before it writes where they may still read.
  __device__ double sum(double value) {
#pragma unroll
    for (int bit = 0; bit < 5; ++bit) {
      if (kShare != Share::kLanes || bit < size_log2) {
        value += __shfl_xor_sync(~0u, value, 1 << bit);
      }
    }
    if constexpr (kShare == Share::kLanes) return value;
    TeamMemory& memory = in_shared<TeamMemory>();
    const int turn = sums % 2;
    if (threadIdx.x % 32 == 0) memory.warps[turn][threadIdx.x / 32] = value;
    __syncthreads();
    value = memory.warps[turn][threadIdx.x & ((1 << (size_log2 - 5)) - 1)];
#pragma unroll
    for (int bit = 0; 32 << bit < kForwardThreads; ++bit) {
      if (bit + 5 < size_log2) value += __shfl_xor_sync(~0u, value, 1 << bit);
    }
#if NORMGRAD_HOPPER
    if constexpr (kShare == Share::kCluster) value = sum_of_cluster(value, turn);
#endif
    ++sums;
    return value;
  }

 private:
#if NORMGRAD_HOPPER
  __device__ double sum_of_cluster(double value, int turn) const {
    const int cluster = 1 << cluster_log2;
    TeamMemory& memory = in_shared<TeamMemory>();
    Barrier* barrier = &memory.barriers[turn];
    if (sums == 0) cluster_wait();
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
  // From the mean of squares around the float32 next to the mean, which is at most twice the
  // variance: elements and that float32 are multiples of one number, from which the mean is no
  // further than a half. (r to 44 bits; not safe where float32 does not serve.)
  __device__ void set_squares(double value, double eps) {
    const double low = mean - static_cast<float>(mean);
    variance = fma(-low, low, value);
    zero = false;
    r = quick_rsqrt(variance + eps);
  }
  __device__ double x_hat(double x) const { return zero ? 0 : (x - mean) * r; }
  // Whether float32 serves: squares did not leave its range, nor will products.
  __device__ bool is_served() const { return is_safe(variance) && is_safe(r); }
};

}  // namespace normgrad::cuda
