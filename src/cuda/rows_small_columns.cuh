// dgamma and dbeta of a small LayerNorm or RMSNorm: a thread has a unit of columns of some rows, a
// block all or a part of the rows.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/rows_small_deal.hpp"
#include "cuda/rows_small_launch.cuh"

namespace normgrad::cuda {

// Terms are added in fp32 over the rows of a thread, then over the lanes that have the same
// columns, up to 24 and 2 additions; over warps and blocks in float64.
//
// The terms of dgamma are dy * r * (x - mean), with r times 2^48: if r is within 2^20 of 1, no dy
// makes them vanish. Rows with other r are added in float64, and so is every row where a sum is not
// finite: some terms are beyond 2^80, or not finite themselves.
template <class T, bool kRms, bool kPlain>
class SmallColumns {
 public:
  static constexpr int kE = kUnit<T>;
  static constexpr int kKinds = kRms ? 1 : 2;

  __device__ SmallColumns(const SmallLaunch& launch, const RowsLaunch& rest, char* memory)
      : launch_(launch),
        rest_(rest),
        data_{launch, rest},
        part_(blockIdx.x % launch.parts),
        tile_(blockIdx.x / launch.parts),
        slices_(SmallDeal::kThreads / launch.lanes),
        column_(column_of(threadIdx.x % launch.lanes)),
        items_(kKinds * kQuads * launch.lanes),
        barrier_(reinterpret_cast<Barrier*>(memory)),
        parts_(reinterpret_cast<double*>(memory + 16)),
        fold_(reinterpret_cast<float4*>(memory + 16 + parts_bytes(launch.lanes, launch.parts))) {}

  __host__ __device__ static int parts_bytes(int lanes, int parts) {
    return parts > 1 ? parts * kKinds * kE * lanes * static_cast<int>(sizeof(double)) : 0;
  }
  // A float per kind and column of a tile from each warp that has it.
  static int shared_bytes(const SmallDeal& deal) {
    const int warps = SmallDeal::kThreads / std::max(32, deal.lanes);
    return 16 + parts_bytes(deal.lanes, deal.parts) +
           warps * kKinds * kE * deal.lanes * static_cast<int>(sizeof(float));
  }

  __device__ void run() {
    if (tile_ >= launch_.tiles) return;
    const int step = slices_ * kRows;
    int first = part_ * step;
    Rows rows;
    load(rows, first);
    start_exchange();
    if (is_from_x()) wait_for_previous_kernel();
#pragma unroll 1
    for (;;) {
      add(rows, first);
      first += launch_.parts * step;
      if (first >= launch_.problem.rows) break;
      load(rows, first);
    }
    fold();
    if (launch_.parts > 1) cluster_wait();
    __syncthreads();
#pragma unroll 1
    for (int item = threadIdx.x; item < items_; item += SmallDeal::kThreads) finish(item);
  }

 private:
  static constexpr int kRows = SmallDeal::kRowsAtOnce;
  static constexpr int kQuads = kE / 4;
  static constexpr float kUp = 0x1p48f;

  struct Rows {
    uint4 x[kRows], dy[kRows];
    RowStats stats[kRows];
  };
  struct Sums {  // of four columns
    double of[4] = {};
  };

  __device__ int column_of(int lane) const { return (tile_ * launch_.lanes + lane) * kE; }
  __device__ int row_of(int first, int k) const {
    return first + k * slices_ + static_cast<int>(threadIdx.x) / launch_.lanes;
  }
  __device__ bool is_from_x() const {
    return kRms && launch_.problem.statistics == RowStatistics::kFromX;
  }

  __device__ void load(Rows& rows, int first) const {
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int row = row_of(first, k);
      rows.x[k] = rows.dy[k] = {0, 0, 0, 0};
      if (row >= launch_.problem.rows) continue;
      rows.x[k] = data_.load(kRowX, row, column_, launch_.problem.cols);
      rows.dy[k] = data_.load(kRowDy, row, column_, launch_.problem.cols);
      rows.stats[k] = data_.statistics(row);
    }
  }
  __device__ RowScales scales_of(int row, RowStats stats) const {
    if (!is_from_x()) return make_scales(launch_, stats);
    return make_scales(0, quick_rsqrt(launch_.mean_squares[row] + launch_.problem.eps), 1,
                       launch_.per_col);
  }
  __device__ Normalizer normalizer(int row) const {
    return normalizer_of(rest_.problem, data_.statistics(row),
                         is_from_x() ? launch_.mean_squares[row] : 0);
  }

