// dgamma and dbeta of a small LayerNorm or RMSNorm: a thread has a unit of columns of some rows, a
// block all or a part of the rows.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/rows_small_deal.hpp"
#include "cuda/rows_small_launch.cuh"

namespace normgrad::cuda {

// Terms are added in fp32, over the rows of a thread, over every fourth of the threads with the
// same columns, over the four: 16, 8 and 2 additions at most. Then over the blocks, in float64.
//
// The terms of dgamma are dy * r * (x - mean), with r times 2^48: if r is within 2^20 of 1, no dy
// makes them vanish. If it is not, or terms are beyond 2^80, the sum is not finite, and made again
// in float64.
template <class T, bool kRms, bool kPlain>
class SmallColumns {
 public:
  static constexpr int kE = kUnit<T>;
  static constexpr int kKinds = kRms ? 1 : 2;
  static constexpr int kLanes = SmallDeal::kLanes, kSlices = SmallDeal::kSlices;
  static constexpr int kColumns = kLanes * kE;  // of the block
  static constexpr int kItems = kKinds * kColumns;

  __device__ SmallColumns(const SmallLaunch& launch, const RowsLaunch& rest, char* memory)
      : launch_(launch),
        rest_(rest),
        data_{launch, rest},
        part_(blockIdx.x & ((1 << launch.part_bits) - 1)),
        tile_(blockIdx.x >> launch.part_bits),
        barrier_(reinterpret_cast<Barrier*>(memory)),
        parts_(reinterpret_cast<double*>(memory + 16)),
        fold_(reinterpret_cast<float*>(memory + 16 + parts_bytes(1 << launch.part_bits))) {}

  // A sum from each part, and a term from each thread, for each kind and column.
  __host__ __device__ static int parts_bytes(int parts) {
    return parts > 1 ? parts * kItems * static_cast<int>(sizeof(double)) : 0;
  }
  static int shared_bytes(const SmallDeal& deal) {
    return 16 + parts_bytes(deal.parts) + kSlices * kItems * static_cast<int>(sizeof(float));
  }

  __device__ void run() {
    if (tile_ >= launch_.tiles) return;
    start_exchange();
#pragma unroll 1
    for (int first = part_ * kStep; first < launch_.problem.rows;
         first += kStep << launch_.part_bits) {
      add_rows(first);
    }
    fold();
    if (launch_.part_bits > 0) cluster_wait();
    __syncthreads();
    if (threadIdx.x < kItems) finish(threadIdx.x);
  }

 private:
  static constexpr int kRows = SmallDeal::kRowsAtOnce, kStep = kSlices * kRows;
  static constexpr float kUp = 0x1p48f;

  __device__ bool is_from_x() const {
    return kRms && launch_.problem.statistics == RowStatistics::kFromX;
  }

