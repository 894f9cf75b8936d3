// BatchNorm backward on the CPU, contiguous along the channels: rows are positions, columns
// channels. Formulas as in planes.cpp. Two sweeps over memory: 4 reads and 1 write per element; the
// second runs backwards, so that it meets what the first has left in cache. (Groups of columns that
// fit in cache would be read once, but in pieces of some lines per page: 1568 rows of 8 KiB took
// twice as long that way.)
//
// Sums are those of column_sums-inl.h over 32 rows, then the tree of column_tree.hpp.
//
// Few channels would leave vectors nearly empty. Then several positions are one row (`fold`), with
// the channels' scalars repeated along it and their sums added up in the end.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <numeric>

#include "cpu/caches.hpp"
#include "cpu/channels_last_workspace.hpp"
#include "cpu/pages.hpp"
#include "cpu/parallel.hpp"
#include "cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/channels_last.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "cpu/channel.hpp"
#include "cpu/channel_scalars-inl.h"
#include "cpu/column_grads-inl.h"
#include "cpu/column_sums-inl.h"
#include "cpu/column_tree-inl.h"
#include "cpu/io-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#ifndef NORMGRAD_CPU_CHANNELS_LAST_ONCE_
#define NORMGRAD_CPU_CHANNELS_LAST_ONCE_
namespace normgrad::cpu {

size_t channels_last_workspace(const ChannelsProblem& problem) {
  return ChannelsLastWorkspace(problem).bytes();
}

// The power of two next to the channel's scale, from the exponent of what it is made of; 1 if it is
// not safe.
inline float power_near_scale(const ChannelsProblem& problem, double spread) {
  const double source = problem.spread_is_rstd ? spread : spread + problem.eps;
  const int exponent = static_cast<int>(std::bit_cast<uint64_t>(source) >> 52 & 0x7FF) - 1023;
  const int power = problem.spread_is_rstd ? exponent : -(exponent >> 1);
  return std::abs(power) > 100 ? 1 : std::bit_cast<float>(static_cast<uint32_t>(power + 127) << 23);
}

}  // namespace normgrad::cpu
#endif  // NORMGRAD_CPU_CHANNELS_LAST_ONCE_

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

template <class T>
class ChannelsLastRun {
 public:
  ChannelsLastRun(const ChannelsProblem& problem, const Buffers& buffers,
                  const ChannelsLastWorkspace& workspace)
      : problem_(problem),
        buffers_(buffers),
        w_(workspace),
        layout_(problem, workspace.fold),
        elements_(batch_elements(problem, buffers)) {
    const int64_t bytes = 3 * layout_.count * problem.channels * kSize;
    const bool in_place = buffers.dx == buffers.x || buffers.dx == buffers.dy;
    far_ = bytes > core_cache_bytes();
    beyond_caches_ = bytes > streaming_bytes();
    streaming_ = problem.has_dx && !in_place &&
                 stored_past_caches(written(buffers.dx, problem.dx, bytes / 3), bytes);
    // Folded rows go on over the end of a sample: in the next they may start at any multiple of
    // what fold and length share.
    const int64_t start = layout_.dx.sample == 0 ? w_.fold : std::gcd(w_.fold, layout_.dx.length);
    aligned_ = reinterpret_cast<uintptr_t>(buffers.dx) % kLine == 0 &&
               layout_.dx.step * start * kSize % kLine == 0 &&
               layout_.dx.sample * kSize % kLine == 0;
  }

  // What the sums need of channels [begin, end), kMostChannels at most.
  void start(int64_t begin, int64_t end) const {
    ChannelValues mean, spread;
    load_values(problem_.mean, buffers_.mean, begin, end - begin, mean);
    load_values(problem_.spread, buffers_.spread, begin, end - begin, spread);
    for (int64_t c = begin; c < end; ++c) {
      const float scale = kHalf ? power_near_scale(problem_, spread[c - begin]) : 1;
      const float offset = static_cast<float>(mean[c - begin]) * scale;
      for_columns(c, [&](int64_t at) {
        w_.offset[at] = offset;
        w_.scale[at] = scale;
      });
    }
  }

