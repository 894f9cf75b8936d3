// BatchNorm backward on the CPU, contiguous along the channels: rows are positions, columns
// channels. Formulas as in planes.cpp. Two sweeps over memory: 4 reads and 1 write per element.
//
// Sums are float64 of exact products: 32 rows in registers, column by column, then the tree of
// column_tree.hpp.
#include <algorithm>
#include <cstring>

#include "cpu/parallel.hpp"
#include "cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/channels_last.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "cpu/channel.hpp"
#include "cpu/column_tree-inl.h"
#include "cpu/formula-inl.h"
#include "cpu/io-inl.h"
#include "hwy/highway.h"

#ifndef NORMGRAD_CPU_CHANNELS_LAST_ONCE_
#define NORMGRAD_CPU_CHANNELS_LAST_ONCE_
namespace normgrad::cpu {

// The channels, their scalars as vectors over the channels (padded to whole SIMD vectors), and per
// block a chunk of sums and the tree's sums: dy * (x - mean) first, dy behind.
struct ChannelsLastWorkspace {
  int64_t padded;
  ColumnTree tree;
  double* chunks = nullptr;
  Channel* channels = nullptr;
  float *mean = nullptr, *scale = nullptr, *gain = nullptr, *c1 = nullptr, *c2 = nullptr;

  explicit ChannelsLastWorkspace(const ChannelsProblem& problem, void* memory = nullptr)
      : padded((problem.channels + 63) / 64 * 64),
        tree(problem.samples * problem.length, 2 * padded) {
    if (memory == nullptr) return;
    tree.sums = static_cast<double*>(memory);
    chunks = tree.sums + tree.doubles();
    channels = reinterpret_cast<Channel*>(chunks + tree.blocks * tree.width);
    mean = reinterpret_cast<float*>(channels + padded);
    scale = mean + padded;
    gain = scale + padded;
    c1 = gain + padded;
    c2 = c1 + padded;
  }

  size_t bytes() const {
    return static_cast<size_t>(tree.doubles() + tree.blocks * tree.width) * sizeof(double) +
           static_cast<size_t>(padded) * (sizeof(Channel) + 5 * sizeof(float));
  }
};

size_t channels_last_workspace(const ChannelsProblem& problem) {
  return ChannelsLastWorkspace(problem).bytes();
}

}  // namespace normgrad::cpu
#endif  // NORMGRAD_CPU_CHANNELS_LAST_ONCE_

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// The rows of a chunk.
template <class T>
struct ChunkRows {
  const T* x[kChunkRows];
  const T* dy[kChunkRows];
  T* dx[kChunkRows];
  int64_t count;
};

template <bool kTail, class T>
HWY_INLINE void sum_columns(const ChunkRows<T>& rows, const float* mean, int64_t c, int64_t count,
                            double* dy_centred, double* dy) {
  const FloatVec mean_vec = load(mean + c);
  DoubleSum sum_dy_centred, sum_dy;
  for (int64_t k = 0; k < rows.count; ++k) {
    const DoublePair dy_pair = promote(load_some<kTail>(rows.dy[k] + c, count));
    const FloatVec x = load_some<kTail>(rows.x[k] + c, count);
    sum_dy.add(dy_pair);
    sum_dy_centred.add_product(dy_pair, promote(hn::Sub(x, mean_vec)));
  }
  sum_dy_centred.store(dy_centred + c);
  sum_dy.store(dy + c);
}

template <class T>
class ChannelsLastRun {
 public:
  ChannelsLastRun(const ChannelsProblem& problem, const Buffers& buffers,
                  const ChannelsLastWorkspace& workspace)
      : problem_(problem),
        buffers_(buffers),
        w_(workspace),
        elements_(batch_elements(problem, buffers)) {}

  void start() const {
    for (int64_t c = 0; c < problem_.channels; ++c) {
      w_.channels[c] = make_channel(problem_, buffers_, c);
      w_.mean[c] = w_.channels[c].scalars.mean;
    }
    std::fill(w_.mean + problem_.channels, w_.mean + w_.padded, 0.0f);
  }

  void sum_block(int64_t block) const {
    const ColumnTree& tree = w_.tree;
    double* chunk = w_.chunks + block * tree.width;
    std::memset(chunk, 0, static_cast<size_t>(tree.width) * sizeof(double));
    int64_t chunks = 0;
    for (int64_t row = first_row(block); row < last_row(block); row += kChunkRows, ++chunks) {
      const ChunkRows<T> rows = chunk_rows(row);
      int64_t c = 0;
      for (; c + lanes() <= problem_.channels; c += lanes()) {
        sum_columns<false>(rows, w_.mean, c, 0, chunk, chunk + w_.padded);
      }
      if (c < problem_.channels) {
        sum_columns<true>(rows, w_.mean, c, problem_.channels - c, chunk, chunk + w_.padded);
      }
      add_chunk(tree, block, chunks, chunk, 0, tree.width);
    }
    finish_block(tree, block, chunks, 0, tree.width);
  }

