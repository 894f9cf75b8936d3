// The only row of a call, and with it dgamma and dbeta. A call that short takes as long as its
// instructions do, one after the other: two warps to a block, so that each has a scheduler to
// itself, and the shortest way from the loads to dx.
#pragma once

#include <algorithm>

#include "cuda/rows_small_rows.cuh"

namespace normgrad::cuda {

// Its threads have the columns that they would have in a Team of rows_ring, a cluster of one or two
// blocks; here those warps are in as many blocks as it takes, each sends its sums to all, and they
// are added up in the same order.
class SpreadTeam {
 public:
  static constexpr int kBlockWarps = 2;
  // Two at least: what is for clusters is illegal in a launch without them.
  static int blocks_of(const RowsGeometry& geometry) {
    return std::max(2, static_cast<int>(divide_up(geometry.cluster * geometry.warps, kBlockWarps)));
  }

  __device__ SpreadTeam(RowsShared& shared, const RowsGeometry& geometry)
      : rank(warp() >= geometry.warps ? 1 : 0),
        position((warp() - static_cast<int>(rank) * geometry.warps) * 32 + lane()),
        shared_(shared),
        warps_(geometry.warps),
        halves_(geometry.cluster) {}

  const uint32_t rank;  // of the half of the row: of the block in that cluster
  const int position;   // of this thread in it
  __device__ int threads() const { return warps_ * 32; }
  __device__ bool is_there() const { return warp() < halves_ * warps_; }

  // All threads of all blocks, before and after something else.
  __device__ void start() const {
    if (threadIdx.x < 2) init_barrier(&shared_.cluster[0][threadIdx.x], 1);
    fence_barrier_init();
    const int slot = static_cast<int>(threadIdx.x);
    const bool is_empty =
        slot % kSlots >= warps_ || slot >= halves_ * kSlots;  // nobody sends to it
    if (slot < 2 * kSlots && is_empty) shared_.sums[0][slot] = shared_.sums[1][slot] = {};
    cluster_arrive();
  }
  __device__ void meet() const {
    cluster_wait();
    __syncthreads();
  }

  // As Team's: the same bits.
  __device__ double2 sum(double2 value) {
    const double half = sum_by_halves(value, lane());  // each lane has one of the two sums
    if (halves_ * warps_ == 1) return {__shfl_sync(~0u, half, 0), __shfl_sync(~0u, half, 16)};
    Barrier* barrier = &shared_.cluster[0][sums_ % 2];
    RowSums* terms = shared_.sums[sums_ % 2];
    if (threadIdx.x == 0) arrive_expecting(barrier, halves_ * warps_ * sizeof(RowSums));
    const int block = lane() % 16;
    if (block * kBlockWarps < halves_ * warps_) {
      RowSums& place = terms[rank * kSlots + position / 32];
      send(remote_address(lane() < 16 ? &place.first : &place.second, block), half,
           remote_address(barrier, block));
    }
    wait(barrier, sums_ / 2 % 2);
    ++sums_;
    // All are read before the first is added. Crews of up to four warps have no other four, and a
    // cluster's sums are added to those of two blocks that are not: -0 becomes 0.
    double2 fours[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) fours[i] = add_four(terms + 4 * i);
    const auto total = [&](const double2& low, const double2& high) {
      return warps_ > 4 ? double2{low.x + high.x, low.y + high.y} : low;
    };
    const double2 first = total(fours[0], fours[1]), second = total(fours[2], fours[3]);
    if (halves_ == 1) return first;
    return {first.x + second.x + 0.0, first.y + second.y + 0.0};
  }
  __device__ bool any(bool value) { return sum({value ? 1.0 : 0.0, 0}).x > 0; }

 private:
  static constexpr int kSlots = 8;  // of a half's warps
  __device__ static int warp() {
    return static_cast<int>(blockIdx.x * kBlockWarps + threadIdx.x / 32);
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  RowsShared& shared_;
  const int warps_, halves_;
  uint32_t sums_ = 0;  // made so far
};

// SmallRows' formulas. x, dy, dx, dgamma and dbeta are in aligned units of one type; gamma's may be
// float32.
template <class T, bool kRms, bool kFloatGamma>
class OnlyRow {
 public:
  __device__ OnlyRow(const SmallLaunch& launch, const RowsLaunch& rest, RowsShared& shared)
      : launch_(launch), rest_(rest), team_(shared, launch.geometry) {
    const int first = static_cast<int>(team_.rank) * launch.geometry.block_units;
    const int units = launch.problem.cols / kE;
    const int end = min(units, first + launch.geometry.block_units);
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const int unit = first + j * team_.threads() + team_.position;
      in_[j] = unit < end;
      units_[j] = min(unit, units - 1);
    }
  }

