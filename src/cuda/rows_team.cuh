// A team: the threads that share a row, and how they add up.
#pragma once

#include "cuda/ptx.cuh"
#include "cuda/rows_launch.cuh"

namespace normgrad::cuda {

// Two sums over a warp: half of it adds up the first, the other half the second.
__device__ inline double sum_by_halves(double2 value, int lane) {
  const bool second = lane >= 16;
  const double other = __shfl_xor_sync(~0u, second ? value.x : value.y, 16);
  double half = (second ? value.y : value.x) + other;
#pragma unroll
  for (int mask = 8; mask > 0; mask /= 2) half += __shfl_xor_sync(~0u, half, mask);
  return half;
}

// Every thread reads all of a team's terms, which takes less time than to share the work. Four at a
// time, which needs fewer registers than anything else here.
__device__ inline double2 add_four(const RowSums* terms) {
  const auto* four = reinterpret_cast<const double2*>(terms);
  return {(four[0].x + four[1].x) + (four[2].x + four[3].x),
          (four[0].y + four[1].y) + (four[2].y + four[3].y)};
}
__device__ inline double2 add_up(const RowSums* terms, int count) {
  double2 total = add_four(terms);
#pragma unroll 1
  for (int i = 4; i < count; i += 4) {
    const double2 four = add_four(terms + i);
    total = {total.x + four.x, total.y + four.y};
  }
  return total;
}

// kShort: several of them in a warp.
template <bool kShort>
struct Team {
  RowsShared& shared;
  const int lanes;
  int warps, cluster;
  const int warp;       // in the block
  int lane;             // in the warp
  const int crew;       // of this warp, in the block
  const int role;       // of this warp in its crew
  const int group;      // of this lane's team in the crew
  int position;         // of this thread in its team
  const uint32_t rank;  // of this block in its cluster
  uint32_t sums = 0;    // made so far

  __device__ Team(RowsShared& memory, const RowsGeometry& geometry)
      : shared(memory),
        lanes(kShort ? geometry.lanes : 32),
        warps(kShort ? 1 : geometry.warps),
        cluster(kShort ? 1 : geometry.cluster),
        // The same on all lanes, which the compiler would not know of threadIdx.
        warp(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0)),
        lane(threadIdx.x % 32),
        crew(warp / warps),
        // The last may have less to do, and warps of the same number modulo 4 one scheduler: of
        // crews in turn, it is another one's.
        role(kShort ? 0 : (warp + (warps % 2 == 0 ? crew * warps / 4 : 0)) % warps),
        group(kShort ? lane / lanes : 0),
        position(kShort ? lane % lanes : role * 32 + lane),
        rank(kShort ? 0 : blockIdx.x % geometry.cluster),
        slots_(geometry.warp_slots),
        block_slots_(geometry.block_slots(crew)) {
    asm volatile("" : "+r"(lane));  // kept, not asked for again in every row
    lane &= 31;                     // as the compiler knew before
  }

  // The same without a division, for a kernel that is over soon: each takes 50 ns.
  __device__ Team(RowsShared& memory, const RowsGeometry& geometry, int crew_of_warp, int lane_bits)
      : shared(memory),
        lanes(kShort ? geometry.lanes : 32),
        warps(kShort ? 1 : geometry.warps),
        cluster(kShort ? 1 : geometry.cluster),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(threadIdx.x % 32),
        crew(crew_of_warp),
        role(kShort ? 0 : warp - crew * warps),
        group(kShort ? lane >> lane_bits : 0),
        position(kShort ? lane & (lanes - 1) : role * 32 + lane),
        rank(kShort ? 0 : blockIdx.x & (geometry.cluster - 1)),
        slots_(geometry.warp_slots),
        block_slots_(geometry.block_slots(crew)) {}

  __device__ int threads() const { return lanes * warps; }

  // Two sums over all threads of the team, the same bits on each: over lanes, then over warps, then
  // over blocks.
  __device__ double2 sum(double2 value) {
    if constexpr (kShort) return short_sum(value);
    const double half = sum_by_halves(value, lane);
    double2 total;
    if (warps == 1) {
      total = {__shfl_sync(~0u, half, 0), __shfl_sync(~0u, half, 16)};
    } else {
      // Two in turn: nobody waits for the last readers.
      RowSums* own = &shared.sums[sums % 2][crew * slots_];
      if (lane % 16 == 0) (lane >= 16 ? own[role].second : own[role].first) = half;
      sync_some(1 + crew, warps * 32);
      total = add_up(own, slots_);
    }
    if (cluster > 1) {
      uint32_t turn = sums % 2;
      asm volatile("" : "+r"(turn));  // addresses are worked out here, not for everybody
      total = cluster_sum(total, turn);
    }
    ++sums;
    return total;
  }

  // The same in two steps, for a cluster: the n-th sums are on their way, and there. All warps of
  // the crew have come to the first when one of them leaves it.
  __device__ void send_sum(double2 value, TravellingSums& travel, uint32_t n) const {
    const double half = sum_by_halves(value, lane);
    RowSums* own = travel.warps[n % 2];
    if (lane % 16 == 0) (lane >= 16 ? own[role].second : own[role].first) = half;
    sync_some(1 + crew, warps * 32);
    if (role == 1) {
      send_to_blocks(add_up(own, slots_), travel.blocks[n % 4], &travel.arrived[n % 4]);
    }
  }
  __device__ double2 receive_sum(TravellingSums& travel, uint32_t n) const {
    wait(&travel.arrived[n % 4], n / 4 % 2);
    return add_up(travel.blocks[n % 4], cluster);
  }

  // Whether any thread of the team says so.
  __device__ bool any(bool value) { return sum({value ? 1.0 : 0.0, 0}).x > 0; }

  // A copy of which the compiler does not know that it is one: for code that is hardly ever taken,
  // whose conditions would otherwise be kept in registers all the time.
  __device__ Team stranger() const {
    Team team = *this;
    asm volatile("" : "+r"(team.warps), "+r"(team.cluster), "+r"(team.slots_));
    return team;
  }

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

  __device__ double2 cluster_sum(double2 own, uint32_t turn) {
    Barrier* barrier = &shared.cluster[crew][turn];
    RowSums* terms = &shared.sums[turn][block_slots_];
    if (role == 0) send_to_blocks(own, terms, barrier);
    wait(barrier, sums / 2 % 2);
    return add_up(terms, cluster);
  }
  // By one warp. Each block sends its sums to all; 16 bytes from each end a phase.
  __device__ void send_to_blocks(double2 own, RowSums* terms, Barrier* barrier) const {
    if (lane == 0) arrive_expecting(barrier, cluster * 16);
    if (lane >= cluster) return;
    RowSums* place = &terms[rank];
    const SharedAddress remote_barrier = remote_address(barrier, lane);
    send(remote_address(&place->first, lane), own.x, remote_barrier);
    send(remote_address(&place->second, lane), own.y, remote_barrier);
  }

  int slots_;              // of a crew's warps in shared.sums
  const int block_slots_;  // where those of its blocks begin
};

}  // namespace normgrad::cuda