  void finish(int64_t begin, int64_t end) const {
    const ColumnTree& tree = w_.tree;
    const bool summed = tree.blocks > 0 && needs_sums(problem_);
    if (summed) {
      merge_blocks(tree, begin, end);
      merge_blocks(tree, w_.padded + begin, w_.padded + end);
    }
    for (int64_t c = begin; c < end; ++c) {
      ChannelSums sums;
      if (summed) sums = {tree.result(0)[w_.padded + c], tree.result(0)[c]};
      finish_channel<T>(problem_, buffers_, c, sums, elements_, w_.channels[c]);
      const Scalars& s = w_.channels[c].scalars;
      w_.scale[c] = s.scale;
      w_.gain[c] = s.r;
      w_.c1[c] = s.c1;
      w_.c2[c] = s.c2;
    }
  }

  void dx_block(int64_t block) const {
    for (int64_t row = first_row(block); row < last_row(block); row += kChunkRows) {
      const ChunkRows<T> rows = chunk_rows(row);
      int64_t c = 0;
      for (; c + lanes() <= problem_.channels; c += lanes()) dx_columns<false>(rows, c, lanes());
      if (c < problem_.channels) dx_columns<true>(rows, c, problem_.channels - c);
    }
  }

 private:
  int64_t first_row(int64_t block) const { return block * w_.tree.block_rows(); }
  int64_t last_row(int64_t block) const { return HWY_MIN(first_row(block + 1), w_.tree.rows); }

  ChunkRows<T> chunk_rows(int64_t row) const {
    ChunkRows<T> rows;
    rows.count = HWY_MIN(kChunkRows, w_.tree.rows - row);
    for (int64_t k = 0; k < rows.count; ++k) {
      const int64_t n = (row + k) / problem_.length, l = (row + k) % problem_.length;
      const auto offset = [&](const ChannelsProblem::Strides& s) {
        return n * s.sample + l * s.position;
      };
      rows.x[k] = static_cast<const T*>(buffers_.x) + offset(problem_.x);
      rows.dy[k] = static_cast<const T*>(buffers_.dy) + offset(problem_.dy);
      rows.dx[k] = static_cast<T*>(buffers_.dx) + (problem_.has_dx ? offset(problem_.dx) : 0);
    }
    return rows;
  }

  template <bool kTail>
  HWY_INLINE void dx_columns(const ChunkRows<T>& rows, int64_t c, int64_t count) const {
    const ScalarVecs s(w_.mean + c, w_.scale + c, w_.gain + c, w_.c1 + c, w_.c2 + c);
    bool wide = false;
    for (int64_t k = 0; k < count; ++k) wide = wide || w_.channels[c + k].wide;
    for (int64_t k = 0; k < rows.count; ++k) {
      const T* x = rows.x[k] + c;
      const T* dy = rows.dy[k] + c;
      FloatVec dx = load_some<kTail>(dy, count);
      if (problem_.frozen) {
        dx = hn::Mul(s.r, dx);
      } else {
        dx = s.dx(dx, s.x_hat(load_some<kTail>(x, count)));
      }
      if (wide) {
        store_mixed(dx, x, dy, rows.dx[k] + c, c, count);
      } else {
        store_some<kTail>(dx, rows.dx[k] + c, count);
      }
    }
  }

  // The vector's lanes, but float64 for the channels that need it: their neighbours keep their
  // bits.
  HWY_NOINLINE void store_mixed(FloatVec vector, const T* x, const T* dy, T* dx, int64_t c,
                                int64_t count) const {
    T values[HWY_MAX_BYTES / sizeof(float)];
    store(vector, values);
    for (int64_t k = 0; k < count; ++k) {
      const Channel& channel = w_.channels[c + k];
      if (channel.wide) values[k] = narrow<T>(channel.dx(widen(x[k]), widen(dy[k])));
    }
    std::copy_n(values, count, dx);
  }

  const ChannelsProblem& problem_;
  const Buffers& buffers_;
  const ChannelsLastWorkspace& w_;
  const double elements_;
};

template <class T>
void run_channels_last(const ChannelsProblem& problem, const Buffers& buffers, void* memory) {
  const ChannelsLastWorkspace workspace(problem, memory);
  const ChannelsLastRun<T> run(problem, buffers, workspace);
  const int64_t blocks = workspace.tree.blocks;
  const int64_t bytes =
      3 * workspace.tree.rows * problem.channels * static_cast<int64_t>(sizeof(T));
  constexpr int64_t kTile = 64;
  run.start();
  if (needs_sums(problem)) {
    parallel_for(blocks, bytes, [&](int64_t block) { run.sum_block(block); });
  }
  parallel_for((problem.channels + kTile - 1) / kTile, bytes, [&](int64_t tile) {
    run.finish(tile * kTile, HWY_MIN((tile + 1) * kTile, problem.channels));
  });
  if (problem.has_dx) parallel_for(blocks, bytes, [&](int64_t block) { run.dx_block(block); });
}

Status launch_channels_last(const ChannelsProblem& problem, const Buffers& buffers, void* memory,
                            void*) {
  const DefaultFloatEnvironment environment;
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
