// LayerNorm and RMSNorm backward for calls that are over before a ring is set up: the formulas of
// rows_kernel.cuh in one launch, without a loop. A thread loads 16 columns of one row before
// anything else and keeps them. Its row's sums are made as rows_ring makes them, in the same order.
// A block adds up the terms of dgamma and dbeta of its rows in fp32: every fourth row, then the
// four. If there are more rows than those, the sums go to memory, and each block adds up some
// columns of them: every thread some, then the lanes, then the warps; 10 additions for 1024 rows,
// less than 32 for any number.
//
// On an H200 a launch alone takes 2.7 us. LayerNorm bf16, cold caches: 1x8192 4.7 us, 8x4096 5.8,
// 128x4096 8.9, 1024x1024 9.9. What the other blocks' sums cost was 3 us with a barrier before they
// are read, a second kernel, or this: nobody waits for all of them, each thread waits for its own.
#include <cooperative_groups.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cuda/device.hpp"
#include "cuda/kernels.hpp"
#include "cuda/launch.cuh"
#include "cuda/rows_scalars.cuh"
#include "cuda/rows_small_deal.hpp"
#include "cuda/rows_wide.cuh"
#include "ops/operands.hpp"

namespace normgrad::cuda {
namespace {

struct Output {
  void* data = nullptr;  // null: not wanted
  int64_t stride = 1;
  DType dtype = DType::kF32;
};

// What every thread reads, side by side and in this order: parameters come from memory, too.
struct SmallLaunch {
  const void *x, *dy;
  int row_threads;  // of a part of a row: rows_ring's block has one
  int part_stride, part_columns;
  struct {
    int rows, cols;
    RowStatistics statistics;
    double eps;
  } problem;  // with the names of RowsLaunch
  int strides[kRowTensors];
  int cluster;
  const float *mean, *spread;
  const void* gamma;  // null: ones
  double per_col;
  int teams, slots;
  int fold_at;  // in shared memory
  int groups, padded, items;
  void* dx;
  float* partials;
  Output outputs[2];
};

// How the data lie: anyhow, or rows and gamma in aligned units, strides in 32 bits and statistics
// as float32; there gamma has x's type, or float32 where that is another one.
enum class Form { kAny, kPlain, kFloatGamma };

// Which sums remain to be made: of one row none, of one block's rows, of all blocks' rows.
enum class Rows { kOne, kFew, kMany };

// The threads that have a row.
class SmallTeam {
 public:
  __device__ SmallTeam(const SmallLaunch& launch, char* memory)
      : rank(static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) >= launch.part_stride ? 1 : 0),
        position(static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) -
                 rank * launch.part_stride),
        launch_(launch),
        barriers_(reinterpret_cast<Barrier*>(memory)),
        sums_(reinterpret_cast<RowSums*>(memory + 16)) {}

  const int rank;      // of the row's part
  const int position;  // in that part's team, of which this block may have some
  __device__ int threads() const { return launch_.row_threads; }

  __device__ void start() const {
    if (launch_.cluster == 1) return;
    if (threadIdx.x + threadIdx.y == 0) {
      init_barrier(&barriers_[0], 1);
      init_barrier(&barriers_[1], 1);
      fence_barrier_init();
    }
    cluster_arrive();
  }
  __device__ void wait_for_others() const {
    if (launch_.cluster > 1) cluster_wait();
  }

  // As Team's: the same bits.
  __device__ double2 sum(double2 value) {
    const int lanes = min(32, static_cast<int>(blockDim.x)), lane = threadIdx.x % 32;
    if (lanes < 32) {
#pragma unroll 1
      for (int mask = lanes / 2; mask > 0; mask /= 2) {
        value.x += __shfl_xor_sync(~0u, value.x, mask);
        value.y += __shfl_xor_sync(~0u, value.y, mask);
      }
      return value;
    }
    const bool second = lane >= 16;
    const double other = __shfl_xor_sync(~0u, second ? value.x : value.y, 16);
    double half = (second ? value.y : value.x) + other;
#pragma unroll
    for (int mask = 8; mask > 0; mask /= 2) half += __shfl_xor_sync(~0u, half, mask);
    const int all = launch_.slots * launch_.cluster;
    if (all == 1) return {__shfl_sync(~0u, half, 0), __shfl_sync(~0u, half, 16)};
    RowSums* own = sums_ + (turn_ % 2 * launch_.teams + threadIdx.y) * all;
    double* place = &own[blockIdx.x * launch_.slots + threadIdx.x / 32].first + lane / 16;
    if (launch_.cluster > 1) {
      send_all(place, half, lane % 16);
    } else {
      if (lane % 16 == 0) *place = half;
      __syncthreads();
    }
    ++turn_;
    if (all == 2) return tree_sum<2>(own);
    if (all == 4) return tree_sum<4>(own);
    if (all == 8) return tree_sum<8>(own);
    return tree_sum<16>(own);
  }
  __device__ bool any(bool value) { return sum({value ? 1.0 : 0.0, 0}).x > 0; }

