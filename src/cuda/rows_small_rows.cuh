// dx of a small LayerNorm or RMSNorm: a thread has 16 columns of one row, a team of them the row.
#pragma once

#include <cstring>
#include <type_traits>

#include "cuda/rows_small_launch.cuh"
#include "cuda/rows_team.cuh"
#include "cuda/rows_wide.cuh"

namespace normgrad::cuda {

// How the data lie: anyhow, or rows and gamma in aligned units, strides in 32 bits and statistics
// as float32 or of x's type; there gamma has x's type, or float32 where that is another one.
enum class SmallForm { kAny, kPlain, kFloatGamma };

// gamma in memory, for the few rows in float64.
struct GammaInMemory {
  const RowsLaunch& launch;
  int first = 0;
  __device__ float operator[](int column) const {
    const Vector& gamma = launch.problem.gamma;
    return gamma.present
               ? static_cast<float>(load_value(gamma, launch.buffers.gamma, first + column))
               : 1;
  }
};

// Where float32 may not serve the row: looks closer, as RowsWork's examine. All threads of the
// team's warps come. By its own means, from memory: what the others have in registers stays there,
// and the code is out of their way.
template <class T, bool kRms, class AnyTeam>
__device__ __noinline__ void write_with_care(const SmallLaunch& launch, const RowsLaunch& rest,
                                             AnyTeam team, int row_index, bool there, bool fine,
                                             RowScalars scalars, double2 sums) {
  const bool needs = !fine && !is_served<kRms>(launch, scalars, sums);
  const bool zero = (kRms || sums.x == 0) && sums.y == 0 && is_near_1<26>(scalars.r);
  const WideRow<T, kColumnsPerThread / kUnit<T>> row(rest, team, row_index);
  bool any = false;
  row.for_columns([&](int c) { any |= widen(row.dy[c]) != 0; });
  const bool gradient = team.any(any);
  const bool wide = needs && (gradient || !zero);
  const GammaInMemory gamma = {
      rest, static_cast<int>(team.rank) * launch.geometry.block_units * kUnit<T>};
  const RowStats stats = load_stats<false>(rest, row_index);
  const WideScalars exact = wide_scalars(rest, team, gamma, row, stats, wide);
  if (!there) return;
  if (launch.is_only_row) {  // first, since dx may lie on x or dy
    row.for_columns([&](int c) {
      const float x = widen(row.x[c]), dy = widen(row.dy[c]);
      launch.outputs[0].store(gamma.first + c, wide ? dy * exact.normalizer.x_hat(x)
                                                    : dy * scalars.scale * (x - scalars.mean));
      launch.outputs[1].store(gamma.first + c, dy);
    });
  }
  if (launch.dx == nullptr) return;
  if (wide) return write_wide_dx(row, gamma, exact);
  row.for_columns([&](int c) {
    const float x = widen(row.x[c]), dy = widen(row.dy[c]);
    row.dx[c] = narrow<T>(scalars.dx(dy, gamma[c], x - scalars.mean));
  });
}

// The formulas of rows_kernel.cuh without a loop, the sums in the same order.
template <class T, bool kRms, SmallForm kForm, bool kShort>
class SmallRows {
 public:
  static constexpr int kE = kUnit<T>;
  static constexpr int kUnits = kColumnsPerThread / kE;

  // block: of those that have rows.
  __device__ SmallRows(const SmallLaunch& launch, const RowsLaunch& rest, RowsShared& shared,
                       int block)
      : launch_(launch),
        rest_(rest),
        data_{launch, rest},
        team_(shared, launch.geometry, static_cast<int>(threadIdx.x / 32) * launch.warp_share >> 8,
              launch.row_lane_bits),
        first_(static_cast<int>(team_.rank) * launch.geometry.block_units * kE),
        end_(min(launch.problem.cols, first_ + launch.geometry.block_units * kE)) {
    const int crew = (team_.cluster > 1 ? block / 2 : block) * launch.geometry.crews + team_.crew;
    const int row = kShort ? (crew << (5 - launch.row_lane_bits)) + team_.group : crew;
    row_ = min(row, launch.problem.rows - 1);
    there_ = row < launch.problem.rows && team_.crew < launch.geometry.crews;
  }

  __device__ void write_dx() {
    load_x();
#pragma unroll
    for (int j = 0; j < kUnits; ++j) dy_[j] = data_.load(kRowDy, row_, column(j), end_);
    const bool given = launch_.problem.statistics != RowStatistics::kFromX;
    StatsBits stats;
    if (given) stats = data_.ask(row_);
    GammaUnit gamma[kUnits];
#pragma unroll
    for (int j = 0; j < kUnits; ++j) load_gamma(gamma[j], j);
    start();
    const RowScales scales = make_scales(launch_, data_.values(stats));
    double2 sums = {0, 0};
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      float x[kE], dy[kE], g[kE];
      widen_unit(j, scales.mean, x, dy);
      widen_gamma(j, gamma[j], g);
#pragma unroll
      for (int e = 0; e < kE; ++e) g[e] = dy[e] * g[e];
      const float first = kRms ? squares(j, x) : tree_sum(g);
      const float second = tree_sum(g, x);
      sums = j == 0 ? double2{first, second} : double2{sums.x + first, sums.y + second};
    }
    if (!is_in_team()) return;
    sums = team_.sum(sums);
    forget();
#pragma unroll
    for (int j = 0; j < kUnits; ++j) load_gamma(gamma[j], j);
    RowScalars scalars;
    const bool fine = make_scalars<kRms>(launch_, scales, sums, scalars) || !there_;
    if (__builtin_expect(kShort ? __any_sync(~0u, !fine) : !fine, 0)) {
      return write_with_care<T, kRms>(launch_, rest_, team_, row_, there_, fine, scalars, sums);
    }
    if (there_ && launch_.dx != nullptr) store_dx(scalars, gamma);
  }

