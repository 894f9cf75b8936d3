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
#include "cpu/pages.hpp"
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

// gamma and beta as float32, padded, then the moments of a row's segments.
struct RowsForwardWorkspace {
  int64_t padded, segments;

  explicit RowsForwardWorkspace(const RowsForwardProblem& problem)
      : padded((problem.cols + 63) / 64 * 64), segments((problem.cols + kSegment - 1) / kSegment) {}

  size_t bytes() const {
    return static_cast<size_t>(2 * padded) * sizeof(float) +
           static_cast<size_t>(segments) * sizeof(Moments);
  }
  float* gamma(void* memory) const { return static_cast<float*>(memory); }
  float* beta(void* memory) const { return gamma(memory) + padded; }
  Moments* moments(void* memory) const { return reinterpret_cast<Moments*>(beta(memory) + padded); }
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
                 const float* beta, Moments* moments)
      : problem_(problem),
        buffers_(buffers),
        gamma_(gamma),
        beta_(beta),
        moments_(moments),
        segments_((problem.cols + kSegment - 1) / kSegment),
        streaming_(can_stream(problem.has_y, buffers.y, problem.y) &&
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
  using Batch = ForwardBatch<T>;
  using Cursor = RowCursor<RowsForwardProblem>;
  static constexpr int64_t kSize = sizeof(T);
  static constexpr int64_t kLine = 64;

  int64_t row_bytes() const {
    const int tensors =
        1 + problem_.has_residual + problem_.has_y + problem_.has_h + problem_.has_x_hat;
    return tensors * problem_.cols * kSize;
  }
  int64_t bytes() const { return problem_.rows * row_bytes(); }
  bool writes() const { return problem_.has_y || problem_.has_x_hat; }

  // Past the caches: nothing that is in them anyway, and only from cache lines' beginnings on.
  bool can_stream(bool wanted, void* data, const RowsShape::LeadStrides& strides) const {
    if (!wanted) return true;
    bool can = data != buffers_.x && data != buffers_.residual &&
               reinterpret_cast<uintptr_t>(data) % kLine == 0;
    for (int axis = 0; axis < problem_.lead_rank; ++axis) {
      can = can && strides[axis] * kSize % kLine == 0;
    }
    const Written output = written(data, strides, problem_.rows * problem_.cols * kSize);
    return stored_past_caches(output, bytes()) && can;
  }

  bool shares_columns() const {
    return segments_ > 1 && threads() > 1 &&
           (problem_.rows < threads() || row_bytes() > core_cache_bytes() * 3 / 4);
  }

  // look_at(batch) for rows [begin, end), as many at a time as stay in the first-level cache.
  template <class LookAt>
  void for_batches(int64_t begin, int64_t end, const LookAt& look_at) const {
    const int64_t height = std::clamp<int64_t>((1 << 14) / row_bytes(), 1, kMostRows);
    Cursor cursor(problem_, begin);
    Batch batch;
    for (int64_t row = begin; row < end; row += batch.count) {
      locate(cursor, HWY_MIN(height, end - row), batch);
      look_at(batch);
    }
  }

  void locate(Cursor& cursor, int64_t count, Batch& batch) const {
    const int last = HWY_MAX(problem_.lead_rank - 1, 0);
    batch.count = count;
    batch.x_ahead = count * problem_.x[last];
    batch.residual_ahead = count * problem_.residual[last];
    for (int64_t done = 0; done < count;) {
      const int64_t rows = HWY_MIN(cursor.even_rows(), count - done);
      const auto place = [&](bool there, auto* data, int64_t offset, const auto& strides,
                             auto* to) {
        for (int64_t k = 0; there && k < rows; ++k) {
          to[done + k] = data + offset + k * strides[last];
        }
      };
      const auto mark = [&](int64_t offset, const auto& strides, int64_t* to) {
        for (int64_t k = 0; k < rows; ++k) to[done + k] = offset + k * strides[last];
      };
      place(true, static_cast<const T*>(buffers_.x), cursor.x, problem_.x, batch.x);
      place(problem_.has_residual, static_cast<const T*>(buffers_.residual), cursor.residual,
            problem_.residual, batch.residual);
      place(problem_.has_h, static_cast<T*>(buffers_.h), cursor.h, problem_.h, batch.h);
      place(problem_.has_y, static_cast<T*>(buffers_.y), cursor.y, problem_.y, batch.y);
      place(problem_.has_x_hat, static_cast<T*>(buffers_.x_hat), cursor.x_hat, problem_.x_hat,
            batch.x_hat);
      if (problem_.mean.present) mark(cursor.mean, problem_.mean.lead, batch.mean_at);
      if (problem_.spread.present) mark(cursor.spread, problem_.spread.lead, batch.spread_at);
      cursor.skip(rows);
      done += rows;
    }
  }

  // The second look begins with the last segment: it is the one that is surely in cache.
  void rows(int64_t begin, int64_t end) const {
    for_batches(begin, end, [&](Batch& batch) {
      Moments moments[kMostRows];
      for (int64_t i = 0; i < segments_; ++i) {
        sum_segment(batch, i);
        for (int64_t k = 0; k < batch.count; ++k) moments[k] += segment_moments(batch, k, i);
      }
      finish(moments, batch);
      for (int64_t i = segments_ - 1; writes() && i >= 0; --i) write_segment(batch, i);
    });
  }

  // Rows of several segments, so long that a batch has one.
  void by_columns() const {
    for_batches(0, problem_.rows, [&](Batch& batch) {
      parallel_for(segments_, row_bytes(), [&](int64_t i) {
        Batch mine = batch;
        sum_segment(mine, i);
        moments_[i] = segment_moments(mine, 0, i);
      });
      Moments total;
      for (int64_t i = 0; i < segments_; ++i) total += moments_[i];
      finish(&total, batch);
      if (!writes()) return;
      const auto write = [&](int64_t i) {
        write_segment(batch, i);
        hwy::FlushStream();
      };
      parallel_for(segments_, row_bytes(), write, Order::kBackward);
    });
  }

  int64_t segment_end(int64_t index) const {
    return HWY_MIN((index + 1) * kSegment, problem_.cols);
  }

  void sum_segment(Batch& batch, int64_t index) const {
    const auto sum = problem_.has_residual
                         ? (problem_.rms ? sum_rows<T, true, true> : sum_rows<T, true, false>)
                         : (problem_.rms ? sum_rows<T, false, true> : sum_rows<T, false, false>);
    sum(batch, index * kSegment, segment_end(index), problem_.cols);
  }
  // RMSNorm's pivot and sum are 0, and so is its mean.
  Moments segment_moments(const Batch& batch, int64_t k, int64_t index) const {
    const auto count = static_cast<double>(segment_end(index) - index * kSegment);
    return {count, {batch.pivot[k], batch.sum[k], batch.squares[k]}};
  }

  // From the moments: the statistics, which are written, and the scalars of the second look.
  void finish(const Moments* moments, Batch& batch) const {
    for (int64_t k = 0; k < batch.count; ++k) {
      batch.mean[k] = moments[k].mean;
      batch.variance[k] = moments[k].variance();
    }
    make_scalars(batch, problem_.eps);
    const auto save = [&](const RowsShape::RowScalar& scalar, void* data, const int64_t* at,
                          const auto& value) {
      if (!scalar.present) return;
      with_type(scalar.dtype, [&](auto type) {
        auto* values = static_cast<decltype(type)*>(data);
        for (int64_t k = 0; k < batch.count; ++k) values[at[k]] = narrow<decltype(type)>(value(k));
      });
    };
    save(problem_.mean, buffers_.saved_mean, batch.mean_at,
         [&](int64_t k) { return batch.mean[k]; });
    save(problem_.spread, buffers_.saved_spread, batch.spread_at,
         [&](int64_t k) { return spread(batch, k); });
  }
  double spread(const Batch& batch, int64_t k) const {
    switch (problem_.statistics) {
      case Statistics::kMeanRstd:
        return batch.variance[k] + problem_.eps == 0 ? 0 : batch.r[k];
      case Statistics::kMeanVariance:
        return batch.variance[k];
      default:
        return std::sqrt(batch.variance[k] + problem_.eps);
    }
  }
  void write_segment(const Batch& batch, int64_t index) const {
    const int64_t begin = index * kSegment, end = segment_end(index);
    const auto write =
        problem_.has_residual && !problem_.has_h
            ? (streaming_ ? write_rows<T, true, true> : write_rows<T, true, false>)
            : (streaming_ ? write_rows<T, false, true> : write_rows<T, false, false>);
    if (!batch.any_wide) {
      return write(batch, 0, batch.count, gamma_, beta_, begin, end, problem_.cols);
    }
    for (int64_t k = 0; k < batch.count; ++k) {
      if (is_wide(batch, k)) {
        write_wide(batch, k, begin, end);
      } else {
        write(batch, k, k + 1, gamma_, beta_, begin, end, problem_.cols);
      }
    }
  }

  HWY_NOINLINE void write_wide(const Batch& batch, int64_t k, int64_t begin, int64_t end) const {
    const Normalizer n = Normalizer::from_variance(batch.mean[k], batch.variance[k] + problem_.eps);
    for (int64_t c = begin; c < end; ++c) {
      const double h = problem_.has_h ? widen(batch.h[k][c]) : h_at(batch, k, c);
      const double x_hat = n.x_hat(h);
      const int64_t at = pair_position<T>(c, problem_.cols);
      const double y = x_hat * static_cast<double>(gamma_[at]) + static_cast<double>(beta_[at]);
      if (problem_.has_x_hat) batch.x_hat[k][c] = narrow<T>(x_hat);
      if (problem_.has_y) batch.y[k][c] = narrow<T>(y);
    }
  }

  const RowsForwardProblem& problem_;
  const Buffers& buffers_;
  const float *const gamma_, *const beta_;
  Moments* const moments_;  // of the segments of a row that threads share
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
    RowsForwardRun<T>(problem, buffers, gamma, beta, w.moments(memory)).run();
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
