// The scalars of a row: from its statistics and sums, in float64, rounded once.
#pragma once

#include "cuda/normalizer.cuh"
#include "cuda/ptx.cuh"
#include "cuda/rows_launch.cuh"
#include "cuda/types.cuh"
#include "normgrad/status.hpp"

namespace normgrad::cuda {

// dx = r * dy * gamma - c1 - (x - mean) * c2. dgamma adds up scale * dy * (x - mean): the scale is
// r, or 1 where x is x_hat already.
struct RowScalars {
  float mean = 0, r = 0, scale = 0, c1 = 0, c2 = 0;

  __device__ float dx(float dy, float gamma, float centred) const {
    return fmaf(-centred, c2, fmaf(dy * r, gamma, -c1));
  }
};

// The offset of a row in one of the tensors, in elements. kPlain: there is one leading axis, as
// nearly always. The offsets of others were made before, since divisions would cost the kernel
// dearly in registers.
enum RowTensor { kRowX, kRowDy, kRowDx, kRowMean, kRowSpread, kRowDh, kRowTensors };
template <bool kPlain>
__device__ int64_t row_offset(const RowsLaunch& launch, RowTensor tensor, int64_t row) {
  if (!kPlain && launch.offsets != nullptr) return launch.offsets[row * kRowTensors + tensor];
  return row * launch.strides[tensor];
}

// Sets the strides of a launch or, if there are several leading axes, queues a kernel that writes
// the offsets of all rows: 8 * kRowTensors bytes for each.
Status locate_rows(RowsLaunch& launch, int64_t* offsets, void* stream);

constexpr bool has_mean(RowStatistics form) {
  return form == RowStatistics::kMeanRstd || form == RowStatistics::kMeanVariance;
}

// A row's statistics on their way.
struct StatsBits {
  Halves mean, spread;