  // For the columns, which need them: nobody gave any statistics.
  __device__ void write_mean_square() {
    load_x();
    start();
    double sum = 0;
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      float x[kE];
      unpack<T>(x_[j], x);
      sum += squares(j, x);
    }
    if (!is_in_team()) return;
    double mean = team_.sum({sum, 0}).x * launch_.per_col;
    const bool served = is_safe(mean);
    if (__builtin_expect(kShort ? __any_sync(~0u, !served) : !served, 0)) {
      const double wide =
          wide_mean_square(rest_, team_, WideRow<T, kUnits>(rest_, team_, row_), true);
      if (!served) mean = wide;
    }
    if (!there_ || team_.position + team_.rank != 0) return;
    launch_.mean_squares[row_] = mean;
    launch_.scales[row_] = scale_from(mean + launch_.problem.eps);
  }

 private:
  __device__ int column(int j) const {
    return first_ + (j * team_.threads() + team_.position) * kE;
  }
  __device__ float squares(int j, const float (&x)[kE]) const {
    return column(j) < end_ ? tree_sum(x, x) : 0;
  }
  __device__ void load_x() {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) x_[j] = data_.load(kRowX, row_, column(j), end_);
  }
  // What was made of the units is made again, and gamma loaded again: kept, they would leave room
  // for two blocks on a multiprocessor, not three.
  __device__ void forget() {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      asm volatile("" : "+r"(x_[j].x), "+r"(x_[j].y), "+r"(x_[j].z), "+r"(x_[j].w));
      asm volatile("" : "+r"(dy_[j].x), "+r"(dy_[j].y), "+r"(dy_[j].z), "+r"(dy_[j].w));
    }
  }
  // x - mean and dy.
  __device__ void widen_unit(int j, float mean, float (&x)[kE], float (&dy)[kE]) const {
    unpack<T>(x_[j], x);
    unpack<T>(dy_[j], dy);
    if constexpr (!kRms) {
#pragma unroll
      for (int e = 0; e < kE; ++e) x[e] -= mean;
    }
  }

  // What Team takes for granted. Then all threads of the block come by is_in_team.
  __device__ void start() const {
    if constexpr (kShort) return;
    if (team_.cluster > 1) {
      if (threadIdx.x < 2) init_barrier(&team_.shared.cluster[0][threadIdx.x], 1);
      fence_barrier_init();
      cluster_arrive();
    }
    if (threadIdx.x < 2 * kSumSlots) {
      team_.shared.sums[threadIdx.x / kSumSlots][threadIdx.x % kSumSlots] = {};
    }
  }
  __device__ bool is_in_team() const {
    if constexpr (kShort) return true;
    if (team_.cluster > 1) cluster_wait();
    if (team_.warps > 1) __syncthreads();
    return team_.crew < launch_.geometry.crews;
  }

  // Zeros behind the last column, ones where there is none.
  static constexpr int kGammas = kForm == SmallForm::kFloatGamma ? 2 : 1;
  using GammaUnit = uint4[kGammas];
  __device__ void load_gamma(GammaUnit& gamma, int j) const {
    if constexpr (kForm != SmallForm::kAny) {
      using G = std::conditional_t<kForm == SmallForm::kFloatGamma, float, T>;
      const bool in = column(j) < end_;
      const auto* from =
          reinterpret_cast<const uint4*>(static_cast<const G*>(launch_.gamma) + column(j));
      const G ones[2] = {narrow<G>(1), narrow<G>(1)};
      const uint32_t other = in ? reinterpret_cast<const uint32_t&>(ones) : 0;
#pragma unroll
      for (int i = 0; i < kGammas; ++i) {
        gamma[i] = in && launch_.gamma != nullptr ? from[i] : uint4{other, other, other, other};
      }
    }
  }
  __device__ void widen_gamma(int j, const GammaUnit& gamma, float (&values)[kE]) const {
    if constexpr (kForm == SmallForm::kPlain) {
      unpack<T>(gamma[0], values);
    } else if constexpr (kForm == SmallForm::kFloatGamma) {
      std::memcpy(values, &gamma, sizeof(gamma));
    } else {
      const GammaInMemory all = {rest_};
#pragma unroll
      for (int e = 0; e < kE; ++e) values[e] = column(j) + e < end_ ? all[column(j) + e] : 0;
    }
  }

  __device__ void store_dx(const RowScalars& scalars, const GammaUnit (&gamma)[kUnits]) const {
    T* row = static_cast<T*>(launch_.dx) + data_.offset(kRowDx, row_);
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      float x[kE], dy[kE], dx[kE];
      widen_unit(j, scalars.mean, x, dy);
      widen_gamma(j, gamma[j], dx);
#pragma unroll
      for (int e = 0; e < kE; ++e) dx[e] = scalars.dx(dy[e], dx[e], x[e]);
      if constexpr (kForm != SmallForm::kAny) {
        if (column(j) < end_) *reinterpret_cast<uint4*>(row + column(j)) = pack<T>(dx);
      } else {
#pragma unroll
        for (int e = 0; e < kE; ++e) {
          if (column(j) + e < end_) row[column(j) + e] = narrow<T>(dx[e]);
        }
      }
    }
  }

  const SmallLaunch& launch_;
  const RowsLaunch& rest_;
  const SmallData<T, kForm != SmallForm::kAny> data_;
  Team<kShort> team_;
  int row_;                // the last one if there are fewer
  bool there_;             // whether it is this thread's
  const int first_, end_;  // columns of this block
  uint4 x_[kUnits], dy_[kUnits];
};

}  // namespace normgrad::cuda