  // Columns [begin, end) of a block.
  void sum_block(int64_t block, int64_t begin, int64_t end) const {
    const ColumnTree& tree = w_.tree;
    const int64_t first = block * tree.block_rows();
    const int64_t last = HWY_MIN(first + tree.block_rows(), tree.rows);
    int64_t chunks = 0;
    for (int64_t row = first; row < last; row += kChunkRows, ++chunks) {
      sum_chunk(row, HWY_MIN(kChunkRows, last - row), begin, end, chunk_level(tree, block, chunks));
      merge_chunk(tree, block, chunks, begin, end);
      merge_chunk(tree, block, chunks, w_.padded + begin, w_.padded + end);
    }
    finish_block(tree, block, chunks, begin, end);
    finish_block(tree, block, chunks, w_.padded + begin, w_.padded + end);
  }

  void merge(int64_t begin, int64_t end) const {
    merge_blocks(w_.tree, begin, end);
    merge_blocks(w_.tree, w_.padded + begin, w_.padded + end);
  }

  // Channels [begin, end), kMostChannels at most.
  void finish(int64_t begin, int64_t end) {
    const bool summed = w_.tree.blocks > 0 && needs_sums(problem_);
    ChannelTotals totals;
    ChannelValues scales;  // that the sums have
    for (int64_t c = begin; c < end; ++c) {
      const int64_t k = c - begin;
      for_columns(c, [&](int64_t at) {
        if (!summed) return;
        totals.dy_xmu[k] += w_.tree.result(0)[at];
        totals.dy[k] += w_.tree.result(0)[w_.padded + at];
      });
      scales[k] = w_.scale[pair_position<T>(c, w_.columns)];
      if constexpr (kHalf) totals.dy_xmu[k] /= scales[k];
    }
    Channel* channels = w_.channels + begin;
    make_channels(problem_, buffers_, begin, end - begin, channels);
    if (finish_channels<T>(problem_, buffers_, begin, end - begin, totals, elements_, channels)) {
      any_wide_.store(true, std::memory_order_relaxed);
    }
    for (int64_t c = begin; c < end; ++c) {
      const Channel& channel = w_.channels[c];
      const Scalars& s = channel.scalars;
      const double c2 = channel.c2 * channel.normalizer.scale / scales[c - begin];
      for_columns(c, [&](int64_t at) {
        if constexpr (!kHalf) w_.scale[at] = s.scale;
        w_.gain[at] = s.r;
        w_.c1[at] = s.c1;
        w_.c2[at] = kHalf ? static_cast<float>(c2) : s.c2;
      });
    }
  }

  // dx of columns [begin, end) of some rows. Columns that need float64 leave the bits of their
  // neighbours alone.
  void write_dx(int64_t row, int64_t count, int64_t begin, int64_t end) const {
    if (!any_wide_.load(std::memory_order_relaxed)) {
      write_narrow(row, count, begin, end);
    } else {
      for (int64_t c = begin; c < end; c += kTile) {
        const int64_t tile_end = HWY_MIN(c + kTile, end);
        bool wide = false;
        for (int64_t k = c; k < tile_end; ++k) wide |= channel_at(k).wide;
        if (wide) {
          write_packed(row, count, c, tile_end);
        } else {
          write_narrow(row, count, c, tile_end);
        }
      }
    }
    if (streaming_) hwy::FlushStream();
  }

 private:
  static constexpr bool kHalf = !std::is_same_v<T, float>;
  static constexpr int64_t kSize = sizeof(T);
  static constexpr int64_t kLine = 64;
  static constexpr int64_t kTile = ChannelsLastLayout::kTile;

  // Where the channel stands among the columns.
  template <class Body>
  void for_columns(int64_t c, const Body& body) const {
    for (int64_t k = c; k < w_.columns; k += problem_.channels) {
      body(pair_position<T>(k, w_.columns));
    }
  }
  const Channel& channel_at(int64_t column) const {
    return w_.channels[column % problem_.channels];
  }