  __device__ void add(const Rows& rows, int first) {
    int wide = 0;
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int row = row_of(first, k);
      if (row >= launch_.problem.rows) continue;
      const RowScales scales = scales_of(row, rows.stats[k]);
      const bool served = scales.moderate != 0;
      if (!served) wide |= 1 << k;
      const float scale = served ? scales.scale * kUp : 0, mean = served ? scales.mean : 0;
      float x[kE], dy[kE];
      unpack<T>(rows.x[k], x);
      unpack<T>(rows.dy[k], dy);
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        dgamma_[e] = fmaf(dy[e] * scale, kRms ? x[e] : x[e] - mean, dgamma_[e]);
        if constexpr (!kRms) dbeta_[e] += dy[e];
      }
    }
    if (__builtin_expect(wide != 0, 0)) add_wide(wide, first);
  }
  __device__ void add_wide(int wide, int first) {
#pragma unroll 1
    for (int k = 0; k < kRows; ++k) {
      if ((wide >> k & 1) == 0) continue;
      const int row = row_of(first, k);
      const Normalizer n = normalizer(row);
      float x[kE], dy[kE];
      unpack<T>(data_.load(kRowX, row, column_, launch_.problem.cols), x);
      unpack<T>(data_.load(kRowDy, row, column_, launch_.problem.cols), dy);
#pragma unroll
      for (int e = 0; e < kE; ++e) dgamma_[e] += static_cast<float>(dy[e] * n.x_hat(x[e]) * kUp);
    }
  }

  // To shared memory, four columns of a kind at a time: an item.
  __device__ void fold() {
    const int lanes = launch_.lanes, lane = threadIdx.x % lanes;
#pragma unroll 1
    for (int mask = 16; mask >= lanes; mask /= 2) {
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        dgamma_[e] += __shfl_xor_sync(~0u, dgamma_[e], mask);
        if constexpr (!kRms) dbeta_[e] += __shfl_xor_sync(~0u, dbeta_[e], mask);
      }
    }
    if (threadIdx.x % 32 >= lanes) return;
    float4* to = fold_ + threadIdx.x / max(lanes, 32) * items_ + lane;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      to[q * lanes] = four(dgamma_, q);
      if constexpr (!kRms) to[(kQuads + q) * lanes] = four(dbeta_, q);
    }
  }
  __device__ static float4 four(const float* sums, int q) {
    return {sums[4 * q], sums[4 * q + 1], sums[4 * q + 2], sums[4 * q + 3]};
  }

  __device__ void finish(int item) const {
    const int kind = item >= items_ / kKinds ? 1 : 0, lanes = launch_.lanes;
    const int column = column_of(item % lanes) + item / lanes % kQuads * 4;
    Sums sums;
#pragma unroll 4
    for (int i = item; i < SmallDeal::kThreads / max(lanes, 32) * items_; i += items_) {
      const float4 terms = fold_[i];
      sums.of[0] += terms.x;
      sums.of[1] += terms.y;
      sums.of[2] += terms.z;
      sums.of[3] += terms.w;
    }
    if (kind == 0) {
      double zero = 0;
#pragma unroll
      for (double& sum : sums.of) {
        sum *= 1 / kUp;
        zero += sum - sum;
      }
      if (__builtin_expect(!(zero == 0), 0)) sums = wide_sums(column);
    }
    if (launch_.parts > 1 && !exchange(item, sums)) return;
    put(launch_.outputs[kind], column, sums);
  }
  // Of the block's rows.
  __device__ Sums wide_sums(int column) const {
    Sums sums;
    const int step = slices_ * kRows;
#pragma unroll 1
    for (int first = part_ * step; first < launch_.problem.rows; first += launch_.parts * step) {
#pragma unroll 1
      for (int row = first; row < min(first + step, launch_.problem.rows); ++row) {
        const Normalizer n = normalizer(row);
        const T* x = static_cast<const T*>(launch_.x) + data_.offset(kRowX, row);
        const T* dy = static_cast<const T*>(launch_.dy) + data_.offset(kRowDy, row);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int c = min(column + i, launch_.problem.cols - 1);
          sums.of[i] += widen(dy[c]) * n.x_hat(widen(x[c]));
        }
      }
    }
    return sums;
  }

  // The first block of a cluster gets the sums of all and adds them up.
  __device__ void start_exchange() const {
    if (launch_.parts == 1) return;
    if (threadIdx.x == 0) {
      init_barrier(barrier_, 1);
      fence_barrier_init();
      if (part_ == 0) arrive_expecting(barrier_, parts_bytes(launch_.lanes, launch_.parts));
    }
    cluster_arrive();
  }
  __device__ bool exchange(int item, Sums& sums) const {
    const SharedAddress barrier = remote_address(barrier_, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      send(remote_address(place(part_, item, i), 0), sums.of[i], barrier);
    }
    if (part_ != 0) return false;
    wait(barrier_, 0);
    sums = {};
#pragma unroll 4
    for (int part = 0; part < launch_.parts; ++part) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.of[i] += *place(part, item, i);
    }
    return true;
  }
  __device__ double* place(int part, int item, int i) const {
    return parts_ + (part * 4 + i) * items_ + item;
  }

  __device__ void put(const SmallOutput& output, int column, const Sums& sums) const {
    if (output.data == nullptr) return;
    with_type(output.dtype, [&](auto type) {
      using Out = decltype(type);
      Out* to = static_cast<Out*>(output.data) + column * output.stride;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + i < launch_.problem.cols) {
          to[i * output.stride] = narrow<Out>(static_cast<float>(sums.of[i]));
        }
      }
    });
  }

  const SmallLaunch& launch_;
  const RowsLaunch& rest_;
  const SmallData<T, kPlain> data_;
  const int part_, tile_;
  const int slices_;
  const int column_;  // the first one of this thread
  const int items_;   // of the block
  Barrier* const barrier_;
  double* const parts_;
  float4* const fold_;
  float dgamma_[kE] = {}, dbeta_[kRms ? 1 : kE] = {};
};

}  // namespace normgrad::cuda
