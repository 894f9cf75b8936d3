// LayerNorm and RMSNorm on the CPU:
//
//   h     = x + residual, rounded to the type of x
//   x_hat = (h - mean) * r,  r = 1 / sqrt(variance + eps);  RMSNorm has mean = 0
//   y     = x_hat * gamma + beta
//
// A row of x and residual comes from memory once, for its sums and h; the second look
// (row_forward-inl.h) finds it in cache and writes y and x_hat. Per element 1 or 2 reads and as
// many writes as there are outputs. Sums are float64, elements float32: 5 roundings.
//
// Order of the sums: segments of 8192 columns, which meet one after the other (moments.hpp).
// Threads take rows; where these are few, or one does not fit in a core's cache, they share the
// segments of a row instead. The bits are the same.
#include <algorithm>
#include <cmath>

#include "cpu/caches.hpp"
#include "cpu/moments.hpp"
#include "cpu/normalizer.hpp"
#include "cpu/parallel.hpp"
#include "cpu/row_cursor.hpp"
#include "cpu/row_sums.hpp"
#include "cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rows_forward.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "cpu/io-inl.h"
#include "cpu/row_forward-inl.h"
#include "cpu/row_params-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#ifndef NORMGRAD_CPU_ROWS_FORWARD_ONCE_
#define NORMGRAD_CPU_ROWS_FORWARD_ONCE_
namespace normgrad::cpu {

// gamma and beta as float32, padded, then the sums of a row's segments.
struct RowsForwardWorkspace {
  int64_t padded, segments;

  explicit RowsForwardWorkspace(const RowsForwardProblem& problem)
      : padded((problem.cols + 63) / 64 * 64), segments((problem.cols + kSegment - 1) / kSegment) {}

  size_t bytes() const {
    return static_cast<size_t>(2 * padded) * sizeof(float) +
           static_cast<size_t>(segments) * sizeof(ShiftedSums);
  }
  float* gamma(void* memory) const { return static_cast<float*>(memory); }
  float* beta(void* memory) const { return gamma(memory) + padded; }
  ShiftedSums* sums(void* memory) const {
    return reinterpret_cast<ShiftedSums*>(beta(memory) + padded);
  }
};

size_t rows_forward_workspace(const RowsForwardProblem& problem) {
  return RowsForwardWorkspace(problem).bytes();
}

}  // namespace normgrad::cpu
#endif  // NORMGRAD_CPU_ROWS_FORWARD_ONCE_

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

template <class T>
class RowsForwardRun {
 public:
  RowsForwardRun(const RowsForwardProblem& problem, const Buffers& buffers, const float* gamma,
                 const float* beta, ShiftedSums* sums)
      : problem_(problem),
        buffers_(buffers),
        gamma_(gamma),
        beta_(beta),
        sums_(sums),
        segments_((problem.cols + kSegment - 1) / kSegment),
        streaming_(bytes() > streaming_bytes() && can_stream(problem.has_y, buffers.y, problem.y) &&
                   can_stream(problem.has_x_hat, buffers.x_hat, problem.x_hat)) {}

  void run() const {
    if (shares_columns()) return by_columns();
    // Tasks of some 64 KiB: fewer would not be worth the dealing out.
    const int64_t height = std::clamp<int64_t>((1 << 16) / row_bytes(), 1, 1024);
    parallel_for((problem_.rows + height - 1) / height, bytes(), [&](int64_t task) {
      rows(task * height, HWY_MIN((task + 1) * height, problem_.rows));
      hwy::FlushStream();
    });
  }

 private:
  using Row = ForwardRow<T>;
  using Cursor = RowCursor<RowsForwardProblem>;
  static constexpr int64_t kSize = sizeof(T);
  static constexpr int64_t kLine = 64;

  // The scalars of a row.
  struct RowResult {
    Normalizer normalizer;
    RowScale scale;
    bool wide;  // float32 elements do not serve
  };

  int64_t row_bytes() const {
    const int tensors =
        1 + problem_.has_residual + problem_.has_y + problem_.has_h + problem_.has_x_hat;
    return tensors * problem_.cols * kSize;
  }
  int64_t bytes() const { return problem_.rows * row_bytes(); }
  bool writes() const { return problem_.has_y || problem_.has_x_hat; }