  ColumnOffsets offsets() const { return {w_.offset, w_.scale}; }

  // Rows that lie evenly, with a view to those after them if they do so, too.
  EvenRows<T> rows_at(int64_t row, int64_t count, int64_t ahead) const {
    const int64_t position = row * w_.fold;
    EvenRows<T> rows;
    rows.count = count;
    rows.x = static_cast<const T*>(buffers_.x) + layout_.x.offset(position);
    rows.dy = static_cast<const T*>(buffers_.dy) + layout_.dy.offset(position);
    rows.dx = static_cast<T*>(buffers_.dx);
    if (problem_.has_dx) rows.dx += layout_.dx.offset(position);
    rows.x_stride = layout_.x.step * w_.fold;
    rows.dy_stride = layout_.dy.step * w_.fold;
    rows.dx_stride = layout_.dx.step * w_.fold;
    rows.ahead = far_ && layout_.even_rows(row, count + ahead) == count + ahead ? ahead : 0;
    return rows;
  }

  void sum_chunk(int64_t row, int64_t count, int64_t begin, int64_t end, double* sums) const {
    if (count % kRowStep<T> != 0 || layout_.even_rows(row, count) != count) {
      return sum_packed(row, count, begin, end, sums);
    }
    // Short rows: a column's sums stay in registers for all 32. Long ones lie pages apart: a few at
    // a time, along which the sums stay in the first-level cache. From memory, those of float32,
    // whose sums take longer, one after the other, as memory and its prefetchers like it best:
    // 64x256x784 2.39 ms with four, 1.76 so.
    const bool narrow_rows = row_bytes() <= 512;
    const bool one_by_one = beyond_caches_ && !kHalf;
    const int64_t height = narrow_rows ? kChunkRows : one_by_one ? 1 : kHalf ? 8 : 4;
    const int64_t width = narrow_rows ? end - begin : 512;
    const int64_t ahead = narrow_rows ? kChunkRows : one_by_one ? 4 : 8;
    for (int64_t c = begin; c < end; c += width) {
      EvenRows<T> rows = rows_at(row, count, ahead);
      for (int64_t done = 0; done < count; done += height) {
        EvenRows<T> some = rows;
        some.count = HWY_MIN(height, count - done);
        column_sums(some, offsets(), sums, sums + w_.padded, done > 0, c, HWY_MIN(c + width, end),
                    w_.columns);
        rows.skip(some.count);
      }
    }
  }

  // Rows that do not lie evenly, or that lack some to a multiple of kRowStep.
  HWY_NOINLINE void sum_packed(int64_t row, int64_t count, int64_t begin, int64_t end,
                               double* sums) const {
    HWY_ALIGN T x[kChunkRows * kTile];
    HWY_ALIGN T dy[kChunkRows * kTile];
    const int64_t whole = (count + kRowStep<T> - 1) / kRowStep<T> * kRowStep<T>;
    for (int64_t c = begin; c < end; c += kTile) {
      const int64_t tile_end = HWY_MIN(c + kTile, end);
      layout_.pack(buffers_, row, count, c, tile_end, x, dy);
      std::fill(x + count * kTile, x + whole * kTile, T{});
      std::fill(dy + count * kTile, dy + whole * kTile, T{});
      column_sums<T>({whole, x - c, dy - c, nullptr, kTile, kTile, kTile, 0}, offsets(), sums,
                     sums + w_.padded, false, c, tile_end, w_.columns);
    }
  }

  void write_narrow(int64_t row, int64_t count, int64_t begin, int64_t end) const {
    for (const int64_t last = row + count; row < last;) {
      const int64_t even = layout_.even_rows(row, last - row);
      if (even == 0) {
        write_packed(row++, 1, begin, end);
        continue;
      }
      const EvenRows<T> rows = rows_at(row, even, streaming_ ? streaming_ahead() : height());
      if (!streaming_) {
        grads<false>(rows, begin, end);
      } else if (aligned_) {
        grads<true>(rows, begin, end);
      } else {
        write_staged(rows, begin, end);
      }
      row += even;
    }
  }

