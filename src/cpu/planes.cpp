// BatchNorm backward on the CPU, contiguous along the length: each channel is a row of planes.
//
//   dx = gamma * r * (dy - c1 - x_hat * c2),  c1 = mean(dy), c2 = mean(dy * x_hat) over the channel
//   dgamma = sum of dy * x_hat, dbeta = sum of dy; with frozen statistics dx = gamma * r * dy
//
// The sums need the whole channel before the first dx: two looks. A channel that fits in cache
// comes from memory once (2 reads, 1 write per element), a larger one twice, the second time in
// reverse. Elements are float32, the sums float64 (plane_sums-inl.h).
//
// Order of the sums: a channel is cut into pieces of about 16384 elements (some samples, or part of
// one), which meet in an aligned binary tree; a function of the length alone.
#include <algorithm>
#include <atomic>

#include "cpu/caches.hpp"
#include "cpu/pages.hpp"
#include "cpu/parallel.hpp"
#include "cpu/pieces.hpp"
#include "cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/planes.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "cpu/channel.hpp"
#include "cpu/channel_scalars-inl.h"
#include "cpu/plane_grads-inl.h"
#include "cpu/plane_sums-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#ifndef NORMGRAD_CPU_PLANES_ONCE_
#define NORMGRAD_CPU_PLANES_ONCE_
namespace normgrad::cpu {

// So many that none is long for the others to wait for, and so few that each has several groups.
inline constexpr int64_t kTasksPerThread = 4;
inline constexpr int64_t kTileBytes = 8192;
inline constexpr int64_t kTileElements = 512;

struct PlanesWorkspace {
  ChannelSums* sums;  // channels x pieces
  Channel* channels;

  PlanesWorkspace(const ChannelsProblem& problem, void* memory)
      : sums(static_cast<ChannelSums*>(memory)),
        channels(reinterpret_cast<Channel*>(sums + problem.channels * Pieces(problem).count())) {}
};

size_t planes_workspace(const ChannelsProblem& problem) {
  const int64_t pieces = Pieces(problem).count();
  return static_cast<size_t>(problem.channels) *
         (static_cast<size_t>(pieces) * sizeof(ChannelSums) + sizeof(Channel));
}

}  // namespace normgrad::cpu
#endif  // NORMGRAD_CPU_PLANES_ONCE_

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// Neighbouring channels.
struct Block {
  int64_t begin, end;

  int64_t count() const { return end - begin; }
};

template <class T>
class PlanesRun {
 public:
  PlanesRun(const ChannelsProblem& problem, const Buffers& buffers, void* memory)
      : problem_(problem),
        buffers_(buffers),
        workspace_(problem, memory),
        pieces_(problem),
        elements_(batch_elements(problem, buffers)) {
    const bool in_place = buffers.dx == buffers.x || buffers.dx == buffers.dy;
    asks_ = bytes() > core_cache_bytes();
    streaming_ = problem.has_dx && !in_place &&
                 stored_past_caches(written(buffers.dx, problem.dx, bytes() / 3), bytes());
    const int64_t length = problem.length;
    dense_ = length >= pair_lanes() && pieces_.whole() && problem.x.channel == length &&
             problem.dy.channel == length && problem.dx.channel == length;
  }

  int64_t bytes() const {
    return 3 * problem_.samples * problem_.length * problem_.channels * kSize;
  }
  int64_t pieces() const { return pieces_.count(); }

  // Channels whose x and dy stay in a core's cache together.
  int64_t group_channels(int64_t tasks) const {
    const int64_t channel_bytes = 2 * problem_.samples * problem_.length * kSize;
    const int64_t fitting = core_cache_bytes() * 6 / 8 / HWY_MAX(channel_bytes, 1);
    return HWY_MAX(1, HWY_MIN(kMostChannels, HWY_MIN(fitting, problem_.channels / tasks)));
  }
  // Channels that are taken together where their runs are short.
  int64_t band_channels() const {
    constexpr int64_t kBandBytes = 4096;
    const int64_t fitting = kBandBytes / HWY_MAX(1, problem_.length * kSize);
    return HWY_MAX(1, HWY_MIN(kMostChannels, HWY_MIN(problem_.channels, fitting)));
  }

  void start(const Block& block) const {
    make_channels(problem_, buffers_, block.begin, block.count(), channels(block));
  }