 private:
  __device__ void send_all(double* place, double value, uint32_t block) const {
    Barrier* barrier = &barriers_[turn_ % 2];
    if (threadIdx.x + threadIdx.y == 0) {
      expect_bytes(barrier, launch_.teams * launch_.slots * launch_.cluster * 16);
      arrive(barrier);
    }
    if (block < launch_.cluster) {
      send(remote_address(place, block), value, remote_address(barrier, block));
    }
    wait(barrier, turn_ / 2 % 2);
  }
  template <int kCount>
  __device__ static double2 tree_sum(const RowSums* terms) {
    if constexpr (kCount == 1) {
      return *reinterpret_cast<const double2*>(terms);
    } else {
      const double2 a = tree_sum<kCount / 2>(terms), b = tree_sum<kCount / 2>(terms + kCount / 2);
      return {a.x + b.x, a.y + b.y};
    }
  }

  const SmallLaunch& launch_;
  Barrier* const barriers_;
  RowSums* const sums_;  // in turn, for each team: of all warps of all blocks
  uint32_t turn_ = 0;
};

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

// Four sums of a block in memory, for all blocks. Until they are there they are a NaN that no
// addition makes.
constexpr uint32_t kNothing = 0xFFFFFFFF, kNaN = 0x7FFFFFFF;

__device__ inline void clear_partial(float4* partial) {
  constexpr uint64_t kPair = uint64_t{kNothing} << 32 | kNothing;
  store_relaxed(reinterpret_cast<Words*>(partial), {kPair, kPair});
}
__device__ inline void put_partial(float4* partial, float4 sums) {
  for (float* sum : {&sums.x, &sums.y, &sums.z, &sums.w}) {
    if (__float_as_uint(*sum) == kNothing) *sum = __uint_as_float(kNaN);
  }
  store_relaxed(reinterpret_cast<Words*>(partial), reinterpret_cast<const Words&>(sums));
}
__device__ inline float4 await_partial(const float4* partial) {
  for (;;) {
    const Words words = load_relaxed(reinterpret_cast<const Words*>(partial));
    const float4 sums = reinterpret_cast<const float4&>(words);
    bool there = true;
    for (const float sum : {sums.x, sums.y, sums.z, sums.w}) {
      there = there && __float_as_uint(sum) != kNothing;
    }
    if (there) return sums;
  }
}

// Of all blocks, in two steps.
class GridBarrier {
 public:
  __device__ void arrive() { token_ = cooperative_groups::this_grid().barrier_arrive(); }
  __device__ void wait() { cooperative_groups::this_grid().barrier_wait(std::move(token_)); }

 private:
  cooperative_groups::grid_group::arrival_token token_;
};

template <class T, bool kRms, Form kForm, Rows kRows>
class SmallWork {
 public:
  static constexpr int kE = kUnit<T>;
  static constexpr int kUnits = kColumnsPerThread / kE;
  static constexpr int kSums = kRms ? 4 : 8;  // of 4 columns, per thread

  __device__ SmallWork(const SmallLaunch& launch, const RowsLaunch& rest, char* memory)
      : launch_(launch),
        rest_(rest),
        team_(launch, memory),
        fold_(reinterpret_cast<float4*>(memory + launch.fold_at)),
        row_(min(static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y), launch.problem.rows - 1)),
        there_(blockIdx.y * blockDim.y + threadIdx.y < launch.problem.rows),
        first_(team_.rank * launch.part_columns),
        columns_(team_.position < launch.row_threads
                     ? min(launch.problem.cols, first_ + launch.part_columns)
                     : 0) {}

  __device__ void run() {
    uint4 x[kUnits], dy[kUnits];
    GammaUnit gamma[kUnits];
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      x[j] = load(static_cast<const T*>(launch_.x), kRowX, j);
      dy[j] = load(static_cast<const T*>(launch_.dy), kRowDy, j);
    }
    const RowStats stats = load_statistics();
