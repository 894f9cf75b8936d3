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
  static constexpr int64_t kSize = sizeof(T);
  static constexpr int64_t kLine = 64;

  // Rows that are looked at together, so that their scalars do not wait for each other.
  struct Batch {
    int64_t count = 0;
    Row rows[kMostRows];
    RowOffsets<RowsForwardProblem> offsets[kMostRows];
    Moments moments[kMostRows];
    Normalizer normalizers[kMostRows];
    bool any_wide = false, wide[kMostRows];  // float32 elements do not serve
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

  // look_at(batch) for rows [begin, end), some of which stay in the first-level cache.
  template <class LookAt>
  void for_batches(int64_t begin, int64_t end, const LookAt& look_at) const {
    const int64_t height = std::clamp<int64_t>((1 << 14) / row_bytes(), 1, kMostRows);
    RowCursor<RowsForwardProblem> cursor(problem_, begin);
    Batch batch;
    for (int64_t row = begin; row < end; row += batch.count) {
      batch.count = HWY_MIN(height, end - row);
      for (int64_t k = 0; k < batch.count; ++k) {
        batch.offsets[k] = cursor;
        batch.rows[k] = locate(cursor, height);
        batch.moments[k] = {};
        cursor.next();
      }
      look_at(batch);
    }
  }
  Row locate(const RowOffsets<RowsForwardProblem>& at, int64_t ahead) const {
    const int last = HWY_MAX(problem_.lead_rank - 1, 0);
    Row row = {};
    row.x = static_cast<const T*>(buffers_.x) + at.x;
    row.next_x = row.x + ahead * problem_.x[last];
    if (problem_.has_residual) {
      row.residual = static_cast<const T*>(buffers_.residual) + at.residual;
      row.next_residual = row.residual + ahead * problem_.residual[last];
    }
    if (problem_.has_h) row.h = static_cast<T*>(buffers_.h) + at.h;
    if (problem_.has_y) row.y = static_cast<T*>(buffers_.y) + at.y;
    if (problem_.has_x_hat) row.x_hat = static_cast<T*>(buffers_.x_hat) + at.x_hat;
    return row;
  }

  // The second look begins with the last segment: it is the one that is surely in cache.
  void rows(int64_t begin, int64_t end) const {
    for_batches(begin, end, [&](Batch& batch) {
      for (int64_t i = 0; i < segments_; ++i) {
        sum_segment(batch.rows, batch.count, i);
        for (int64_t k = 0; k < batch.count; ++k) add(batch.rows[k].sums, i, batch.moments[k]);
      }
      finish(batch);
      for (int64_t i = segments_ - 1; writes() && i >= 0; --i) write_segment(batch, i);
    });
  }

  // Rows of several segments: one at a time.
  void by_columns() const {
    for_batches(0, problem_.rows, [&](Batch& batch) {
      parallel_for(segments_, row_bytes(), [&](int64_t i) {
        Row row = batch.rows[0];
        sum_segment(&row, 1, i);
        sums_[i] = row.sums;
      });
      for (int64_t i = 0; i < segments_; ++i) add(sums_[i], i, batch.moments[0]);
      finish(batch);
      if (!writes()) return;
      parallel_for(segments_, row_bytes(), [&](int64_t i) {
        write_segment(batch, segments_ - 1 - i);
        hwy::FlushStream();
      });
    });
  }

  int64_t segment_end(int64_t index) const {
    return HWY_MIN((index + 1) * kSegment, problem_.cols);
  }

  void sum_segment(Row* rows, int64_t count, int64_t index) const {
    const auto sum = problem_.has_residual ? sum_rows<T, true> : sum_rows<T, false>;
    sum(rows, count, problem_.rms, index * kSegment, segment_end(index), problem_.cols);
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

  // From the moments: the statistics, which are written, and the scalars of the second look, which
  // reads h where there is one: the first may have written it over x or residual.
  void finish(Batch& batch) const {
    batch.any_wide = false;
    for (int64_t k = 0; k < batch.count; ++k) {
      const double mean = batch.moments[k].mean, variance = batch.moments[k].variance();
      const Normalizer n = batch.normalizers[k] =
          Normalizer::from_variance(mean, variance + problem_.eps);
      const auto rounded_mean = static_cast<float>(mean);
      Row& row = batch.rows[k];
      row.scale = {rounded_mean, static_cast<float>(mean - rounded_mean), static_cast<float>(n.r)};
      // Where eps is most of the denominator, x_hat may be too small for float32 and y not.
      const bool small = variance != 0 && !(variance * n.r * n.r >= 0x1p-120);
      batch.wide[k] = !is_safe(n.r) || !(mean == 0 || is_safe(mean)) || small;
      batch.any_wide = batch.any_wide || batch.wide[k];
      if (row.h != nullptr) {
        row.x = row.h;
        row.residual = nullptr;
      }
    }
    const auto save = [&](const RowsShape::RowScalar& scalar, void* data,
                          int64_t RowOffsets<RowsForwardProblem>::*offset, const auto& value) {
      if (!scalar.present) return;
      for (int64_t k = 0; k < batch.count; ++k) {
        store_value(scalar.dtype, data, batch.offsets[k].*offset, value(k));
      }
    };
    save(problem_.mean, buffers_.saved_mean, &RowOffsets<RowsForwardProblem>::mean,
         [&](int64_t k) { return batch.moments[k].mean; });
    save(problem_.spread, buffers_.saved_spread, &RowOffsets<RowsForwardProblem>::spread,
         [&](int64_t k) { return spread(batch, k); });
  }
  double spread(const Batch& batch, int64_t k) const {
    const double variance = batch.moments[k].variance();
    switch (problem_.statistics) {
      case Statistics::kMeanRstd:
        return batch.normalizers[k].r;
      case Statistics::kMeanVariance:
        return variance;
      default:
        return std::sqrt(variance + problem_.eps);
    }
  }

  void write_segment(const Batch& batch, int64_t index) const {
    const int64_t begin = index * kSegment, end = segment_end(index);
    const auto write =
        problem_.has_residual && !problem_.has_h
            ? (streaming_ ? write_rows<T, true, true> : write_rows<T, true, false>)
            : (streaming_ ? write_rows<T, false, true> : write_rows<T, false, false>);
    if (!batch.any_wide) {
      return write(batch.rows, batch.count, gamma_, beta_, begin, end, problem_.cols);
    }
    for (int64_t k = 0; k < batch.count; ++k) {
      if (batch.wide[k]) {
        write_wide(batch.rows[k], batch.normalizers[k], begin, end);
      } else {
        write(batch.rows + k, 1, gamma_, beta_, begin, end, problem_.cols);
      }
    }
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