  void sum_piece(const Block& block, int64_t piece) const {
    double sums_so_far[kMostChannels][PlaneSums::kMostDoubles];
    const int64_t runs = pieces_.runs(piece);
    const Run first = pieces_.run(piece, 0);
    const int64_t run_bytes = block.count() * first.count * kSize;
    const int64_t samples =
        2 * HWY_MAX(1, HWY_MAX(kTileElements / first.count, kTileBytes / run_bytes) / 2);
    for (int64_t i = 0; i < runs; i += samples) {
      const Run run = pieces_.run(piece, i);
      SumTile<T> tile = {channels(block),
                         block.count(),
                         HWY_MIN(samples, runs - i),
                         run.count,
                         at(buffers_.x, problem_.x, block.begin, run),
                         at(buffers_.dy, problem_.dy, block.begin, run),
                         nullptr,
                         nullptr,
                         problem_.x,
                         problem_.dy,
                         i == 0,
                         sums_so_far,
                         i + samples < runs ? nullptr : sums(block.begin) + piece,
                         pieces()};
      const Run next = after(piece, i + samples);
      if (!asks_ || next.count == 0) {
        add_tile<false>(tile);
      } else {
        tile.next_x = at(buffers_.x, problem_.x, block.begin, next);
        tile.next_dy = at(buffers_.dy, problem_.dy, block.begin, next);
        add_tile<true>(tile);
      }
    }
  }

  void finish(const Block& block) {
    const bool summed = pieces() > 0 && needs_sums(problem_);
    ChannelTotals totals;
    for (int64_t k = 0; summed && k < block.count(); ++k) {
      const ChannelSums total = tree_sum(sums(block.begin + k));
      totals.dy[k] = total.dy;
      totals.dy_xmu[k] = total.dy_centred;
      if constexpr (kPlaneSumsHaveScale<T>) {
        totals.dy_xmu[k] /= static_cast<double>(channels(block)[k].scalars.scale);
      }
    }
    bool any_wide = finish_channels<T>(problem_, buffers_, block.begin, block.count(), totals,
                                       elements_, channels(block));
    for (int64_t k = 0; kC2HasScale<T> && k < block.count(); ++k) {
      Channel& channel = channels(block)[k];
      const double c2 = channel.normalizer.scale * channel.c2;
      channel.scalars.c2 = static_cast<float>(c2);
      if (channel.c2 == 0 || is_safe(c2) || problem_.frozen) continue;
      channel.wide = any_wide = true;
    }
    if (any_wide) any_wide_.store(true, std::memory_order_relaxed);
  }

  // From the last run to the first: what was read last is still in cache.
  void write_piece(const Block& block, int64_t piece) const {
    const bool any_wide = any_wide_.load(std::memory_order_relaxed) &&
                          std::any_of(channels(block), channels(block) + block.count(),
                                      [](const Channel& channel) { return channel.wide; });
    for (int64_t i = pieces_.runs(piece) - 1; i >= 0; --i) {
      const Run run = pieces_.run(piece, i);
      if (!any_wide) {
        write(stretch(block, run));
        continue;
      }
      for (int64_t c = block.begin; c < block.end; ++c) {
        const Stretch<T> one = stretch({c, c + 1}, run);
        if (one.channels->wide) {
          write_wide(one);
        } else {
          write(one);
        }
      }
    }
  }

 private:
  static constexpr int64_t kSize = sizeof(T);

  // The run that follows in the walk over a block: of the same piece, or of the next.
  Run after(int64_t piece, int64_t index) const {
    if (index < pieces_.runs(piece)) return pieces_.run(piece, index);
    if (piece + 1 < pieces()) return pieces_.run(piece + 1, 0);
    return {0, 0, 0};
  }

  ChannelSums tree_sum(ChannelSums* s) const {
    for (int64_t step = 1; step < pieces(); step *= 2) {
      for (int64_t i = 0; i + step < pieces(); i += 2 * step) {
        s[i].dy += s[i + step].dy;
        s[i].dy_centred += s[i + step].dy_centred;
      }
    }
    return s[0];
  }