#pragma unroll
    for (int j = 0; j < kUnits; ++j) load_gamma(gamma[j], j);
    team_.start();
    // Long before the sums are there, no block may read those of an earlier call.
    GridBarrier grid;
    if constexpr (kRows == Rows::kMany) {
      for_sums([&](int, float4* partial, int) { clear_partial(partial); });
      grid.arrive();
    }
    const RowScales scales = make_scales(launch_, stats);
    double2 sums = {0, 0};
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      unpack<T>(x[j], centred_[j]);
      unpack<T>(dy[j], dy_[j]);
      widen_gamma(j, gamma[j]);
      float g[kE];
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        g[e] = dy_[j][e] * gamma_[j][e];
        if constexpr (!kRms) centred_[j][e] -= scales.mean;
      }
      float2 unit = {kRms ? tree_sum(centred_[j], centred_[j]) : tree_sum(g),
                     tree_sum(g, centred_[j])};
      if (kRms && column(j) >= columns_) unit.x = 0;
      sums = j == 0 ? double2{unit.x, unit.y} : double2{sums.x + unit.x, sums.y + unit.y};
    }
    team_.wait_for_others();
    sums = team_.sum(sums);
    RowScalars scalars;
    const bool fine = make_scalars<kRms>(launch_, scales, sums, scalars) || !there_;
    bool has_dx = launch_.dx != nullptr && there_;
    if constexpr (kRows == Rows::kOne) {
      if (__builtin_expect(!fine, 0)) {
        if (examine(fine, scalars, sums, stats)) return;
      }
      if (has_dx) store_dx(scalars);
      if (there_) store_outputs(scalars);
      return;
    }
    fold_terms(scalars);
    if (__builtin_expect(__syncthreads_or(!fine), 0)) {
      if (examine(fine, scalars, sums, stats)) has_dx = false;
      __syncthreads();
    }
    if constexpr (kRows == Rows::kMany) grid.wait();
    add_terms();
    if (has_dx) store_dx(scalars);
    if constexpr (kRows == Rows::kMany) add_partials();
  }

 private:
  __device__ int column(int j) const {
    return first_ + (j * launch_.row_threads + team_.position) * kE;
  }
  __device__ int64_t offset(RowTensor tensor) const {
    if constexpr (kForm != Form::kAny) return static_cast<int64_t>(row_) * launch_.strides[tensor];
    return row_offset<false>(rest_, tensor, row_);
  }

  // A unit of the row; the last one instead of those behind it, where gamma is 0.
  __device__ uint4 load(const T* data, RowTensor tensor, int j) const {
    const T* row = data + offset(tensor);
    if constexpr (kForm != Form::kAny) {
      return *reinterpret_cast<const uint4*>(row + min(column(j), launch_.problem.cols - kE));
    } else {
      T values[kE];
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        values[e] = column(j) + e < columns_ ? row[column(j) + e] : T(0.0f);
      }
      return reinterpret_cast<const uint4&>(values);
    }
  }
  template <class U>
  __device__ void store(U* row, int j, const float (&values)[kE]) const {
    if constexpr (kForm != Form::kAny) {
      if (column(j) < columns_) *reinterpret_cast<uint4*>(row + column(j)) = pack<U>(values);
    } else {
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        if (column(j) + e < columns_) row[column(j) + e] = narrow<U>(values[e]);
      }
    }
  }

  // Nobody waits here for one before asking for the other.
  __device__ RowStats load_statistics() const {
    RowStats stats;
    if (launch_.problem.statistics == RowStatistics::kFromX) return stats;
    if constexpr (kForm == Form::kAny) return load_stats<false>(rest_, row_);
    if (!kRms && launch_.mean != nullptr) stats.mean = launch_.mean[offset(kRowMean)];
    stats.spread = launch_.spread[offset(kRowSpread)];
    return stats;
  }

  // Zeros behind the last column, ones where there is none.
  static constexpr int kGammas = kForm == Form::kFloatGamma ? 2 : 1;
  using GammaUnit = uint4[kGammas];
  __device__ void load_gamma(GammaUnit& gamma, int j) const {
    if constexpr (kForm != Form::kAny) load_gamma_units(gamma, j);
  }
  __device__ void load_gamma_units(GammaUnit& gamma, int j) const {
    using G = std::conditional_t<kForm == Form::kFloatGamma, float, T>;
    const bool in = column(j) < columns_;
    const auto* from =
        reinterpret_cast<const uint4*>(static_cast<const G*>(launch_.gamma) + column(j));
    const G ones[2] = {narrow<G>(1), narrow<G>(1)};
    const uint32_t other = in ? reinterpret_cast<const uint32_t&>(ones) : 0;
#pragma unroll
    for (int i = 0; i < kGammas; ++i) {
      gamma[i] = in && launch_.gamma != nullptr ? from[i] : uint4{other, other, other, other};
    }
  }
  __device__ void widen_gamma(int j, const GammaUnit& gamma) {
    if constexpr (kForm == Form::kPlain) {
      unpack<T>(gamma[0], gamma_[j]);
    } else if constexpr (kForm == Form::kFloatGamma) {
      std::memcpy(gamma_[j], &gamma, sizeof(gamma));
    } else {
      const GammaInMemory values = {rest_};
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        gamma_[j][e] = column(j) + e < columns_ ? values[column(j) + e] : 0;
      }
    }
  }

  __device__ void store_dx(const RowScalars& scalars) const {
    T* row = static_cast<T*>(launch_.dx) + offset(kRowDx);
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      float dx[kE];
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        dx[e] = scalars.dx(dy_[j][e] * scalars.scale, gamma_[j][e], centred_[j][e]);
      }
      if (!kRms && __builtin_expect(launch_.problem.statistics == RowStatistics::kXHatStd, 0)) {
#pragma unroll
        for (int e = 0; e < kE; ++e) dx[e] *= scalars.factor;
      }
      store(row, j, dx);
    }
  }

  // Of the only row.
  __device__ void store_outputs(const RowScalars& scalars) const {
    auto* dgamma = static_cast<T*>(launch_.outputs[0].data);
    auto* dbeta = static_cast<T*>(launch_.outputs[1].data);
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      float terms[kE];
#pragma unroll
      for (int e = 0; e < kE; ++e) terms[e] = dy_[j][e] * scalars.scale * centred_[j][e];
      if (dgamma != nullptr) store(dgamma, j, terms);
      if (!kRms && dbeta != nullptr) store(dbeta, j, dy_[j]);
    }
  }

  // Where a thread has 4 columns' terms: neighbours side by side.
  __device__ float4* place(int sum) const {
    const int threads = blockDim.x * blockDim.y;
    return fold_ + sum * threads + threadIdx.y * blockDim.x + threadIdx.x;
  }
  __device__ void fold_terms(const RowScalars& scalars) const {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float* x = &centred_[q * 4 / kE][q * 4 % kE];
      const float* dy = &dy_[q * 4 / kE][q * 4 % kE];
      *place(q) = {dy[0] * scalars.scale * x[0], dy[1] * scalars.scale * x[1],
                   dy[2] * scalars.scale * x[2], dy[3] * scalars.scale * x[3]};
      if constexpr (!kRms) *place(4 + q) = {dy[0], dy[1], dy[2], dy[3]};
    }
  }
  __device__ static float4 add(const float4& a, const float4& b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  }
  // Calls visit(i, partial, c) for the sums of this thread's part: each team has some of the
  // block's, 4 columns from c on.
  template <class Visit>
  __device__ void for_sums(const Visit& visit) const {
    constexpr int kQuads = kE / 4;
#pragma unroll 1
    for (int i = threadIdx.y; i < kSums; i += launch_.teams) {
      const int c = column(i % 4 / kQuads) + i % kQuads * 4;
      float* row = launch_.partials + (2l * blockIdx.y + i / 4) * launch_.padded;
      if (c < columns_) visit(i, reinterpret_cast<float4*>(row + c), c);
    }
  }
  // The sums of the block's rows, 4 in turn.
  __device__ void add_terms() const {
    const int rows =
        min(launch_.teams, launch_.problem.rows - static_cast<int>(blockIdx.y * blockDim.y));
    for_sums([&](int i, float4* partial, int c) {
      const float4* terms = place(i) - threadIdx.y * blockDim.x;
      float4 sums[4] = {};
#pragma unroll 1
      for (int row = 0; row < rows; row += 4) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (row + k < rows) sums[k] = add(sums[k], terms[(row + k) * blockDim.x]);
        }
      }
      sums[0] = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
      if constexpr (kRows == Rows::kMany) {
        put_partial(partial, sums[0]);
      } else {
        put(launch_.outputs[i / 4], c, sums[0]);
      }
    });
  }

  __device__ void put(const Output& output, int c, const float4& values) const {
    if (output.data == nullptr) return;
    with_type(output.dtype, [&](auto type) {
      using Out = decltype(type);
      Out* to = static_cast<Out*>(output.data) + c * output.stride;
      const int left = launch_.problem.cols - c;
      to[0] = narrow<Out>(values.x);
      if (left > 1) to[output.stride] = narrow<Out>(values.y);
      if (left > 2) to[2 * output.stride] = narrow<Out>(values.z);
      if (left > 3) to[3 * output.stride] = narrow<Out>(values.w);
    });
  }

  // The sums of all blocks, 4 columns to a thread; the threads that share them are added over the
  // lanes of a warp and then over the warps.
  __device__ void add_partials() const {
    const int threads = blockDim.x * blockDim.y;
    const int thread = threadIdx.y * blockDim.x + threadIdx.x, lane = thread % 32;
    const int items = launch_.items, all = (kRms ? 1 : 2) * launch_.padded / 4;
    const int blocks = gridDim.x * gridDim.y, step = threads / items;
    float4* warps = fold_ + kSums * threads;  // others may still read the terms
#pragma unroll 1
    for (int first = (blockIdx.y * gridDim.x + blockIdx.x) * items; first < all;
         first += blocks * items) {
      const int item = first + thread % items, which = 4 * item >= launch_.padded ? 1 : 0;
      const int c = 4 * item - which * launch_.padded;
      const bool in = item < all && c < launch_.problem.cols;
      const auto* terms = reinterpret_cast<const float4*>(launch_.partials) + item;
      float4 sums = {};
#pragma unroll 1
      for (int group = in ? thread / items : launch_.groups; group < launch_.groups;
           group += step) {
        sums = add(sums, await_partial(terms + group * (launch_.padded / 2)));
      }
#pragma unroll 1
      for (int mask = 16; mask >= items; mask /= 2) {
        sums = add(sums, {__shfl_xor_sync(~0u, sums.x, mask), __shfl_xor_sync(~0u, sums.y, mask),
                          __shfl_xor_sync(~0u, sums.z, mask), __shfl_xor_sync(~0u, sums.w, mask)});
      }
      if (lane < items) warps[thread / 32 * items + lane] = sums;
      __syncthreads();
      if (thread < items) {
        sums = warps[thread];
#pragma unroll 4
        for (int warp = 1; warp < threads / 32; ++warp) {
          sums = add(sums, warps[warp * items + thread]);
        }
        if (in) put(launch_.outputs[which], c, sums);
      }
      __syncthreads();
    }
  }

  // As RowsWork's: true for rows that were done here, in float64. All threads of the cluster come.
  __device__ bool examine(bool fine, const RowScalars& scalars, double2 sums, RowStats stats) {
    const bool needs = !fine && !is_served<kRms>(launch_, scalars, sums);
    const bool zero =
        (kRms || sums.x == 0) && sums.y == 0 && is_near_1<26>(scalars.scale * scalars.factor);
    bool any = false;
#pragma unroll
    for (int i = 0; i < kUnits * kE; ++i) any |= dy_[i / kE][i % kE] != 0;
    const bool gradient = team_.any(any && columns_ > 0);
    const bool wide = needs && (gradient || !zero);
    const bool own = wide && columns_ > 0;
    const GammaInMemory gamma = {rest_, first_};
    const WideRow<T, kUnits> row(rest_, team_, row_);
    const WideScalars exact = wide_scalars(rest_, team_, gamma, row, stats, own);
    if (!own) return wide;
      // The parameters first, since dx may lie on x or dy.
#pragma unroll 1
    for (int i = 0; i < kUnits * kE; ++i) {
      const int c = column(i / kE) + i % kE;
      if (c >= columns_) continue;
      const float dy = widen(row.dy[c - first_]);
      const auto term = static_cast<float>(dy * exact.normalizer.x_hat(widen(row.x[c - first_])));
      if constexpr (kRows != Rows::kOne) {
        reinterpret_cast<float*>(place(i / 4))[i % 4] = term;
      } else {
        auto* dgamma = static_cast<T*>(launch_.outputs[0].data);
        auto* dbeta = static_cast<T*>(launch_.outputs[1].data);
        if (dgamma != nullptr) dgamma[c] = narrow<T>(term);
        if (dbeta != nullptr) dbeta[c] = narrow<T>(dy);
      }
    }
    if (launch_.dx != nullptr) write_wide_dx(row, gamma, exact);
    return true;
  }

  const SmallLaunch& launch_;
  const RowsLaunch& rest_;
  SmallTeam team_;
  float4* const fold_;
  const int row_;  // the last one if there are fewer
  const bool there_;
  const int first_;    // column of this thread's part of the row
  const int columns_;  // behind its last one; 0 for a thread that has none
  float centred_[kUnits][kE], dy_[kUnits][kE], gamma_[kUnits][kE];
};

