// BatchNorm on the CPU, contiguous along the channels: rows are positions, columns channels.
// Formulas as in planes_forward.cpp. Two sweeps over memory: 2 reads and 1 write per element; the
// second runs backwards, so that it meets what the first has left in cache.
//
// Sums are float64 over 32 rows (column_forward-inl.h), then the tree of column_tree.hpp, shifted
// by the channel's first element.
//
// Few channels would leave vectors nearly empty. Then several positions are one row (`fold`), with
// the channels' scalars repeated along it and their sums added up in the end. Rows that do not lie
// in one piece, or lack some positions at the end, are packed first: the sums have the same bits.
#include <algorithm>
#include <atomic>

#include "cpu/caches.hpp"
#include "cpu/channels_last_workspace.hpp"
#include "cpu/forward_channel.hpp"
#include "cpu/pages.hpp"
#include "cpu/parallel.hpp"
#include "cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/channels_last_forward.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "cpu/column_forward-inl.h"
#include "cpu/column_tree-inl.h"
#include "cpu/io-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#ifndef NORMGRAD_CPU_CHANNELS_LAST_FORWARD_ONCE_
#define NORMGRAD_CPU_CHANNELS_LAST_FORWARD_ONCE_
namespace normgrad::cpu {

// Where the positions of x and y are. If both go on evenly from sample to sample, as one long
// sample.
struct ForwardPositions {
  int64_t count;
  Positions x, y;
  bool dense;  // they follow each other without gaps within a sample

  explicit ForwardPositions(const ChannelsForwardProblem& problem)
      : count(problem.samples * problem.length) {
    const auto is_even = [&](const ChannelsShape::Strides& s) {
      return problem.samples <= 1 || problem.length <= 1 || s.sample == problem.length * s.position;
    };
    const bool even = is_even(problem.x) && (!problem.has_y || is_even(problem.y));
    const auto positions = [&](const ChannelsShape::Strides& s) -> Positions {
      if (!even) return {problem.length, s.sample, s.position};
      return {count, 0, problem.length <= 1 ? s.sample : s.position};
    };
    x = positions(problem.x);
    y = problem.has_y ? positions(problem.y) : x;
    dense = x.step == problem.channels && y.step == problem.channels;
  }
};

// The tree's sums (of x - pivot first, of its square behind), the channels, and their scalars as
// vectors over the columns, in the order of pairs and padded.
struct ChannelsLastForwardWorkspace {
  int64_t fold, columns, padded;
  ColumnTree tree;
  ForwardChannel* channels = nullptr;
  float* scalars = nullptr;

  explicit ChannelsLastForwardWorkspace(const ChannelsForwardProblem& problem,
                                        void* memory = nullptr)
      : fold(fold_of(problem)),
        columns(problem.channels * fold),
        padded((columns + 63) / 64 * 64),
        tree((problem.samples * problem.length + fold - 1) / fold, 2 * padded) {
    if (memory == nullptr) return;
    tree.sums = static_cast<double*>(memory);
    channels = reinterpret_cast<ForwardChannel*>(tree.sums + tree.doubles());
    scalars = reinterpret_cast<float*>(channels + problem.channels);
  }

  static constexpr int64_t kScalars = 5;
  float* scalar(int64_t index) const { return scalars + index * padded; }

  size_t bytes() const {
    return static_cast<size_t>(tree.doubles()) * sizeof(double) +
           static_cast<size_t>(columns / fold) * sizeof(ForwardChannel) +
           static_cast<size_t>(padded * kScalars) * sizeof(float);
  }
};

size_t channels_last_forward_workspace(const ChannelsForwardProblem& problem) {
  return ChannelsLastForwardWorkspace(problem).bytes();
}

}  // namespace normgrad::cpu
#endif  // NORMGRAD_CPU_CHANNELS_LAST_FORWARD_ONCE_

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