  Stretch<T> stretch(const Block& block, const Run& run) const {
    return {channels(block),
            block.count(),
            run.count,
            at(buffers_.x, problem_.x, block.begin, run),
            at(buffers_.dy, problem_.dy, block.begin, run),
            const_cast<T*>(at(buffers_.dx, problem_.dx, block.begin, run)),
            problem_.x.channel,
            problem_.dy.channel,
            problem_.dx.channel,
            dense_};
  }
  void write(const Stretch<T>& stretch) const {
    if (problem_.frozen && streaming_) {
      plane_grads<T, true, true>(stretch);
    } else if (problem_.frozen) {
      plane_grads<T, true, false>(stretch);
    } else if (streaming_) {
      plane_grads<T, false, true>(stretch);
    } else {
      plane_grads<T, false, false>(stretch);
    }
  }
  static HWY_NOINLINE void write_wide(const Stretch<T>& one) {
    for (int64_t k = 0; k < one.length; ++k) {
      one.dx[k] = narrow<T>(one.channels->dx(widen(one.x[k]), widen(one.dy[k])));
    }
  }

  static const T* at(const void* data, const ChannelsProblem::Strides& strides, int64_t c,
                     const Run& run) {
    return static_cast<const T*>(data) + run.sample * strides.sample + c * strides.channel +
           run.begin;
  }
  Channel* channels(const Block& block) const { return workspace_.channels + block.begin; }
  ChannelSums* sums(int64_t c) const { return workspace_.sums + c * pieces(); }

  const ChannelsProblem& problem_;
  const Buffers& buffers_;
  const PlanesWorkspace workspace_;
  const Pieces pieces_;
  const double elements_;
  bool asks_ = false, streaming_ = false, dense_ = false;
  std::atomic<bool> any_wide_{false};
};

// Whole channels are dealt out, in groups: the second look at a group finds it in the thread's
// cache.
template <class T>
void run_groups(const ChannelsProblem& problem, PlanesRun<T>& run) {
  const int64_t pieces = run.pieces();
  const int64_t size = run.group_channels(kTasksPerThread * threads());
  const int64_t groups = (problem.channels + size - 1) / size;
  parallel_for(groups, run.bytes(), [&](int64_t group) {
    const Block block = {group * size, HWY_MIN((group + 1) * size, problem.channels)};
    run.start(block);
    for (int64_t piece = 0; needs_sums(problem) && piece < pieces; ++piece) {
      run.sum_piece(block, piece);
    }
    run.finish(block);
    for (int64_t piece = pieces - 1; problem.has_dx && piece >= 0; --piece) {
      run.write_piece(block, piece);
    }
    hwy::FlushStream();
  });
}

// The pieces of the channels are dealt out, with a barrier between sums and dx.
template <class T>
void run_pieces(const ChannelsProblem& problem, PlanesRun<T>& run) {
  const int64_t pieces = run.pieces();
  const int64_t size = run.band_channels();
  const int64_t blocks = (problem.channels + size - 1) / size;
  const auto block = [&](int64_t task) {
    const int64_t begin = task % blocks * size;
    return Block{begin, HWY_MIN(begin + size, problem.channels)};
  };
  for (int64_t task = 0; task < blocks; ++task) run.start(block(task));
  if (needs_sums(problem)) {
    parallel_for(blocks * pieces, run.bytes(),
                 [&](int64_t task) { run.sum_piece(block(task), task / blocks); });
  }
  for (int64_t task = 0; task < blocks; ++task) run.finish(block(task));
  if (!problem.has_dx) return;
  const auto write = [&](int64_t task) {
    run.write_piece(block(task), task / blocks);
    hwy::FlushStream();
  };
  parallel_for(blocks * pieces, run.bytes(), write, Order::kBackward);
}

template <class T>
void run_planes(const ChannelsProblem& problem, const Buffers& buffers, void* memory) {
  PlanesRun<T> run(problem, buffers, memory);
  if (problem.channels >= kManyChannels * threads() || run.pieces() <= 1) {
    run_groups(problem, run);
  } else {
    run_pieces(problem, run);
  }
}

Status launch_planes(const ChannelsProblem& problem, const Buffers& buffers, void* memory, void*) {
  const DefaultFloatEnvironment environment;
  with_type(problem.dtype,
            [&](auto type) { run_planes<decltype(type)>(problem, buffers, memory); });
  return {};
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normgrad::cpu {

HWY_EXPORT(launch_planes);

Launch<ChannelsProblem> planes_launch(int64_t target) {
  return HWY_DISPATCH_TABLE(launch_planes)[table_index(target)];
}

}  // namespace normgrad::cpu
#endif  // HWY_ONCE