  int64_t row_bytes() const { return w_.columns * kSize; }

  // Rows that share the scalars. Long ones may share a set of the first-level cache as well, which
  // has no room for more than two of x, dy and dx: 2048 channels of bf16 took 0.53 ms with 8 rows,
  // 0.34 with 2. What goes past the caches goes nearly as it lies in memory, 512 bytes of a tensor
  // at a time: 64x256x6272 f32 17.9 ms with four rows, 14.7 so. Two 16-bit rows from 2 KiB on: they
  // would read ten bytes of scalars per byte of data.
  int64_t height() const {
    if (!streaming_) return std::clamp<int64_t>(4096 / row_bytes(), 2, 8);
    return std::clamp<int64_t>(512 / row_bytes(), kHalf && row_bytes() >= 2048 ? 2 : 1, 8);
  }
  // The processor finds short rows by itself, and asking for each takes longer: 2x32x262144 bf16
  // 1.18 ms, 0.87 without.
  int64_t streaming_ahead() const {
    return row_bytes() < 1024 ? 0 : HWY_MAX(4096 / row_bytes(), height());
  }
  // Columns whose scalars stay in the first-level cache: 64x2048x98 f32 2.9 ms with all, 2.1 so.
  int64_t streaming_width() const { return w_.columns <= 1024 ? w_.columns : 2048 / kSize; }

  template <bool kStreaming>
  void grads(const EvenRows<T>& rows, int64_t begin, int64_t end) const {
    const ColumnScalars scalars = {offsets(), w_.gain, w_.c1, w_.c2};
    const auto kernel =
        problem_.frozen ? &column_grads<T, true, kStreaming> : &column_grads<T, false, kStreaming>;
    const int64_t width = kStreaming ? streaming_width() : end - begin;
    for (int64_t c = begin; c < end; c += width) {
      kernel(rows, scalars, c, HWY_MIN(c + width, end), w_.columns, height());
    }
  }

  // Rows of dx that do not start at a cache line can only be streamed shifted: they are written to
  // a place in the first-level cache, and streamed from there, those without gaps as one.
  void write_staged(EvenRows<T> rows, int64_t begin, int64_t end) const {
    constexpr int64_t kStage = 8192 / kSize;
    HWY_ALIGN T stage[kStage];
    const int64_t width = HWY_MIN(end - begin, kStage / 4);
    while (rows.count > 0) {
      EvenRows<T> some = rows;
      some.count = HWY_MIN(kStage / width, rows.count);
      some.dx_stride = width;
      for (int64_t c = begin; c < end; c += width) {
        const int64_t tile_end = HWY_MIN(c + width, end);
        some.dx = stage - c;
        grads<false>(some, c, tile_end);
        const bool gapless = rows.dx_stride == width;
        const int64_t pieces = gapless ? 1 : some.count;
        const int64_t length = gapless ? some.count * width : tile_end - c;
        for (int64_t k = 0; k < pieces; ++k) {
          stream_copy(stage + k * width, rows.dx + k * rows.dx_stride + c, length);
        }
      }
      rows.skip(some.count);
    }
  }

  // Rows that do not lie evenly, and columns that need float64.
  HWY_NOINLINE void write_packed(int64_t row, int64_t count, int64_t begin, int64_t end) const {
    HWY_ALIGN T x[kChunkRows * kTile];
    HWY_ALIGN T dy[kChunkRows * kTile];
    HWY_ALIGN T dx[kChunkRows * kTile];
    for (const int64_t last = row + count; row < last; row += kChunkRows) {
      const int64_t some = HWY_MIN(kChunkRows, last - row);
      for (int64_t c = begin; c < end; c += kTile) {
        const int64_t tile_end = HWY_MIN(c + kTile, end);
        layout_.pack(buffers_, row, some, c, tile_end, x, dy);
        grads<false>({some, x - c, dy - c, dx - c, kTile, kTile, kTile, 0}, c, tile_end);
        for (int64_t k = c; k < tile_end; ++k) {
          const Channel& channel = channel_at(k);
          if (!channel.wide) continue;
          for (int64_t at = k - c; at < some * kTile; at += kTile) {
            dx[at] = narrow<T>(channel.dx(widen(x[at]), widen(dy[at])));
          }
        }
        layout_.unpack(buffers_, row, some, c, tile_end, dx);
      }
    }
  }