  // Past the caches: nothing that is in them anyway, and only from cache lines' beginnings on.
  bool can_stream(bool wanted, const void* data, const RowsShape::LeadStrides& strides) const {
    if (!wanted) return true;
    bool can = data != buffers_.x && data != buffers_.residual &&
               reinterpret_cast<uintptr_t>(data) % kLine == 0;
    for (int axis = 0; axis < problem_.lead_rank; ++axis) {
      can = can && strides[axis] * kSize % kLine == 0;
    }
    return can;
  }

  bool shares_columns() const {
    return segments_ > 1 && threads() > 1 &&
           (problem_.rows < threads() || row_bytes() > core_cache_bytes() * 3 / 4);
  }

  Row locate(const Cursor& at, const Cursor& next) const {
    const auto input = [](const void* data, int64_t offset, bool present) {
      return present ? static_cast<const T*>(data) + offset : nullptr;
    };
    const auto output = [](void* data, int64_t offset, bool present) {
      return present ? static_cast<T*>(data) + offset : nullptr;
    };
    return {input(buffers_.x, at.x, true),
            input(buffers_.residual, at.residual, problem_.has_residual),
            output(buffers_.h, at.h, problem_.has_h),
            output(buffers_.y, at.y, problem_.has_y),
            output(buffers_.x_hat, at.x_hat, problem_.has_x_hat),
            input(buffers_.x, next.x, true),
            input(buffers_.residual, next.residual, problem_.has_residual)};
  }

  // look_at(row, cursor) for rows [begin, end).
  template <class LookAt>
  void for_rows(int64_t begin, int64_t end, const LookAt& look_at) const {
    Cursor cursor(problem_, begin), next = cursor;
    for (int64_t k = begin; k < end; ++k) {
      next.next();
      look_at(locate(cursor, k + 1 < end ? next : cursor), cursor);
      cursor.next();
    }
  }

  // From the last segment back: it is the one that is surely in cache.
  void rows(int64_t begin, int64_t end) const {
    for_rows(begin, end, [&](const Row& row, const Cursor& cursor) {
      Moments moments;
      for (int64_t i = 0; i < segments_; ++i) add(sum_segment(row, i), i, moments);
      const RowResult result = finish(moments, cursor);
      if (!writes()) return;
      for (int64_t i = segments_ - 1; i >= 0; --i) write_segment(row, result, i);
    });
  }

  void by_columns() const {
    for_rows(0, problem_.rows, [&](const Row& row, const Cursor& cursor) {
      parallel_for(segments_, row_bytes(), [&](int64_t i) { sums_[i] = sum_segment(row, i); });
      Moments moments;
      for (int64_t i = 0; i < segments_; ++i) add(sums_[i], i, moments);
      const RowResult result = finish(moments, cursor);
      if (!writes()) return;
      parallel_for(segments_, row_bytes(), [&](int64_t i) {
        write_segment(row, result, segments_ - 1 - i);
        hwy::FlushStream();
      });
    });
  }

  int64_t segment_end(int64_t index) const {
    return HWY_MIN((index + 1) * kSegment, problem_.cols);
  }

  ShiftedSums sum_segment(const Row& row, int64_t index) const {
    const int64_t begin = index * kSegment, end = segment_end(index);
    const double pivot = problem_.rms ? 0 : pivot_of(h_at(row, begin));
    if (problem_.has_residual) return sum_row<T, true>(row, pivot, begin, end, problem_.cols);
    return sum_row<T, false>(row, pivot, begin, end, problem_.cols);
  }
  // h before it is written, which may be to where x is.
  static double h_at(const Row& row, int64_t c) {
    if (row.residual == nullptr) return widen(row.x[c]);
    return widen(narrow<T>(static_cast<float>(widen(row.x[c])) +
                           static_cast<float>(widen(row.residual[c]))));
  }