  __device__ RowStats values(const RowsProblem& problem) const {
    return {mean.value(problem.mean.dtype), spread.value(problem.spread.dtype)};
  }
};
template <bool kPlain>
__device__ StatsBits stats_bits(const RowsLaunch& launch, int64_t row) {
  const RowsProblem& problem = launch.problem;
  StatsBits bits;
  if (has_mean(problem.statistics)) {
    bits.mean =
        Halves(problem.mean.dtype, launch.buffers.mean, row_offset<kPlain>(launch, kRowMean, row));
  }
  if (problem.statistics != RowStatistics::kFromX) {
    bits.spread = Halves(problem.spread.dtype, launch.buffers.spread,
                         row_offset<kPlain>(launch, kRowSpread, row));
  }
  return bits;
}
template <bool kPlain>
__device__ RowStats load_stats(const RowsLaunch& launch, int64_t row) {
  return stats_bits<kPlain>(launch, row).values(launch.problem);
}

// Whether a 16-bit number is the second one of its word.
__device__ inline bool is_second(const uint16_t* number) {
  return reinterpret_cast<uintptr_t>(number) % 4 != 0;
}

// On their way to shared memory, there after wait_for_copies, for received_stats. The mean of a
// form without one is not touched. Not into registers: a thread has six counters for all that it
// waits for, and it depended on little things whether loads that nobody needed yet were among them,
// 12 % of the time. A 16-bit number comes with its neighbour, if that is a row's, too.
template <bool kPlain>
__device__ void send_stats(const RowsLaunch& launch, int64_t row, RowStats& to) {
  const RowsProblem& problem = launch.problem;
  const auto send = [&](DType dtype, const void* data, RowTensor tensor, float& value) {
    const int64_t offset = row_offset<kPlain>(launch, tensor, row);
    if (dtype == DType::kF32) {
      copy_word_async(shared_address(&value), static_cast<const float*>(data) + offset);
      return;
    }
    const uint16_t* number = static_cast<const uint16_t*>(data) + offset;
    const bool second = is_second(number);
    const bool pair = (kPlain || launch.offsets == nullptr) && launch.strides[tensor] == 1 &&
                      (second ? row > 0 : row + 1 < problem.rows);
    if (pair) {
      copy_word_async(shared_address(&value), reinterpret_cast<const float*>(number - second));
    } else {
      value = __uint_as_float(static_cast<uint32_t>(*number) << (second ? 16 : 0));
    }
  };
  if (has_mean(problem.statistics))
    send(problem.mean.dtype, launch.buffers.mean, kRowMean, to.mean);
  send(problem.spread.dtype, launch.buffers.spread, kRowSpread, to.spread);
}

template <bool kPlain>
__device__ RowStats received_stats(const RowsLaunch& launch, int64_t row, const RowStats& sent) {
  const RowsProblem& problem = launch.problem;
  const auto receive = [&](DType dtype, const void* data, RowTensor tensor, float value) {
    if (dtype == DType::kF32) return value;
    const uint16_t* number =
        static_cast<const uint16_t*>(data) + row_offset<kPlain>(launch, tensor, row);
    const uint32_t word = __float_as_uint(value) >> (is_second(number) ? 16 : 0);
    const auto bits = static_cast<uint16_t>(word);
    return dtype == DType::kF16 ? widen(reinterpret_cast<const F16&>(bits))
                                : widen(reinterpret_cast<const BF16&>(bits));
  };
  RowStats stats;
  if (has_mean(problem.statistics)) {
    stats.mean = receive(problem.mean.dtype, launch.buffers.mean, kRowMean, sent.mean);
  }
  stats.spread = receive(problem.spread.dtype, launch.buffers.spread, kRowSpread, sent.spread);
  return stats;
}

// mean_square: of x, for the form that takes r from it.
__device__ inline Normalizer normalizer_of(const RowsProblem& problem, RowStats stats,
                                           double mean_square) {
  switch (problem.statistics) {
    case RowStatistics::kXHatStd:
      return Normalizer::from_std(stats.spread);
    case RowStatistics::kRstd:
    case RowStatistics::kMeanRstd:
      return Normalizer::from_rstd(stats.mean, stats.spread);
    case RowStatistics::kFromX:
      return Normalizer::from_variance(0, mean_square + problem.eps);
    default:
      return Normalizer::from_variance(stats.mean, stats.spread + problem.eps);
  }
}

// 1 / sqrt(value) and 1 / value to 44 bits and more, by Newton's method from the 22 bits that the
// hardware gives. What does not fit float32 becomes 0, Inf or NaN.
__device__ inline double quick_rsqrt(double value) {
  const double y = approximate_rsqrt(static_cast<float>(value));
  return y * fma(-0.5 * value * y, y, 1.5);
}
__device__ inline double quick_reciprocal(float value) {
  const double y = approximate_reciprocal(value);
  return y * fma(-static_cast<double>(value), y, 2.0);
}

// As float64's is_safe, cheaper: for values that were rounded to float32.
__device__ inline bool in_range(float value) {
  const float magnitude = fabsf(value);
  return magnitude >= 0x1p-100f && magnitude <= 0x1p100f;
}

// Whether a value lies in [2^-kBits, 2^kBits].
template <int kBits>
__device__ bool is_near_1(double value) {
  const uint32_t exponent = static_cast<uint32_t>(__double2hiint(value)) << 1;
  return exponent - ((1023u - kBits) << 21) < (2u * kBits << 21);
}

// Whether it lies in (-2^kBits, 2^kBits).
template <int kBits>
__device__ bool is_below(double value) {
  const uint32_t exponent = static_cast<uint32_t>(__double2hiint(value)) << 1;
  return exponent < ((1023u + kBits) << 21);
}

// Whether all rows of a tensor start at multiples of 16 bytes.
bool has_aligned_rows(const RowsProblem& problem, const RowsProblem::LeadStrides& strides,
                      const void* data);

__device__ inline RowScales make_scales(float mean, double r, double scale, double per_col,
                                        bool several = true) {
  return {mean,
          static_cast<float>(r),
          static_cast<float>(scale),
          several && is_near_1<20>(r) ? 1.0f : 0.0f,
          r * per_col,
          r * scale * scale * per_col};
}

template <class Launch>
__device__ RowScales make_scales(const Launch& launch, RowStats stats) {
  const RowStatistics form = launch.problem.statistics;
  const bool several = launch.problem.cols > 1 || is_rms(form);
  if (form == RowStatistics::kXHatStd) {
    return make_scales(0, quick_reciprocal(stats.spread), 1, launch.per_col, several);
  }
  double r = stats.spread;
  if (form == RowStatistics::kMeanVariance) r = quick_rsqrt(stats.spread + launch.problem.eps);
  return make_scales(stats.mean, r, r, launch.per_col, several);
}

// From the sums of g (RMSNorm: of x^2) and of g * (x - mean). False if float32 may not serve the
// row: then somebody has to look at it with care. Most rows show at once that all is well: sums
// within 2^40 of 1 and scales within 2^20 keep every product within 2^100.
template <bool kRms, class Launch>
__device__ bool make_scalars(const Launch& launch, RowScales scales, double2 sums,
                             RowScalars& scalars) {
  const bool from_x = kRms && launch.problem.statistics == RowStatistics::kFromX;
  if (from_x) {
    const double r = quick_rsqrt(sums.x * launch.per_col + launch.problem.eps);
    scales = make_scales(0, r, r, launch.per_col);
  }
  // A zero has no sign, whatever was added of columns that are not there.
  scalars = {scales.mean, scales.r, scales.scale,
             kRms ? 0 : static_cast<float>(sums.x * scales.c1) + 0.0f,
             static_cast<float>(sums.y * scales.c2) + 0.0f};
  const bool first = kRms ? !from_x || is_near_1<40>(sums.x) : is_below<40>(sums.x);
  return first & is_near_1<40>(sums.y) & (scales.moderate != 0);
}

// The same with care: whether float32 serves the row.
template <bool kRms, class Launch>
__device__ bool is_served(const Launch& launch, const RowScalars& scalars, double2 sums) {
  const double r = scalars.r, scale = scalars.scale, g_x = sums.y * launch.per_col;
  const double first = sums.x * launch.per_col;
  const double sum = (kRms ? 0 : fabs(first)) + fabs(scale * g_x);
  if (!kRms && launch.problem.cols == 1) return false;
  if (launch.problem.statistics == RowStatistics::kFromX && !is_safe(first)) return false;
  // dy * r stays in range, too, if dy is safe.
  return is_near_1<26>(r) && is_safe(g_x) && is_safe(sum) && is_safe(r * scale * sum);
}

}  // namespace normgrad::cuda