  // Rows that are not there are zeros, with r = 1.
  __device__ void add_rows(int first) {
    const int row = first + static_cast<int>(threadIdx.x) / kLanes;
    const int column = tile_ * kColumns + static_cast<int>(threadIdx.x) % kLanes * kE;
    const bool from_x = is_from_x();
    uint4 x[kRows], dy[kRows];
    StatsBits stats[kRows];
    float mean[kRows], r[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      x[k] = dy[k] = {0, 0, 0, 0};
      mean[k] = 0;
      r[k] = 1;
      if (row + k * kSlices >= launch_.problem.rows) continue;
      x[k] = data_.load(kRowX, row + k * kSlices, column, launch_.problem.cols);
      dy[k] = data_.load(kRowDy, row + k * kSlices, column, launch_.problem.cols);
      if (!from_x) stats[k] = data_.ask(row + k * kSlices);
    }
    if (from_x) {
      wait_for_previous_kernel();
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        if (row + k * kSlices < launch_.problem.rows) r[k] = launch_.scales[row + k * kSlices];
      }
    } else {
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        if (row + k * kSlices >= launch_.problem.rows) continue;
        const RowStats values = data_.values(stats[k]);
        mean[k] = kRms ? 0 : values.mean;
        r[k] = values.spread;
      }
    }
    if (!launch_.has_scales) {
      const float4 scales = scales_of(launch_, {r[0], r[1], r[2], r[3]});
      r[0] = scales.x, r[1] = scales.y, r[2] = scales.z, r[3] = scales.w;
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) add(x[k], dy[k], mean[k], r[k]);
  }
  __device__ void add(const uint4& x_unit, const uint4& dy_unit, float mean, float r) {
    const bool served = r == 0 || (fabsf(r) >= 0x1p-20f && fabsf(r) <= 0x1p20f);
    const float scale = served ? r * kUp : NAN;
    float x[kE], dy[kE];
    unpack<T>(x_unit, x);
    unpack<T>(dy_unit, dy);
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      dgamma_[e] = fmaf(dy[e] * scale, kRms ? x[e] : x[e] - mean, dgamma_[e]);
      if constexpr (!kRms) dbeta_[e] += dy[e];
    }
  }
  // What x - mean is multiplied by, where that is not given. Out of the way of the others: code
  // comes from memory, too, 16 KB in a microsecond.
  __device__ __noinline__ static float4 scales_of(const SmallLaunch& launch, float4 spreads) {
    for (float* each : {&spreads.x, &spreads.y, &spreads.z, &spreads.w}) {
      *each = launch.problem.statistics == RowStatistics::kXHatStd
                  ? (*each == 0 ? 0.0f : 1.0f)
                  : scale_from(*each + launch.problem.eps);
    }
    return spreads;
  }

  // By thread, kind and column.
  __device__ void fold() const {
    float* to = fold_ + threadIdx.x / kLanes * kItems + threadIdx.x % kLanes * kE;
#pragma unroll
    for (int e = 0; e < kE; e += 4) {
      store_four(to + e, dgamma_ + e);
      if constexpr (!kRms) store_four(to + kColumns + e, dbeta_ + e);
    }
  }
  __device__ static void store_four(float* to, const float* sums) {
    *reinterpret_cast<float4*>(to) = {sums[0], sums[1], sums[2], sums[3]};
  }

  // A column of one kind.
  __device__ void finish(int item) const {
    const int kind = item / kColumns, column = tile_ * kColumns + item % kColumns;
    float sums[4] = {};
#pragma unroll 2
    for (int slice = 0; slice < kSlices; slice += 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] += fold_[(slice + i) * kItems + item];
    }
    double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    if (kind == 0) {
      sum *= 1 / kUp;
      if (__builtin_expect(!(sum - sum == 0), 0)) sum = wide_sum(launch_, rest_, part_, column);
    }
    if (launch_.part_bits > 0 && !exchange(item, sum)) return;
    if (column >= launch_.problem.cols) return;
    const SmallOutput& output = launch_.outputs[kind];
    if (output.data == nullptr) return;
    if (output.dtype == dtype_of<T>() && !output.accumulate) {
      static_cast<T*>(output.data)[column * output.stride] = narrow<T>(static_cast<float>(sum));
    } else {
      output.store(column, sum);
    }
  }

  // A column of dgamma over the rows of a part.
  __device__ __noinline__ static double wide_sum(const SmallLaunch& launch, const RowsLaunch& rest,
                                                 int part, int column) {
    const SmallData<T, kPlain> data = {launch, rest};
    const bool from_x = kRms && launch.problem.statistics == RowStatistics::kFromX;
    const int rows = launch.problem.rows, c = min(column, launch.problem.cols - 1);
    double sum = 0;
#pragma unroll 1
    for (int first = part * kStep; first < rows; first += kStep << launch.part_bits) {
#pragma unroll 1
      for (int row = first; row < min(first + kStep, rows); ++row) {
        const Normalizer n =
            normalizer_of(rest.problem, from_x ? RowStats{} : load_stats<false>(rest, row),
                          from_x ? launch.mean_squares[row] : 0);
        const T* x = static_cast<const T*>(launch.x) + data.offset(kRowX, row);
        const T* dy = static_cast<const T*>(launch.dy) + data.offset(kRowDy, row);
        sum += widen(dy[c]) * n.x_hat(widen(x[c]));
      }
    }
    return sum;
  }

  // The first block of a cluster gets the sums of all and adds them up.
  __device__ void start_exchange() const {
    if (launch_.part_bits == 0) return;
    if (threadIdx.x == 0) {
      init_barrier(barrier_, 1);
      fence_barrier_init();
      if (part_ == 0) arrive_expecting(barrier_, parts_bytes(1 << launch_.part_bits));
    }
    cluster_arrive();
  }
  __device__ bool exchange(int item, double& sum) const {
    send(remote_address(parts_ + part_ * kItems + item, 0), sum, remote_address(barrier_, 0));
    if (part_ != 0) return false;
    wait(barrier_, 0);
    sum = 0;
#pragma unroll 2
    for (int part = 0; part < 1 << launch_.part_bits; ++part) sum += parts_[part * kItems + item];
    return true;
  }

  const SmallLaunch& launch_;
  const RowsLaunch& rest_;
  const SmallData<T, kPlain> data_;
  const int part_, tile_;
  Barrier* const barrier_;
  double* const parts_;
  float* const fold_;
  float dgamma_[kE] = {}, dbeta_[kRms ? 1 : kE] = {};
};

}  // namespace normgrad::cuda
