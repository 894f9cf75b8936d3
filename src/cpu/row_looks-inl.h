// The two looks at the rows of a problem, block by block or column by column.
#if defined(NORMGRAD_CPU_ROW_LOOKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_ROW_LOOKS_INL_H_
#undef NORMGRAD_CPU_ROW_LOOKS_INL_H_
#else
#define NORMGRAD_CPU_ROW_LOOKS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cpu/caches.hpp"
#include "cpu/column_tree-inl.h"
#include "cpu/normalizer.hpp"
#include "cpu/pages.hpp"
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
        params_(problem.dgamma.present || problem.dbeta.present),
        kernels_(choose_kernels<T, kForm>(dx_, params_)) {
    const bool in_place = buffers.dx == buffers.x || buffers.dx == buffers.dy ||
                          (problem.has_dh && buffers.dx == buffers.dh);
    const int64_t bytes = problem.rows * problem.cols * kSize, moved = (3 + problem.has_dh) * bytes;
    if (moved > streaming_bytes()) flow_ = Flow::kPlain;
    if (dx_ && !in_place && stored_past_caches(written(buffers.dx, problem.dx, bytes), moved)) {
      flow_ = Flow::kStreaming;
    }
    if (flow_ == Flow::kStreaming) choose_streaming();
  }

  // One aligned block of rows.
  void block(int64_t index) const {
    const int64_t begin = index * workspace_.tree.block_rows();
    const int64_t end = HWY_MIN(begin + workspace_.tree.block_rows(), problem_.rows);
    for_batches(begin, end, rows_within(kBatchBytes),
                [&](Batch& batch, const Batch& next, int64_t row) {
                  first_look(batch, next);
                  second_look(batch, next, row, 0, problem_.cols);
                });
    hwy::FlushStream();
  }

  // Whether threads should share columns rather than blocks of rows.
  bool shares_columns() const {
    return problem_.cols > kSegment && threads() > 1 &&
           (workspace_.tree.blocks < threads() ||
            kGroup * row_bytes() > near_cache_bytes() * 3 / 4);
  }

  // All rows, some at a time, their columns shared by the threads.
  void by_columns() const {
    const int64_t rows_at_once = rows_within(threads() * core_cache_bytes() / 2);
    for_batches(0, problem_.rows, rows_at_once, [&](Batch& batch, const Batch& next, int64_t row) {
      first_look_by_columns(batch);
      const int64_t columns = batch.any_wide ? problem_.cols : kSegment;
      parallel_for(tiles(problem_.cols, columns), batch.count * row_bytes(), [&](int64_t tile) {
        const int64_t begin = tile * columns;
        second_look(batch, next, row, begin, HWY_MIN(begin + columns, problem_.cols));
        hwy::FlushStream();
      });
    });
  }

 private:
  static constexpr int64_t kSize = sizeof(T);
  static constexpr int64_t kLine = 64;
  static constexpr int64_t kPage = 4096;  // addresses that far apart share a set of places in cache
  // x and dy of a batch stay in a first-level cache of 32 KiB.
  static constexpr int64_t kBatchBytes = 32 * 1024;

  // Only whole lines can be stored past the caches. Rows of dx that start within one, and are not
  // shorter than one, are shifted in registers, where the instruction set can, else staged. So are
  // rows that would compete with x and dy for their places in cache (8192x4096 bf16: 1.3 ns per
  // element straight, 0.7 so; AMD), and those with dh, whose kernel does not stream.
  void choose_streaming() {
    bool straight = reinterpret_cast<uintptr_t>(buffers_.dx) % kLine == 0, crowded = false;
    const int64_t unit = problem_.cols < pair_lanes() ? lanes() * kSize : kLine;
    for (int axis = 0; axis < problem_.lead_rank; ++axis) {
      const int64_t apart = problem_.dx[axis] * kSize;
      straight = straight && apart % unit == 0;
      crowded = crowded || (apart % kPage == 0 && has_few_ways());
    }
    const bool shifted = !straight && kMakesWholeLines && problem_.cols >= pair_lanes();
    staged_ = !(straight || shifted) || crowded || problem_.has_dh;
    if (shifted && !staged_) flow_ = Flow::kWholeLines;
  }

  static int64_t tiles(int64_t extent, int64_t tile) { return (extent + tile - 1) / tile; }
  int64_t row_bytes() const { return 2 * problem_.cols * kSize; }
  int64_t rows_within(int64_t bytes) const {
    int64_t rows = kGroup;
    while (rows < kMostRows && 2 * rows * row_bytes() <= bytes) rows *= 2;
    return rows;
  }

  // Rows [begin, end), `count` at a time: look_at(batch, next, row), where `row` is the batch's
  // first, and `next` are the rows to ask memory for meanwhile.
  template <class LookAt>
  void for_batches(int64_t begin, int64_t end, int64_t count, const LookAt& look_at) const {
    if (begin == end) return;  // a cursor stands on a row
    RowCursor cursor(problem_, begin);
    Batch batches[2];
    Batch* batch = &batches[0];
    Batch* next = &batches[1];
    locate(cursor, HWY_MIN(count, end - begin), *batch);
    for (int64_t row = begin; row < end; row += next->count) {
      locate(cursor, HWY_MIN(count, end - row - batch->count), *next);
      look_at(*batch, next->count == batch->count ? *next : *batch, row);
      std::swap(batch, next);
    }
  }

  void first_look(Batch& batch, const Batch& next) const {
    if (flow_ == Flow::kWholeLines) ask_for_ends(batch);
    if (sums_ && has_short_rows()) {
      const bool cached = flow_ == Flow::kCached;
      sum_short_rows<T, kForm, kFromX>(batch, workspace_.gamma, problem_.cols,
                                       cached ? 0 : next.x[0] - batch.x[0],
                                       cached ? 0 : next.dy[0] - batch.dy[0]);
    } else if (sums_) {
      for (int64_t k = 0; k < batch.count; ++k) {
        RowSums sums;
        for (int64_t i = 0; i < segments(); ++i) sums += sum_segment(batch, k, i);
        batch.measures.set(k, sums);
      }
    }
    finish_sums(batch);
  }

  // The lines at the ends of the rows of dx, which are stored through the caches, since they are
  // not wholly theirs: a store that waits for memory holds up those behind it.
  void ask_for_ends(const Batch& batch) const {
    for (int64_t k = 0; k < batch.count; ++k) {
      prefetch_bytes<3>(batch.dx[k], 1);
      prefetch_bytes<3>(batch.dx[k] + problem_.cols - 1, 1);
    }
  }

  void first_look_by_columns(Batch& batch) const {
    if (sums_) {
      parallel_for(batch.count * segments(), batch.count * row_bytes(), [&](int64_t task) {
        // Neighbouring tasks share columns: a thread has those of the second look.
        const int64_t k = task % batch.count, segment = task / batch.count;
        workspace_.segments[k * segments() + segment] = sum_segment(batch, k, segment);
      });
      for (int64_t k = 0; k < batch.count; ++k) {
        RowSums sums;
        for (int64_t i = 0; i < segments(); ++i) sums += workspace_.segments[k * segments() + i];
        batch.measures.set(k, sums);
      }
    }
    finish_sums(batch);
  }

  int64_t segments() const { return tiles(problem_.cols, kSegment); }

  // Segment `index` of row k.
  RowSums sum_segment(const Batch& batch, int64_t k, int64_t index) const {
    const auto sum = flow_ == Flow::kCached ? HWY_NAMESPACE::sum_segment<T, kForm, kFromX, false>
                                            : HWY_NAMESPACE::sum_segment<T, kForm, kFromX, true>;
    return sum(batch.x[k], batch.dy[k], workspace_.gamma, batch.measures.mean[k], problem_.cols,
               index);
  }

  // Columns [begin, end) of a batch, which begins at `row`, and of the sums that it completes.
  void second_look(const Batch& batch, const Batch& next, int64_t row, int64_t begin,
                   int64_t end) const {
    const ColumnTree& tree = workspace_.tree;
    const int64_t block = row / tree.block_rows();
    const int64_t index = row % tree.block_rows() / kChunkRows;
    float* chunk = params_ ? workspace_.chunk(block, index) : nullptr;
    grads(batch, next, row % kChunkRows == 0, chunk, begin, end);
    const int64_t row_end = row + batch.count;
    if (params_ && !workspace_.one_chunk() &&
        (row_end % kChunkRows == 0 || row_end == problem_.rows)) {
      const bool block_ends = row_end % tree.block_rows() == 0 || row_end == problem_.rows;
      end_chunk(block, index, block_ends, begin, end);
    }
  }

  void end_chunk(int64_t block, int64_t index, bool block_ends, int64_t begin, int64_t end) const {
    const ColumnTree& tree = workspace_.tree;
    const float* even = workspace_.chunk(block, 0);
    for (int64_t at = 0; at < tree.width; at += workspace_.padded) {
      const int64_t from = at + begin, to = at + end;
      if (index % 2 != 0) {
        add_chunks(tree, block, index, even, workspace_.chunk(block, 1), from, to);
      } else if (block_ends) {
        add_last_chunk(tree, block, even, from, to);
      }
      if (block_ends) finish_block(tree, block, index + 1, from, to);
    }
  }

  void locate(RowCursor<RowsProblem>& cursor, int64_t count, Batch& batch) const {
    batch.count = count;
    batch.has_dh = problem_.has_dh;
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
      if (problem_.has_dh) {
        place(static_cast<const T*>(buffers_.dh), cursor.dh, problem_.dh, batch.dh);
      }
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

  // Of a few vectors.
  bool has_short_rows() const { return problem_.cols <= 2 * pair_lanes(); }

  void finish_sums(Batch& batch) const {
    batch.any_wide = false;
    const bool fine = make_scalars(batch.measures, problem_, dx_, batch.count, batch.scalars);
    if (fine && !has_one_column()) return;
    for (int64_t k = 0; k < batch.count; ++k) examine(batch, k);
  }

  // Then g - c1 is exactly 0, but not after c1 was rounded.
  bool has_one_column() const { return problem_.cols == 1 && !is_rms(problem_.statistics); }

  // The scalars of a row that may need float64, and whether it does.
  HWY_NOINLINE void examine(Batch& batch, int64_t k) const {
    const RowMeasures& m = batch.measures;
    if ((kFromX && !is_safe(mean(m.first[k]))) || (dx_ && !is_safe(mean(m.g_x[k])))) {
      const RowSums sums = sum_exactly<T, kForm, kFromX>(batch.x[k], batch.dy[k], workspace_.gamma,
                                                         m.mean[k], problem_.cols);
      batch.measures.set(k, sums);
    }
    const double first = m.first[k];
    const Normalizer n = normalizer(m, k);
    const double c1 = is_rms(problem_.statistics) ? 0 : mean(first);
    const double c2 = n.scale * mean(m.g_x[k]);
    const double factor = n.r * n.scale;
    batch.scalars.set(
        k, {static_cast<float>(n.mean), static_cast<float>(n.scale), static_cast<float>(n.r),
            static_cast<float>(c1), static_cast<float>(factor * c2)});
    // A row of zeros in RMSNorm is a padded token: common, and float32 gets its zeros right.
    batch.wide_params[k] = n.zero ? !kFromX : !is_safe(n.scale);
    batch.wide_dx[k] = batch.wide_params[k] || has_one_column() || !(n.zero || is_safe(n.r)) ||
                       !are_safe(c1, c2) || !are_safe(factor * c1, factor * c2) ||
                       (dx_ && c1 == 0 && c2 == 0 && !n.zero && has_gradient(batch.dy[k]));
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
  // As make_scalars() has it: a row's bits are the same on both ways.
  double mean(double sum) const { return sum * (1 / static_cast<double>(problem_.cols)); }

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

  // dx and the terms of the column sums, whose chunk may start with this batch; all columns if a
  // row is wide.
  void grads(const Batch& batch, const Batch& next, bool starts_chunk, float* chunk, int64_t begin,
             int64_t end) const {
    if (has_short_rows() && dx_ && !problem_.has_dh && batch.count % kGroup == 0 &&
        !batch.any_wide) {
      const bool streams = flow_ == Flow::kStreaming && !staged_;
      const auto kernel = streams ? kernels_.short_streaming : kernels_.short_plain;
      return kernel(batch, starts_chunk, workspace_.gamma, chunk, dbeta(chunk), problem_.cols);
    }
    for (int64_t k = 0; k < batch.count; k += kGroup) {
      const int64_t count = HWY_MIN(kGroup, batch.count - k);
      const bool first = starts_chunk && k == 0;
      const bool* wide = batch.wide_dx + k;
      if (batch.any_wide && std::find(wide, wide + count, true) != wide + count) {
        wide_group(batch, k, k + count, first, chunk);
        continue;
      }
      RowGroup<T> group = {};
      for (int64_t i = 0; i < count; ++i) group.add(batch, k + i, dx_);
      group.first = first;
      if (count < kGroup) {
        run(kernels_.part, group, chunk, begin, end);
        continue;
      }
      group.dy_ahead = next.dy[k] - batch.dy[k];
      if (staged_) {
        staged_group(group, chunk, begin, end);
      } else {
        run(whole(flow_), group, chunk, begin, end);
      }
    }
  }

  typename GradKernels<T>::Group whole(Flow flow) const {
    return kernels_.whole[static_cast<int>(problem_.has_dh ? Flow::kWithDh : flow)];
  }
  void run(typename GradKernels<T>::Group kernel, const RowGroup<T>& group, float* chunk,
           int64_t begin, int64_t end) const {
    kernel(group, workspace_.gamma, chunk, dbeta(chunk), begin, end, problem_.cols);
  }
  float* dbeta(float* chunk) const {
    return chunk == nullptr ? nullptr : chunk + workspace_.padded;
  }

  // dx by way of the first-level cache.
  void staged_group(const RowGroup<T>& group, float* chunk, int64_t begin, int64_t end) const {
    constexpr int64_t kTile = 1024;
    HWY_ALIGN T stage[kGroup][kTile];
    for (int64_t c = begin; c < end; c += kTile) {
      const int64_t tile_end = HWY_MIN(c + kTile, end);
      RowGroup<T> tile = group;
      for (int k = 0; k < kGroup; ++k) tile.dx[k] = stage[k] - c;
      run(whole(Flow::kPlain), tile, chunk, c, tile_end);
      for (int k = 0; k < kGroup; ++k) stream_copy(stage[k], group.dx[k] + c, tile_end - c);
    }
  }

  // A group with a row whose dx needs float64. Parameter gradients come first, since dx may
  // overwrite x or dy; rows whose x_hat is fine stay together on the vector path, so that a NaN in
  // one column leaves the bits of the others alone.
  void wide_group(const Batch& batch, int64_t first, int64_t end, bool starts_chunk,
                  float* chunk) const {
    if (params_) {
      RowGroup<T> narrow_rows = {};
      narrow_rows.first = starts_chunk;
      for (int64_t k = first; k < end; ++k) {
        if (!batch.wide_params[k]) narrow_rows.add(batch, k, false);
      }
      run(kernels_.part, narrow_rows, chunk, 0, problem_.cols);
      for (int64_t k = first; k < end; ++k) {
        if (batch.wide_params[k]) add_params_in_f64(batch, k, chunk, dbeta(chunk));
      }
    }
    if (dx_) {
      for (int64_t k = first; k < end; ++k) {
        if (batch.wide_dx[k]) {
          write_dx_in_f64(batch, k);
        } else {
          RowGroup<T> row = {};
          row.add(batch, k, true);
          run(kernels_.part, row, nullptr, 0, problem_.cols);
        }
      }
    }
  }

  void add_params_in_f64(const Batch& batch, int64_t k, float* dgamma, float* dbeta) const {
    const Normalizer n = normalizer(batch.measures, k);
    for (int64_t c = 0; c < problem_.cols; ++c) {
      const int64_t at = pair_position<T>(c, problem_.cols);
      const double dy = widen(batch.dy[k][c]);
      dgamma[at] += static_cast<float>(dy * n.x_hat(widen(batch.x[k][c])));
      if constexpr (kForm != RowForm::kScaled) dbeta[at] += static_cast<float>(dy);
    }
  }

  void write_dx_in_f64(const Batch& batch, int64_t k) const {
    const Normalizer n = normalizer(batch.measures, k);
    const T *x = batch.x[k], *dy = batch.dy[k], *dh = batch.has_dh ? batch.dh[k] : nullptr;
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
      const double dx = n.r * (g - c1 - n.x_hat(widen(x[c])) * c2);
      batch.dx[k][c] = narrow<T>(dh == nullptr ? dx : dx + widen(dh[c]));
    }
  }

  const RowsProblem& problem_;
  const Buffers& buffers_;
  const RowsWorkspace& workspace_;
  const bool dx_;
  const bool params_;                // dgamma or dbeta are wanted
  const bool sums_ = dx_ || kFromX;  // the first look has something to do
  const GradKernels<T> kernels_;
  Flow flow_ = Flow::kCached;
  bool staged_ = false;  // dx is written to the first-level cache, and streamed from there
};

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_ROW_LOOKS_INL_H_