  const ChannelsProblem& problem_;
  const Buffers& buffers_;
  const ChannelsLastWorkspace& w_;
  const ChannelsLastLayout layout_;
  const double elements_;
  bool far_ = false;            // beyond a core's cache
  bool beyond_caches_ = false;  // and beyond all
  bool streaming_ = false;      // dx is stored past the caches
  bool aligned_ = false;        // every row of dx starts at a cache line
  std::atomic<bool> any_wide_{false};
};

template <class T>
void run_channels_last(const ChannelsProblem& problem, const Buffers& buffers, void* memory) {
  const ChannelsLastWorkspace w(problem, memory);
  const ColumnTree& tree = w.tree;
  ChannelsLastRun<T> run(problem, buffers, w);
  const int64_t bytes =
      3 * problem.samples * problem.length * problem.channels * static_cast<int64_t>(sizeof(T));
  // body(begin, end) for tiles of `count` channels or columns.
  const auto in_tiles = [&](int64_t count, int64_t width, const auto& body) {
    parallel_for((count + width - 1) / width, bytes,
                 [&](int64_t tile) { body(tile * width, HWY_MIN((tile + 1) * width, count)); });
  };
  for (float* scalars : {w.offset, w.scale, w.gain, w.c1, w.c2}) {
    std::fill(scalars + w.columns, scalars + w.padded, 0.0f);
  }
  in_tiles(problem.channels, kMostChannels,
           [&](int64_t begin, int64_t end) { run.start(begin, end); });
  if (needs_sums(problem) && tree.blocks > 0) {
    // Few blocks share their columns, too.
    const int64_t parts = HWY_MAX(1, 16 / tree.blocks);
    const int64_t width = HWY_MAX(256, (w.columns / parts + 63) / 64 * 64);
    const int64_t tiles = (w.columns + width - 1) / width;
    parallel_for(tree.blocks * tiles, bytes, [&](int64_t task) {
      const int64_t begin = task % tiles * width;
      run.sum_block(task / tiles, begin, HWY_MIN(begin + width, w.columns));
    });
    in_tiles(w.columns, 64, [&](int64_t begin, int64_t end) { run.merge(begin, end); });
  }
  in_tiles(problem.channels, kMostChannels,
           [&](int64_t begin, int64_t end) { run.finish(begin, end); });
  if (!problem.has_dx) return;
  constexpr int64_t kTaskElements = 65536;
  const int64_t width = HWY_MIN(w.columns, kTaskElements);
  const int64_t tiles = (w.columns + width - 1) / width;
  const int64_t height = kTaskElements / width;
  const int64_t bands = (tree.rows + height - 1) / height;
  const auto write = [&](int64_t task) {
    const int64_t row = task / tiles * height, begin = task % tiles * width;
    run.write_dx(row, HWY_MIN(height, tree.rows - row), begin, HWY_MIN(begin + width, w.columns));
  };
  parallel_for(bands * tiles, bytes, write, Order::kBackward);
}

Status launch_channels_last(const ChannelsProblem& problem, const Buffers& buffers, void* memory,
                            void*) {
  const DefaultFloatEnvironment environment;
  if (problem.channels == 0) return {};
  with_type(problem.dtype,
            [&](auto type) { run_channels_last<decltype(type)>(problem, buffers, memory); });
  return {};
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normgrad::cpu {

HWY_EXPORT(launch_channels_last);

Launch<ChannelsProblem> channels_last_launch(int64_t target) {
  return HWY_DISPATCH_TABLE(launch_channels_last)[table_index(target)];
}

}  // namespace normgrad::cpu
#endif  // HWY_ONCE