template <class T>
class ChannelsLastForwardRun {
 public:
  ChannelsLastForwardRun(const ChannelsForwardProblem& problem, const Buffers& buffers,
                         const ChannelsLastForwardWorkspace& workspace)
      : problem_(problem),
        buffers_(buffers),
        w_(workspace),
        positions_(problem),
        pivot_(w_.scalar(0)),
        scales_{w_.scalar(1), w_.scalar(2), w_.scalar(3), w_.scalar(4)} {
    constexpr int64_t kLine = 64;
    far_ = bytes() > core_cache_bytes();
    streaming_ = problem.has_y && buffers.y != buffers.x &&
                 stored_past_caches(written(buffers.y, problem.y, bytes() / 2), bytes()) &&
                 reinterpret_cast<uintptr_t>(buffers.y) % kLine == 0 &&
                 positions_.y.step * w_.fold * kSize % kLine == 0 &&
                 positions_.y.sample * kSize % kLine == 0;
  }

  void run() {
    for (int64_t i = 0; i < w_.kScalars; ++i) {
      std::fill(w_.scalar(i) + w_.columns, w_.scalar(i) + w_.padded, 0.0f);
    }
    const bool summed = needs_moments(problem_) && w_.tree.blocks > 0;
    if (summed) sum();
    in_tiles(problem_.channels, [&](int64_t begin, int64_t end) {
      GivenMoments given(problem_, buffers_, end);
      for (int64_t c = begin; c < end; ++c) finish(c, summed, given);
    });
    if (problem_.has_y) write();
  }

 private:
  static constexpr int64_t kSize = sizeof(T);
  static constexpr int64_t kTile = 64;
  static constexpr int64_t kMostFolded = 64 * 32;  // columns of a row of several positions

  int64_t bytes() const { return 2 * positions_.count * problem_.channels * kSize; }

  // body(begin, end) for tiles of `count` channels or columns.
  template <class Body>
  void in_tiles(int64_t count, const Body& body) const {
    parallel_for((count + kTile - 1) / kTile, bytes(),
                 [&](int64_t tile) { body(tile * kTile, HWY_MIN((tile + 1) * kTile, count)); });
  }

  // Where the channel stands among the columns.
  template <class Body>
  void for_columns(int64_t c, const Body& body) const {
    for (int64_t k = c; k < w_.columns; k += problem_.channels) {
      body(pair_position<T>(k, w_.columns));
    }
  }
  const ForwardChannel& channel_at(int64_t column) const {
    return w_.channels[column % problem_.channels];
  }

