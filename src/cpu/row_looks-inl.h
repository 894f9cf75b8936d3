// The two looks at the rows of a problem, block by block or column by column.
#if defined(NORMGRAD_CPU_ROW_LOOKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_ROW_LOOKS_INL_H_
#undef NORMGRAD_CPU_ROW_LOOKS_INL_H_
#else
#define NORMGRAD_CPU_ROW_LOOKS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/caches.hpp"
#include "cpu/column_tree-inl.h"
#include "cpu/normalizer.hpp"
#include "cpu/parallel.hpp"
#include "cpu/row_batch-inl.h"
#include "cpu/row_cursor.hpp"
#include "cpu/row_grads-inl.h"
#include "cpu/row_sums-inl.h"
#include "cpu/rows_workspace.hpp"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// Both looks at the rows of a problem. What the second look computes is behind pointers
// (GradKernels): the rest is compiled once for all sets of outputs.
template <class T, RowForm kForm, bool kFromX>
class RowsRun {
 public:
  using Batch = RowBatch<T>;

  RowsRun(const RowsProblem& problem, const Buffers& buffers, const RowsWorkspace& workspace)
      : problem_(problem),
        buffers_(buffers),
        workspace_(workspace),
        dx_(problem.has_dx),
        params_(problem.dbeta.present + (problem.dbeta.present || problem.dgamma.present)),
        kernels_(choose_kernels<T, kForm>(dx_, params_)) {
    const int64_t row_bytes = 2 * problem.cols * kSize;
    while (batch_rows_ < kMostRows && 2 * batch_rows_ * row_bytes <= kBatchBytes) batch_rows_ *= 2;
    const bool in_place = buffers.dx == buffers.x || buffers.dx == buffers.dy;
    if (3 * problem.rows * problem.cols * kSize > streaming_bytes()) {
      flow_ = dx_ && !in_place ? Flow::kStreaming : Flow::kPlain;
    }
    aligned_ = reinterpret_cast<uintptr_t>(buffers.dx) % kLine == 0;
    const int64_t unit = problem.cols < pair_lanes() ? lanes() * kSize : kLine;
    for (int axis = 0; axis < problem.lead_rank; ++axis) {
      aligned_ = aligned_ && problem.dx[axis] * kSize % unit == 0;
    }
  }

  // One aligned block of rows.
  void block(int64_t index) const {
    const ColumnTree& tree = workspace_.tree;
    const int64_t begin = index * tree.block_rows();
    const int64_t end = HWY_MIN(begin + tree.block_rows(), problem_.rows);
    float* chunk = workspace_.chunks + index * tree.width;
    RowCursor cursor(problem_, begin);
    Batch batches[2];
    Batch* batch = &batches[0];
    Batch* next = &batches[1];
    locate(cursor, HWY_MIN(batch_rows_, end - begin), *batch);
    int64_t row = begin, chunks = 0;
    while (row < end) {
      if ((row - begin) % kChunkRows == 0) {
        std::memset(chunk, 0, static_cast<size_t>(tree.width) * sizeof(float));
      }
      row += batch->count;
      locate(cursor, HWY_MIN(batch_rows_, end - row), *next);
      const Batch& soon = next->count == batch->count ? *next : *batch;
      first_look(*batch, soon);
      second_look(*batch, soon, chunk, 0, problem_.cols);
      if (row % kChunkRows == 0 || row == end) {
        if (params_ > 0) add_chunk(tree, index, chunks, chunk, 0, tree.width);
        ++chunks;
      }
      std::swap(batch, next);
    }
    if (params_ > 0) finish_block(tree, index, chunks, 0, tree.width);
    hwy::FlushStream();
  }

  // Whether threads should share columns rather than blocks of rows.
  bool shares_columns() const {
    const int64_t group_bytes = 2 * kGroup * problem_.cols * kSize;
    return problem_.cols > kSegment && threads() > 1 &&
           (workspace_.tree.blocks < threads() || group_bytes > core_cache_bytes() * 3 / 4);
  }

