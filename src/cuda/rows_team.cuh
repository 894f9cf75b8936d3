// A team: the threads that share a row, and how they add up.
#pragma once

#include "cuda/ptx.cuh"
#include "cuda/rows_launch.cuh"

namespace normgrad::cuda {

// kShort: several of them in a warp.
template <bool kShort>
struct Team {
  RowsShared& shared;
  const int lanes, warps, cluster;
  const int warp, lane;  // in the block, in the warp
  const int crew;        // of this warp, in the block
  const int group;       // of this lane's team in the crew
  const int position;    // of this thread in its team
  const uint32_t rank;   // of this block in its cluster
  uint32_t sums = 0;     // made so far

  __device__ Team(RowsShared& memory, const RowsGeometry& geometry)
      : shared(memory),
        lanes(kShort ? geometry.lanes : 32),
        warps(kShort ? 1 : geometry.warps),
        cluster(kShort ? 1 : geometry.cluster),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        crew(warp / warps),
        group(kShort ? lane / lanes : 0),
        position(kShort ? lane % lanes : warp % warps * 32 + lane),
        rank(kShort ? 0 : blockIdx.x % geometry.cluster),
        own_(&memory.warps[0][lane / 16][warp]),
        other_(&memory.warps[0][lane / 16][crew * warps + lane % 16]) {}

  __device__ int threads() const { return lanes * warps; }

  // Two sums over all threads of the team, the same bits on each: over lanes, then over warps, then
  // over blocks. Half a warp adds up the first, the other half the second.
  __device__ double2 sum(double2 value) {
    if constexpr (kShort) return short_sum(value);
    const bool second = lane >= 16;
    const double other = __shfl_xor_sync(~0u, second ? value.x : value.y, 16);
    double half = half_warp_sum((second ? value.y : value.x) + other);
    if (warps > 1) {
      const int turn = sums % 2 * 2 * kMaxWarps;  // two in turn: nobody waits for the last readers
      if (lane % 16 == 0) own_[turn] = half;
      sync_some(1 + crew, warps * 32);
      half = half_warp_sum(lane % 16 < warps ? other_[turn] : 0);
    }
    if (cluster > 1) half = cluster_sum(half, sums % 2, second);
    ++sums;
    return {__shfl_sync(~0u, half, 0), __shfl_sync(~0u, half, 16)};
  }

  // Whether any thread of the team says so.
  __device__ bool any(bool value) { return sum({value ? 1.0 : 0.0, 0}).x > 0; }

 private:
  __device__ double2 short_sum(double2 value) const {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      if (mask >= lanes) continue;
      value.x += __shfl_xor_sync(~0u, value.x, mask);
      value.y += __shfl_xor_sync(~0u, value.y, mask);
    }
    return value;
  }

  __device__ static double half_warp_sum(double value) {
#pragma unroll
    for (int mask = 8; mask > 0; mask /= 2) value += __shfl_xor_sync(~0u, value, mask);
    return value;
  }

  // Each block sends its sums to all; 16 bytes from each end a phase.
  __device__ double cluster_sum(double half, uint32_t turn, bool second) {
    Barrier* barrier = &shared.cluster[turn];
    if (threadIdx.x == 0) {
      expect_bytes(barrier, cluster * 16);
      arrive(barrier);
    }
    if (warp == 0 && lane % 16 < cluster) {
      send(remote_address(&shared.blocks[turn][second][rank], lane % 16), half,
           remote_address(barrier, lane % 16));
    }
    wait(barrier, sums / 2 % 2);
    return half_warp_sum(lane % 16 < cluster ? shared.blocks[turn][second][lane % 16] : 0);
  }

  double* const own_;          // where this warp leaves its sums
  const double* const other_;  // where this lane finds another's
};

}  // namespace normgrad::cuda