  void sum() const {
    const ColumnTree& tree = w_.tree;
    in_tiles(problem_.channels, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const double pivot = pivot_of(widen(static_cast<const T*>(buffers_.x)[c]));
        for_columns(c, [&](int64_t at) { pivot_[at] = static_cast<float>(pivot); });
      }
    });
    // Few blocks share their columns, too.
    const int64_t parts = HWY_MAX(1, 16 / tree.blocks);
    const int64_t width = HWY_MAX(256, (w_.columns / parts + 63) / 64 * 64);
    const int64_t tiles = (w_.columns + width - 1) / width;
    parallel_for(tree.blocks * tiles, bytes(), [&](int64_t task) {
      const int64_t begin = task % tiles * width;
      sum_block(task / tiles, begin, HWY_MIN(begin + width, w_.columns));
    });
    in_tiles(w_.columns, [&](int64_t begin, int64_t end) {
      merge_blocks(tree, begin, end);
      merge_blocks(tree, w_.padded + begin, w_.padded + end);
    });
  }

  // Columns [begin, end) of a block.
  void sum_block(int64_t block, int64_t begin, int64_t end) const {
    const ColumnTree& tree = w_.tree;
    const int64_t first = block * tree.block_rows();
    const int64_t last = HWY_MIN(first + tree.block_rows(), tree.rows);
    int64_t chunks = 0;
    for (int64_t row = first; row < last; row += kChunkRows, ++chunks) {
      sum_chunk(row, HWY_MIN(row + kChunkRows, last), begin, end, chunk_level(tree, block, chunks));
      for (const int64_t at : {int64_t{0}, w_.padded}) {
        merge_chunk(tree, block, chunks, at + begin, at + end);
      }
    }
    for (const int64_t at : {int64_t{0}, w_.padded}) {
      finish_block(tree, block, chunks, at + begin, at + end);
    }
  }

  // Short rows: a column's sums stay in registers for all 32. Long ones lie pages apart: a few at a
  // time, along which the sums stay in the first-level cache.
  void sum_chunk(int64_t first, int64_t last, int64_t begin, int64_t end, double* sums) const {
    const bool narrow_rows = w_.columns * kSize <= 512;
    const int64_t height = narrow_rows ? kChunkRows : 8;
    const int64_t width = narrow_rows ? end - begin : 512;
    for (int64_t c = begin; c < end; c += width) {
      const int64_t tile_end = HWY_MIN(c + width, end);
      for (int64_t row = first; row < last;) {
        const int64_t count = even_rows(row, HWY_MIN(height, last - row));
        if (count == 0) {
          T x[kMostFolded];
          pack(row, x);
          column_moments<T>({1, x, nullptr, 0, 0, 0}, pivot_, sums, sums + w_.padded, row > first,
                            c, tile_end, w_.columns);
          ++row;
          continue;
        }
        column_moments(rows_at(row, count, height), pivot_, sums, sums + w_.padded, row > first, c,
                       tile_end, w_.columns);
        row += count;
      }
    }
  }

  // How many of the rows lie evenly and have all their positions.
  int64_t even_rows(int64_t row, int64_t rows) const {
    if (w_.fold > 1 && !positions_.dense) return 0;
    const int64_t position = row * w_.fold % positions_.x.length;
    return HWY_MIN(rows, (positions_.x.length - position) / w_.fold);
  }

  // body(position, place in the row) for the positions of a row.
  template <class Body>
  void for_positions(int64_t row, const Body& body) const {
    const int64_t first = row * w_.fold, last = HWY_MIN(first + w_.fold, positions_.count);
    for (int64_t position = first; position < last; ++position) {
      body(position, (position - first) * problem_.channels);
    }
  }
  // A row in one piece; positions that it lacks count as pivots, which add nothing. (So few
  // elements take memmove twice as long as a loop.)
  void pack(int64_t row, T* packed) const {
    for (int64_t k = (positions_.count - row * w_.fold) * problem_.channels; k < w_.columns; ++k) {
      packed[k] = narrow<T>(static_cast<double>(pivot_[pair_position<T>(k, w_.columns)]));
    }
    for_positions(row, [&](int64_t position, int64_t at) {
      const T* x = static_cast<const T*>(buffers_.x) + positions_.x.offset(position);
      for (int64_t c = 0; c < problem_.channels; ++c) packed[at + c] = x[c];
    });
  }

  ForwardRows<T> rows_at(int64_t row, int64_t count, int64_t ahead) const {
    const int64_t position = row * w_.fold;
    ForwardRows<T> rows;
    rows.count = count;
    rows.x = static_cast<const T*>(buffers_.x) + positions_.x.offset(position);
    rows.y = static_cast<T*>(buffers_.y);
    if (problem_.has_y) rows.y += positions_.y.offset(position);
    rows.x_stride = positions_.x.step * w_.fold;
    rows.y_stride = positions_.y.step * w_.fold;
    rows.ahead = far_ ? ahead : 0;
    return rows;
  }

  void finish(int64_t c, bool summed, GivenMoments& given) {
    Moments moments;
    if (summed) {
      ShiftedSums sums;
      for_columns(c, [&](int64_t at) {
        sums.pivot = static_cast<double>(pivot_[at]);
        sums.sum += w_.tree.result(0)[at];
        sums.squares += w_.tree.result(0)[w_.padded + at];
      });
      moments = Moments(static_cast<double>(positions_.count), sums);
    }
    const ForwardChannel& channel = w_.channels[c] =
        finish_forward_channel(problem_, buffers_, c, moments, given);
    if (channel.wide) any_wide_.store(true, std::memory_order_relaxed);
    for_columns(c, [&](int64_t at) {
      scales_.mean[at] = channel.scale.mean;
      scales_.mean_rest[at] = channel.scale.mean_rest;
      scales_.scale[at] = channel.scale.scale;
      scales_.beta[at] = channel.scale.beta;
    });
  }

  void write() const {
    constexpr int64_t kTaskElements = 65536;
    const int64_t width = HWY_MIN(w_.columns, kTaskElements);
    const int64_t tiles = (w_.columns + width - 1) / width;
    const int64_t height = kTaskElements / width;
    const int64_t bands = (w_.tree.rows + height - 1) / height;
    const auto write = [&](int64_t task) {
      const int64_t first = task / tiles * height, begin = task % tiles * width;
      write_band(first, HWY_MIN(first + height, w_.tree.rows), begin,
                 HWY_MIN(begin + width, w_.columns));
      hwy::FlushStream();
    };
    parallel_for(bands * tiles, bytes(), write, Order::kBackward);
  }

  void write_band(int64_t row, int64_t last, int64_t begin, int64_t end) const {
    while (row < last) {
      const int64_t count = even_rows(row, last - row);
      if (count > 0) {
        write_rows(rows_at(row, count, height()), begin, end, streaming_);
        row += count;
        continue;
      }
      T x[kMostFolded], y[kMostFolded];
      pack(row, x);
      write_rows({1, x, y, 0, 0, 0}, begin, end, false);
      for_positions(row++, [&](int64_t position, int64_t at) {
        T* to = static_cast<T*>(buffers_.y) + positions_.y.offset(position);
        for (int64_t c = 0; c < problem_.channels; ++c) to[c] = y[at + c];
      });
    }
  }

  // Rows that share the scalars: two of x and y each have room in a set of the first-level cache.
  int64_t height() const { return std::clamp<int64_t>(4096 / (w_.columns * kSize), 2, 8); }

  void write_rows(const ForwardRows<T>& rows, int64_t begin, int64_t end, bool streaming) const {
    const auto write = streaming ? write_columns<T, true> : write_columns<T, false>;
    if (!any_wide_.load(std::memory_order_relaxed)) {
      return write(rows, scales_, begin, end, w_.columns, height());
    }
    for (int64_t c = begin; c < end; c += kTile) {
      const int64_t tile_end = HWY_MIN(c + kTile, end);
      bool wide = false;
      for (int64_t k = c; k < tile_end; ++k) wide |= channel_at(k).wide;
      if (wide) {
        write_wide(rows, c, tile_end);
      } else {
        write(rows, scales_, c, tile_end, w_.columns, height());
      }
    }
  }

  // At most a tile of columns, some of which need float64; the bits of the others are as ever.
  HWY_NOINLINE void write_wide(const ForwardRows<T>& rows, int64_t begin, int64_t end) const {
    for (int64_t row = 0; row < rows.count; ++row) {
      T x[kTile];
      T* y = rows.y + row * rows.y_stride;
      std::copy_n(rows.x + row * rows.x_stride + begin, end - begin, x);
      write_columns<T, false>({1, x - begin, y, 0, 0, 0}, scales_, begin, end, w_.columns, 1);
      for (int64_t k = begin; k < end; ++k) {
        const ForwardChannel& channel = channel_at(k);
        if (channel.wide) y[k] = narrow<T>(channel.y(widen(x[k - begin])));
      }
    }
  }

  const ChannelsForwardProblem& problem_;
  const Buffers& buffers_;
  const ChannelsLastForwardWorkspace& w_;
  const ForwardPositions positions_;
  float* const pivot_;
  const ColumnScales scales_;
  bool far_ = false;        // beyond a core's cache
  bool streaming_ = false;  // y is stored past the caches
  std::atomic<bool> any_wide_{false};
};

Status launch_channels_last_forward(const ChannelsForwardProblem& problem, const Buffers& buffers,
                                    void* memory, void*) {
  const DefaultFloatEnvironment environment;
  const ChannelsLastForwardWorkspace workspace(problem, memory);
  with_type(problem.dtype, [&](auto type) {
    ChannelsLastForwardRun<decltype(type)>(problem, buffers, workspace).run();
  });
  return {};
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normgrad::cpu {

HWY_EXPORT(launch_channels_last_forward);

Launch<ChannelsForwardProblem> channels_last_forward_launch(int64_t target) {
  return HWY_DISPATCH_TABLE(launch_channels_last_forward)[table_index(target)];
}

}  // namespace normgrad::cpu
#endif  // HWY_ONCE