  __device__ void run() {
    uint4 x_units[kUnits], dy_units[kUnits], gamma_units[kUnits][kGammas];
    const bool given = launch_.problem.statistics != RowStatistics::kFromX;
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      x_units[j] = static_cast<const uint4*>(launch_.x)[units_[j]];
      dy_units[j] = static_cast<const uint4*>(launch_.dy)[units_[j]];
      load_gamma(j, gamma_units[j]);
    }
    StatsBits stats;
    const SmallData<T, true> data = {launch_, rest_};
    if (given) stats = data.ask(0);
    team_.start();
    const RowScales scales = make_scales(launch_, data.values(stats));
    double2 sums = {0, 0};
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      float g[kE];
      unpack<T>(x_units[j], x_[j]);
      unpack<T>(dy_units[j], dy_[j]);
      if constexpr (kFloatGamma) {
        std::memcpy(gamma_[j], gamma_units[j], sizeof(gamma_units[j]));
      } else {
        unpack<T>(gamma_units[j][0], gamma_[j]);
      }
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        if constexpr (!kRms) x_[j][e] -= scales.mean;
        g[e] = dy_[j][e] * gamma_[j][e];
      }
      const float first = kRms ? (in_[j] ? tree_sum(x_[j], x_[j]) : 0) : tree_sum(g);
      const float second = tree_sum(g, x_[j]);
      sums = j == 0 ? double2{first, second} : double2{sums.x + first, sums.y + second};
    }
    if (given) store_outputs(scales.scale);  // others wait meanwhile
    team_.meet();
    if (!team_.is_there()) return;
    sums = team_.sum(sums);
    RowScalars scalars;
    const bool fine = make_scalars<kRms>(launch_, scales, sums, scalars);
    if (__builtin_expect(!fine, 0)) {
      return write_with_care<T, kRms>(launch_, rest_, team_, 0, true, fine, scalars, sums);
    }
    if (launch_.dx != nullptr) store_dx(scalars);
    if (!given) store_outputs(scalars.scale);
  }

 private:
  static constexpr int kE = kUnit<T>;
  static constexpr int kUnits = kColumnsPerThread / kE;
  using G = std::conditional_t<kFloatGamma, float, T>;
  static constexpr int kGammas = kE / kUnit<G>;

  // Zeros behind the last column, ones where there is none.
  __device__ void load_gamma(int j, uint4 (&gamma)[kGammas]) const {
    const G ones[2] = {narrow<G>(1), narrow<G>(1)};
    const uint32_t other = in_[j] ? reinterpret_cast<const uint32_t&>(ones) : 0;
#pragma unroll
    for (int i = 0; i < kGammas; ++i) {
      gamma[i] = in_[j] && launch_.gamma != nullptr
                     ? static_cast<const uint4*>(launch_.gamma)[units_[j] * kGammas + i]
                     : uint4{other, other, other, other};
    }
  }

  __device__ void store(void* to, int j, const float (&values)[kE]) const {
    if (in_[j]) static_cast<uint4*>(to)[units_[j]] = pack<T>(values);
  }
  __device__ void store_dx(const RowScalars& scalars) const {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      float dx[kE];
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        dx[e] = scalars.dx(dy_[j][e], gamma_[j][e], x_[j][e]);
      }
      store(launch_.dx, j, dx);
    }
  }
  __device__ void store_outputs(float scale) const {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      float terms[kE];
#pragma unroll
      for (int e = 0; e < kE; ++e) terms[e] = dy_[j][e] * scale * x_[j][e];
      if (launch_.outputs[0].data != nullptr) store(launch_.outputs[0].data, j, terms);
      if (!kRms && launch_.outputs[1].data != nullptr) store(launch_.outputs[1].data, j, dy_[j]);
    }
  }

  const SmallLaunch& launch_;
  const RowsLaunch& rest_;
  SpreadTeam team_;
  bool in_[kUnits];  // of the row, and of this half
  int units_[kUnits];
  float x_[kUnits][kE], dy_[kUnits][kE], gamma_[kUnits][kE];  // x less its mean
};

}  // namespace normgrad::cuda