  // RMSNorm's squares are not shifted.
  void add(const ShiftedSums& sums, int64_t index, Moments& moments) const {
    const auto count = static_cast<double>(segment_end(index) - index * kSegment);
    if (!problem_.rms) {
      moments += Moments(count, sums);
    } else {
      moments.count += count;
      moments.squares += sums.squares;
    }
  }

  // Writes the statistics of the row at the cursor.
  RowResult finish(const Moments& moments, const Cursor& cursor) const {
    const double variance = moments.variance();
    RowResult result;
    result.normalizer = Normalizer::from_variance(moments.mean, variance + problem_.eps);
    const Normalizer& n = result.normalizer;
    if (problem_.mean.present) {
      store_value(problem_.mean.dtype, buffers_.saved_mean, cursor.mean, n.mean);
    }
    if (problem_.spread.present) {
      const double spread = problem_.statistics == Statistics::kMeanRstd ? n.r
                            : problem_.statistics == Statistics::kMeanVariance
                                ? variance
                                : std::sqrt(variance + problem_.eps);
      store_value(problem_.spread.dtype, buffers_.saved_spread, cursor.spread, spread);
    }
    const auto mean = static_cast<float>(n.mean);
    result.scale = {mean, static_cast<float>(n.mean - mean), static_cast<float>(n.r)};
    // Where eps is most of the denominator, x_hat may be too small for float32 and y not.
    const bool small = variance != 0 && !(variance * n.r * n.r >= 0x1p-120);
    result.wide = !is_safe(n.r) || !(n.mean == 0 || is_safe(n.mean)) || small;
    return result;
  }

  // Where there is h, it is read: the first look may have written it over x or residual.
  void write_segment(const Row& first_row, const RowResult& result, int64_t index) const {
    Row row = first_row;
    if (row.h != nullptr) {
      row.x = row.h;
      row.residual = nullptr;
    }
    const int64_t begin = index * kSegment, end = segment_end(index);
    if (result.wide) return write_wide(row, result.normalizer, begin, end);
    const auto write = row.residual == nullptr
                           ? (streaming_ ? write_row<T, false, true> : write_row<T, false, false>)
                           : (streaming_ ? write_row<T, true, true> : write_row<T, true, false>);
    write(row, result.scale, gamma_, beta_, begin, end, problem_.cols);
  }

  HWY_NOINLINE void write_wide(const Row& row, const Normalizer& n, int64_t begin,
                               int64_t end) const {
    for (int64_t c = begin; c < end; ++c) {
      const double x_hat = n.x_hat(h_at(row, c));
      const int64_t at = pair_position<T>(c, problem_.cols);
      if (row.x_hat != nullptr) row.x_hat[c] = narrow<T>(x_hat);
      if (row.y != nullptr) {
        row.y[c] =
            narrow<T>(x_hat * static_cast<double>(gamma_[at]) + static_cast<double>(beta_[at]));
      }
    }
  }

  const RowsForwardProblem& problem_;
  const Buffers& buffers_;
  const float *const gamma_, *const beta_;
  ShiftedSums* const sums_;  // of the segments of a row that threads share
  const int64_t segments_;
  const bool streaming_;  // y and x_hat are stored past the caches
};

Status launch_rows_forward(const RowsForwardProblem& problem, const Buffers& buffers, void* memory,
                           void*) {
  const DefaultFloatEnvironment environment;
  const RowsForwardWorkspace w(problem);
  with_type(problem.dtype, [&](auto type) {
    using T = decltype(type);
    const auto params = [&](const Vector& vector, const void* data, float absent, float* to) {
      return make_params<T>(vector, data, absent, problem.cols, w.padded, to);
    };
    const float* gamma = params(problem.gamma, buffers.gamma, 1, w.gamma(memory));
    const float* beta = params(problem.beta, buffers.beta, 0, w.beta(memory));
    RowsForwardRun<T>(problem, buffers, gamma, beta, w.sums(memory)).run();
  });
  return {};
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normgrad::cpu {

HWY_EXPORT(launch_rows_forward);

Launch<RowsForwardProblem> rows_forward_launch(int64_t target) {
  return HWY_DISPATCH_TABLE(launch_rows_forward)[table_index(target)];
}

}  // namespace normgrad::cpu
#endif  // HWY_ONCE