template <class T, bool kRms, Form kForm, Rows kRows>
__global__ void __launch_bounds__(32 * SmallDeal::kMostWarps, 1)
    small_kernel(const __grid_constant__ SmallLaunch launch,
                 const __grid_constant__ RowsLaunch rest) {
#if NORMGRAD_HOPPER
  SmallWork<T, kRms, kForm, kRows>(launch, rest, dynamic_shared<char>()).run();
#endif
}

using SmallKernel = void (*)(SmallLaunch, RowsLaunch);

template <class T, bool kRms, Form kForm>
SmallKernel find_kernel(Rows rows) {
  return rows == Rows::kOne   ? &small_kernel<T, kRms, kForm, Rows::kOne>
         : rows == Rows::kFew ? &small_kernel<T, kRms, kForm, Rows::kFew>
                              : &small_kernel<T, kRms, kForm, Rows::kMany>;
}
template <class T, bool kRms>
SmallKernel find_kernel(Form form, Rows rows) {
  if (form == Form::kAny) return find_kernel<T, kRms, Form::kAny>(rows);
  if constexpr (sizeof(T) == 2) {
    if (form == Form::kFloatGamma) return find_kernel<T, kRms, Form::kFloatGamma>(rows);
  }
  return find_kernel<T, kRms, Form::kPlain>(rows);
}