  // All rows, some at a time, their columns shared by the threads.
  void by_columns() const {
    const int64_t row_bytes = 2 * problem_.cols * kSize;
    int64_t rows_at_once = kGroup;
    while (rows_at_once < kMostRows &&
           2 * rows_at_once * row_bytes <= threads() * core_cache_bytes() / 2) {
      rows_at_once *= 2;
    }
    RowCursor cursor(problem_, 0);
    Batch batches[2];
    Batch* batch = &batches[0];
    Batch* next = &batches[1];
    locate(cursor, HWY_MIN(rows_at_once, problem_.rows), *batch);
    for (int64_t row = 0; row < problem_.rows;) {
      const int64_t end = row + batch->count;
      locate(cursor, HWY_MIN(rows_at_once, problem_.rows - end), *next);
      first_look_by_columns(*batch);
      const int64_t columns = batch->any_wide ? problem_.cols : kSegment;
      const Batch& soon = next->count == batch->count ? *next : *batch;
      parallel_for(tiles(problem_.cols, columns), batch->count * row_bytes, [&](int64_t tile) {
        const int64_t first = tile * columns;
        look_at_tile(*batch, soon, row, end, first, HWY_MIN(first + columns, problem_.cols));
      });
      row = end;
      std::swap(batch, next);
    }
  }

 private:
  static int64_t tiles(int64_t extent, int64_t tile) { return (extent + tile - 1) / tile; }

  void first_look_by_columns(Batch& batch) const {
    if (dx_ || kFromX) {
      const int64_t segments = tiles(problem_.cols, kSegment);
      parallel_for(
          batch.count * segments, batch.count * problem_.cols * 2 * kSize, [&](int64_t task) {
            const int64_t k = task / segments;
            workspace_.segments[task] = sum_segment<T, kForm, kFromX>(
                batch.x[k], batch.dy[k], workspace_.gamma,
                static_cast<float>(batch.measures.mean[k]), problem_.cols, task % segments);
          });
      for (int64_t k = 0; k < batch.count; ++k) {
        RowSums sums;
        for (int64_t i = 0; i < segments; ++i) {
          sums.first += workspace_.segments[k * segments + i].first;
          sums.g_x += workspace_.segments[k * segments + i].g_x;
        }
        batch.measures.first[k] = sums.first;
        batch.measures.g_x[k] = sums.g_x;
      }
    }
    finish_sums(batch);
  }

  // Columns [begin, end) of rows [row, row_end), which are a batch, and of the sums they complete.
  void look_at_tile(const Batch& batch, const Batch& next, int64_t row, int64_t row_end,
                    int64_t begin, int64_t end) const {
    const ColumnTree& tree = workspace_.tree;
    const int64_t block = row / tree.block_rows();
    const int64_t block_row = row - block * tree.block_rows();
    float* chunk = workspace_.chunks + block * tree.width;
    const int64_t padded_end = end == problem_.cols ? workspace_.padded : end;
    const auto each_sum = [&](const auto& run) {
      if (params_ > 0) run(begin, padded_end);
      if (params_ > 1) run(begin + workspace_.padded, padded_end + workspace_.padded);
    };
    if (block_row % kChunkRows == 0) {
      each_sum([&](int64_t from, int64_t to) { std::fill(chunk + from, chunk + to, 0.0f); });
    }
    second_look(batch, next, chunk, begin, end);
    const int64_t chunks = (block_row + batch.count + kChunkRows - 1) / kChunkRows;
    const bool block_ends = row_end == problem_.rows || row_end % tree.block_rows() == 0;
    each_sum([&](int64_t from, int64_t to) {
      if (row_end % kChunkRows == 0 || row_end == problem_.rows) {
        add_chunk(tree, block, chunks - 1, chunk, from, to);
      }
      if (block_ends) finish_block(tree, block, chunks, from, to);
    });
    hwy::FlushStream();
  }

  static constexpr int64_t kSize = sizeof(T);
  static constexpr int64_t kLine = 64;
  // x and dy of a batch stay in a first-level cache of 32 KiB.
  static constexpr int64_t kBatchBytes = 32 * 1024;

  void locate(RowCursor& cursor, int64_t count, Batch& batch) const {
    batch.count = HWY_MAX(count, 0);
    for (int64_t done = 0; done < count;) {
      const int64_t rows = HWY_MIN(cursor.even_rows(), count - done);
      const int last = HWY_MAX(problem_.lead_rank - 1, 0);
      const auto place = [&](auto* data, int64_t offset, const auto& strides, auto* to) {
        for (int64_t k = 0; k < rows; ++k) to[done + k] = data + offset + k * strides[last];
      };
      const auto read = [&](const RowsProblem::RowScalar& scalar, const void* data, int64_t offset,
                            double* to) {
        with_type(scalar.dtype, [&](auto type) {
          const auto* values = static_cast<const decltype(type)*>(data) + offset;
          for (int64_t k = 0; k < rows; ++k) to[done + k] = widen(values[k * scalar.lead[last]]);
        });
      };
      place(static_cast<const T*>(buffers_.x), cursor.x, problem_.x, batch.x);
      place(static_cast<const T*>(buffers_.dy), cursor.dy, problem_.dy, batch.dy);
      if (dx_) place(static_cast<T*>(buffers_.dx), cursor.dx, problem_.dx, batch.dx);
      if constexpr (!kFromX) {
        read(problem_.spread, buffers_.spread, cursor.spread, batch.measures.spread);
      }
      if constexpr (kForm == RowForm::kCentred) {
        read(problem_.mean, buffers_.mean, cursor.mean, batch.measures.mean);
      }
      cursor.skip(rows);
      done += rows;
    }
  }

  void first_look(Batch& batch, const Batch& next) const {
    if ((dx_ || kFromX) && has_short_rows()) {
      const bool cached = flow_ == Flow::kCached;
      sum_short_rows<T, kForm, kFromX>(batch, workspace_.gamma, problem_.cols,
                                       cached ? 0 : next.x[0] - batch.x[0],
                                       cached ? 0 : next.dy[0] - batch.dy[0]);
    } else if (dx_ || kFromX) {
      const auto sum = flow_ == Flow::kCached ? sum_rows<T, kForm, kFromX, false, false>
                                              : sum_rows<T, kForm, kFromX, true, false>;
      sum(batch, 0, batch.count, workspace_.gamma, problem_.cols, next.x[0] - batch.x[0]);
    }
    finish_sums(batch);
  }

  bool has_short_rows() const { return problem_.cols <= 2 * pair_lanes(); }

  void finish_sums(Batch& batch) const {
    batch.any_wide = false;
    if (make_scalars(batch.measures, problem_, dx_, batch.count, batch.scalars)) return;
    for (int64_t k = 0; k < batch.count; ++k) examine(batch, k);
  }

  // The scalars of a row that may need float64, and whether it does.
  HWY_NOINLINE void examine(Batch& batch, int64_t k) const {
    const RowMeasures& m = batch.measures;
    if ((kFromX && !is_safe(mean(m.first[k]))) || (dx_ && !is_safe(mean(m.g_x[k])))) {
      sum_rows<T, kForm, kFromX, false, true>(batch, k, k + 1, workspace_.gamma, problem_.cols, 0);
    }
    const double first = m.first[k];
    const Normalizer n = normalizer(m, k);
    const double c1 = is_rms(problem_.statistics) ? 0 : mean(first);
    const double c2 = n.scale * mean(m.g_x[k]);
    batch.scalars.set(k, {static_cast<float>(n.mean), static_cast<float>(n.scale),
                          static_cast<float>(n.r), static_cast<float>(c1), static_cast<float>(c2)});
    // A row of zeros in RMSNorm is a padded token: common, and float32 gets its zeros right.
    batch.wide_params[k] = n.zero ? !kFromX : !is_safe(n.scale);
    batch.wide_dx[k] = batch.wide_params[k] || !(n.zero || is_safe(n.r)) || !are_safe(c1, c2) ||
                       (dx_ && c1 == 0 && c2 == 0 && !n.zero && has_gradient(batch.dy[k]));
    batch.normalizers[k] = n;
    batch.any_wide = batch.any_wide || batch.wide_dx[k];
  }