// In the order of the workspace.
struct SmallWorkspace {
  SmallWorkspace(const RowsProblem& problem, const SmallDeal& deal)
      : padded(divide_up(problem.cols, 32) * 32),
        partials(deal.groups > 1 ? sizeof(float) * 2 * deal.groups * padded : 0),
        offsets(problem.lead_rank > 1 ? sizeof(int64_t) * kRowTensors * problem.rows : 0) {}
  int64_t padded;
  size_t partials, offsets;
};

Status launch_small(const RowsProblem& problem, const Buffers& buffers, void* workspace,
                    void* stream) {
  const SmallDeal deal = small_deal_of(problem);
  const SmallWorkspace layout(problem, deal);
  RowsLaunch rest;
  rest.problem = problem;
  rest.buffers = buffers;
  rest.geometry = geometry_of(problem);
  rest.per_col = 1 / static_cast<double>(problem.cols);
  auto* offsets = reinterpret_cast<int64_t*>(static_cast<char*>(workspace) + layout.partials);
  NORMGRAD_RETURN_IF_ERROR(locate_rows(rest, offsets, stream));

  const bool units = problem.cols % static_cast<int64_t>(16 / size_of(problem.dtype)) == 0;
  const auto in_units = [&](const Vector& vector, const void* data) {
    return !vector.present ||
           (units && vector.stride == 1 && reinterpret_cast<uintptr_t>(data) % 16 == 0);
  };
  const RowStatistics statistics = problem.statistics;
  const Vector &gamma = problem.gamma, &dgamma = problem.dgamma, &dbeta = problem.dbeta;
  const bool plain =
      units && problem.lead_rank <= 1 && has_aligned_rows(problem, problem.x, buffers.x) &&
      has_aligned_rows(problem, problem.dy, buffers.dy) &&
      (!problem.has_dx || has_aligned_rows(problem, problem.dx, buffers.dx)) &&
      in_units(gamma, buffers.gamma) &&
      (!gamma.present || gamma.dtype == problem.dtype || gamma.dtype == DType::kF32) &&
      problem.spread.dtype == DType::kF32 &&
      (!has_mean(statistics) || problem.mean.dtype == DType::kF32) &&
      std::all_of(rest.strides, rest.strides + kRowTensors,
                  [](int64_t stride) { return stride == static_cast<int>(stride); });
  const bool direct = problem.rows == 1 && in_units(dgamma, buffers.dgamma) &&
                      in_units(dbeta, buffers.dbeta) &&
                      (!dgamma.present || dgamma.dtype == problem.dtype) &&
                      (!dbeta.present || dbeta.dtype == problem.dtype);

  SmallLaunch launch = {};
  launch.x = buffers.x;
  launch.dy = buffers.dy;
  for (int i = 0; i < kRowTensors; ++i) launch.strides[i] = static_cast<int>(rest.strides[i]);
  launch.row_threads = deal.row_threads;
  launch.part_stride = deal.threads * deal.cluster / deal.parts;
  launch.part_columns = rest.geometry.block_units * static_cast<int>(16 / size_of(problem.dtype));
  launch.problem = {static_cast<int>(problem.rows), static_cast<int>(problem.cols), statistics,
                    problem.eps};
  launch.gamma = gamma.present ? buffers.gamma : nullptr;
  launch.mean = has_mean(statistics) ? static_cast<const float*>(buffers.mean) : nullptr;
  launch.spread = static_cast<const float*>(buffers.spread);
  launch.per_col = rest.per_col;
  launch.cluster = deal.cluster;
  launch.teams = deal.teams;
  launch.slots = deal.slots;
  launch.fold_at = static_cast<int>(sizeof(Barrier) * 2 +
                                    sizeof(RowSums) * 2 * deal.teams * deal.slots * deal.cluster);
  launch.dx = problem.has_dx ? buffers.dx : nullptr;
  launch.partials = static_cast<float*>(workspace);
  launch.groups = deal.groups;
  launch.padded = static_cast<int>(layout.padded);
  launch.items = deal.items;
  if (dgamma.present) launch.outputs[0] = {buffers.dgamma, dgamma.stride, dgamma.dtype};
  if (dbeta.present) launch.outputs[1] = {buffers.dbeta, dbeta.stride, dbeta.dtype};

  const bool rms = is_rms(statistics);
  const Rows rows = direct ? Rows::kOne : deal.groups == 1 ? Rows::kFew : Rows::kMany;
  const int threads = deal.threads * deal.teams;
  Launch shape;
  shape.grid = dim3(static_cast<unsigned>(deal.cluster), static_cast<unsigned>(deal.groups));
  shape.block = dim3(static_cast<unsigned>(deal.threads), static_cast<unsigned>(deal.teams));
  shape.shared = static_cast<size_t>(launch.fold_at) +
                 (rows == Rows::kOne ? 0 : sizeof(float4) * threads * (rms ? 4 : 8)) +
                 (rows == Rows::kMany ? sizeof(float4) * threads / 32 * deal.items : 0);
  shape.cluster = static_cast<unsigned>(deal.cluster);
  shape.cooperative = rows == Rows::kMany;
  return with_type(problem.dtype, [&](auto type) {
    using T = decltype(type);
    const Form form = !plain ? Form::kAny
                      : sizeof(T) == 2 && gamma.present && gamma.dtype == DType::kF32
                          ? Form::kFloatGamma
                          : Form::kPlain;
    const auto kernel = rms ? find_kernel<T, true>(form, rows) : find_kernel<T, false>(form, rows);
    return launch_kernel(kernel, shape, stream, launch, rest);
  });
}

}  // namespace

Status choose_small_rows(const RowsProblem& problem, Kernel<RowsProblem>& kernel) {
  NORMGRAD_RETURN_IF_ERROR(check_hopper("rows_small"));
  const SmallDeal deal = small_deal_of(problem);
  if (deal.groups == 0) {
    return {Code::kUnsupportedDevice, "rows_small: expected fewer rows, or shorter ones"};
  }
  if (deal.blocks() > multiprocessors()) {
    return {Code::kUnsupportedDevice, "rows_small: expected a GPU of 128 multiprocessors"};
  }
  const SmallWorkspace layout(problem, deal);
  kernel = {"rows_small", layout.partials + layout.offsets, &launch_small};
  return {};
}

}  // namespace normgrad::cuda