  // Whether any g is not 0. If both means are, either it was a row of zeros, or g cancels, or every
  // dy * gamma was too small for float32.
  bool has_gradient(const T* dy) const {
    bool found = false;
    for (int64_t c = 0; c < problem_.cols; ++c) found |= is_nonzero(dy[c]) && gamma(c) != 0;
    return found;
  }

  float gamma(int64_t c) const { return workspace_.gamma[pair_position<T>(c, problem_.cols)]; }
  double mean(double sum) const { return sum / static_cast<double>(problem_.cols); }

  Normalizer normalizer(const RowMeasures& m, int64_t k) const {
    switch (problem_.statistics) {
      case RowStatistics::kXHatStd:
        return Normalizer::from_std(m.spread[k]);
      case RowStatistics::kRstd:
      case RowStatistics::kMeanRstd:
        return Normalizer::from_rstd(m.mean[k], m.spread[k]);
      case RowStatistics::kFromX:
        return Normalizer::from_variance(0, mean(m.first[k]) + problem_.eps);
      default:
        return Normalizer::from_variance(m.mean[k], m.spread[k] + problem_.eps);
    }
  }

  // Columns [begin, end); all of them if a row is wide.
  void second_look(const Batch& batch, const Batch& next, float* chunk, int64_t begin,
                   int64_t end) const {
    if (has_short_rows() && batch.count % kGroup == 0 && !batch.any_wide) {
      return short_rows(batch, chunk);
    }
    for (int64_t k = 0; k < batch.count; k += kGroup) {
      const int64_t count = HWY_MIN(kGroup, batch.count - k);
      const bool* wide = batch.wide_dx + k;
      if (batch.any_wide && std::find(wide, wide + count, true) != wide + count) {
        wide_group(batch, k, k + count, chunk);
      } else if (count == kGroup) {
        whole_group(group_of(batch, next, k, count), chunk, begin, end);
      } else {
        run(kernels_.part, group_of(batch, batch, k, count), chunk, begin, end);
      }
    }
  }

  void short_rows(const Batch& batch, float* chunk) const {
    const bool streams = flow_ == Flow::kStreaming && aligned_;
    const auto kernel = streams ? kernels_.short_streaming : kernels_.short_plain;
    kernel(batch, workspace_.gamma, chunk, chunk + workspace_.padded, problem_.cols);
  }

  static RowGroup<T> group_of(const Batch& batch, const Batch& next, int64_t k, int64_t count) {
    RowGroup<T> group = {};
    for (int64_t i = 0; i < count; ++i) group.add(batch, k + i);
    group.dy_ahead = next.dy[k] - batch.dy[k];
    return group;
  }

  void whole_group(const RowGroup<T>& group, float* chunk, int64_t begin, int64_t end) const {
    if (flow_ == Flow::kStreaming && !aligned_) return staged_group(group, chunk, begin, end);
    run(kernels_.whole[static_cast<int>(flow_)], group, chunk, begin, end);
  }

  void run(typename GradKernels<T>::Group kernel, const RowGroup<T>& group, float* chunk,
           int64_t begin, int64_t end) const {
    kernel(group, workspace_.gamma, chunk, chunk + workspace_.padded, begin, end, problem_.cols);
  }

  // Rows of dx that do not start at a cache line can only be streamed shifted: they are written to
  // a place in the first-level cache, and streamed from there.
  void staged_group(const RowGroup<T>& group, float* chunk, int64_t begin, int64_t end) const {
    constexpr int64_t kTile = 1024;
    HWY_ALIGN T stage[kGroup][kTile];
    for (int64_t c = begin; c < end; c += kTile) {
      const int64_t tile_end = HWY_MIN(c + kTile, end);
      RowGroup<T> tile = group;
      for (int k = 0; k < kGroup; ++k) tile.dx[k] = stage[k] - c;
      run(kernels_.whole[static_cast<int>(Flow::kPlain)], tile, chunk, c, tile_end);
      for (int k = 0; k < kGroup; ++k) stream_copy(stage[k], group.dx[k] + c, tile_end - c);
    }
  }

  // A group with a row whose dx needs float64. Parameter gradients come first, since dx may
  // overwrite x or dy; rows whose x_hat is fine stay together on the vector path, so that a NaN in
  // one column leaves the bits of the others alone.
  void wide_group(const Batch& batch, int64_t first, int64_t end, float* chunk) const {
    if (params_ > 0) {
      RowGroup<T> narrow_rows = {};
      for (int64_t k = first; k < end; ++k) {
        if (!batch.wide_params[k]) narrow_rows.add(batch, k);
      }
      run(kernels_.part_params, narrow_rows, chunk, 0, problem_.cols);
      for (int64_t k = first; k < end; ++k) {
        if (batch.wide_params[k]) add_params_in_f64(batch, k, chunk, chunk + workspace_.padded);
      }
    }
    if (dx_) {
      for (int64_t k = first; k < end; ++k) {
        if (batch.wide_dx[k]) {
          write_dx_in_f64(batch, k);
        } else {
          run(kernels_.part_dx, group_of(batch, batch, k, 1), chunk, 0, problem_.cols);
        }
      }
    }
  }

  void add_params_in_f64(const Batch& batch, int64_t k, float* dgamma, float* dbeta) const {
    for (int64_t c = 0; c < problem_.cols; ++c) {
      const int64_t at = pair_position<T>(c, problem_.cols);
      const double dy = widen(batch.dy[k][c]);
      dgamma[at] += static_cast<float>(dy * batch.normalizers[k].x_hat(widen(batch.x[k][c])));
      if (params_ > 1) dbeta[at] += static_cast<float>(dy);
    }
  }

  void write_dx_in_f64(const Batch& batch, int64_t k) const {
    const Normalizer& n = batch.normalizers[k];
    const T *x = batch.x[k], *dy = batch.dy[k];
    double sum_g = 0, sum_g_x_hat = 0;
    for (int64_t c = 0; c < problem_.cols; ++c) {
      const double g = widen(dy[c]) * gamma(c);
      sum_g += g;
      sum_g_x_hat += g * n.x_hat(widen(x[c]));
    }
    const double c1 = is_rms(problem_.statistics) ? 0 : mean(sum_g);
    const double c2 = mean(sum_g_x_hat);
    for (int64_t c = 0; c < problem_.cols; ++c) {
      const double g = widen(dy[c]) * gamma(c);
      batch.dx[k][c] = narrow<T>(n.r * (g - c1 - n.x_hat(widen(x[c])) * c2));
    }
  }

  const RowsProblem& problem_;
  const Buffers& buffers_;
  const RowsWorkspace& workspace_;
  const bool dx_;
  const int params_;  // 0 none, 1 dgamma, 2 dgamma and dbeta
  const GradKernels<T> kernels_;
  int64_t batch_rows_ = kGroup;
  Flow flow_ = Flow::kCached;
  bool aligned_ = false;  // every row of dx starts at a cache line, or at a vector if it is shorter
};

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_ROW_LOOKS_INL_H_
