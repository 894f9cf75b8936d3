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
#include <bit>

#include "cpu/caches.hpp"
#include "cpu/parallel.hpp"
#include "cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/planes.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "cpu/channel.hpp"
#include "cpu/plane_grads-inl.h"
#include "cpu/plane_sums-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#ifndef NORMGRAD_CPU_PLANES_ONCE_
#define NORMGRAD_CPU_PLANES_ONCE_
namespace normgrad::cpu {

// So many that none is long for the others to wait for, and so few that each has several groups.
inline constexpr int64_t kTasksPerThread = 8;
// Channels per thread from which on whole channels are dealt out.
inline constexpr int64_t kManyChannels = 4;

// A contiguous run of elements of one channel.
struct Run {
  int64_t sample, begin, count;
};

class Pieces {
 public:
  explicit Pieces(const ChannelsProblem& problem)
      : samples_(problem.samples), length_(problem.length) {
    if (length_ > kElements) {
      parts_ = (length_ + kElements - 1) / kElements;
    } else if (length_ > 0) {
      group_ = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(kElements / length_)));
    }
  }

  int64_t count() const {
    if (length_ == 0) return 0;
    return parts_ > 1 ? samples_ * parts_ : (samples_ + group_ - 1) / group_;
  }
  int64_t runs(int64_t piece) const {
    return parts_ > 1 ? 1 : std::min(group_, samples_ - piece * group_);
  }
  Run run(int64_t piece, int64_t index) const {
    if (parts_ == 1) return {piece * group_ + index, 0, length_};
    const int64_t begin = piece % parts_ * kElements;
    return {piece / parts_, begin, std::min(kElements, length_ - begin)};
  }

 private:
  static constexpr int64_t kElements = 16384;
  int64_t samples_, length_;
  int64_t parts_ = 1;  // pieces in a sample
  int64_t group_ = 1;  // samples in a piece
};

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

// Neighbouring channels, and how far away those are that this thread takes next (0: none).
struct Block {
  int64_t begin, end;
  int64_t channels_ahead;
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
    from_memory_ = bytes() > streaming_bytes();
    streaming_ = from_memory_ && !in_place;
    dense_dx_ = problem.dx.channel == problem.length;
  }

  int64_t bytes() const {
    return 3 * problem_.samples * problem_.length * problem_.channels * kSize;
  }
  int64_t pieces() const { return pieces_.count(); }

  // Channels whose x and dy stay in a core's cache together.
  int64_t group_channels() const {
    const int64_t channel_bytes = 2 * problem_.samples * problem_.length * kSize;
    const int64_t fitting = core_cache_bytes() / 2 / HWY_MAX(channel_bytes, 1);
    const int64_t sharing = problem_.channels / (kTasksPerThread * threads());
    int64_t channels = HWY_MAX(1, HWY_MIN(fitting, sharing));
    // So many that dx of a group begins and ends with a cache line.
    while (channels > 1 && channels * problem_.length * kSize % kLine != 0 && unit() <= channels) {
      --channels;
    }
    return channels;
  }
  // Channels that are taken together where their runs are short.
  int64_t band_channels() const {
    constexpr int64_t kBandBytes = 4096;
    return HWY_MAX(1, HWY_MIN(problem_.channels, kBandBytes / HWY_MAX(1, problem_.length * kSize)));
  }

  void start(const Block& block) const {
    for (int64_t c = block.begin; c < block.end; ++c) {
      workspace_.channels[c] = make_channel(problem_, buffers_, c);
    }
  }

  void sum_piece(const Block& block, int64_t piece) const {
    const int64_t runs = pieces_.runs(piece);
    for (int64_t c = block.begin; c < block.end; ++c) {
      PlaneSummer<T> summer(workspace_.channels[c].scalars);
      for (int64_t i = 0; i < runs; ++i) {
        const Run run = pieces_.run(piece, i);
        summer.add(at(buffers_.x, problem_.x, c, run), at(buffers_.dy, problem_.dy, c, run),
                   run.count);
      }
      sums(c)[piece] = summer.total();
    }
  }

  void finish(const Block& block) const {
    const bool summed = pieces() > 0 && needs_sums(problem_);
    for (int64_t c = block.begin; c < block.end; ++c) {
      Channel& channel = workspace_.channels[c];
      ChannelSums total;
      if (summed) {
        total = tree_sum(sums(c));
        if constexpr (plane_sums_have_scale<T>) {
          total.dy_centred /= static_cast<double>(channel.scalars.scale);
        }
      }
      finish_channel<T>(problem_, buffers_, c, total, elements_, channel);
    }
  }

  // From the last run to the first: what was read last is still in cache.
  void write_piece(const Block& block, int64_t piece) const {
    const bool any_wide =
        std::any_of(workspace_.channels + block.begin, workspace_.channels + block.end,
                    [](const Channel& channel) { return channel.wide; });
    for (int64_t i = pieces_.runs(piece) - 1; i >= 0; --i) {
      const Run run = pieces_.run(piece, i);
      if (!any_wide) {
        write_band(band(block, run));
        continue;
      }
      for (int64_t c = block.begin; c < block.end; ++c) {
        const Band<T> one = band({c, c + 1, 0}, run);
        if (one.channels->wide) {
          write_wide(one);
        } else {
          write_band(one);
        }
      }
    }
  }

  // Asks for a block's first piece.
  void call(const Block& block) const {
    if (!from_memory_) return;
    for (int64_t i = 0; i < pieces_.runs(0); ++i) {
      const Run run = pieces_.run(0, i);
      const T* x = at(buffers_.x, problem_.x, block.begin, run);
      const T* dy = at(buffers_.dy, problem_.dy, block.begin, run);
      const int64_t count = (block.end - block.begin) * run.count;
      for (int64_t k = 0; k < count; k += kLine / kSize) {
        __builtin_prefetch(x + k, 0, 2);
        __builtin_prefetch(dy + k, 0, 2);
      }
    }
  }

 private:
  static constexpr int64_t kSize = sizeof(T);
  static constexpr int64_t kLine = 64;

  int64_t unit() const {
    int64_t channels = 1;
    while (channels * problem_.length * kSize % kLine != 0) channels *= 2;
    return channels;
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

  Band<T> band(const Block& block, const Run& run) const {
    const int64_t ahead = from_memory_ ? block.channels_ahead : 0;
    return {workspace_.channels + block.begin,
            block.end - block.begin,
            run.count,
            at(buffers_.x, problem_.x, block.begin, run),
            at(buffers_.dy, problem_.dy, block.begin, run),
            const_cast<T*>(at(buffers_.dx, problem_.dx, block.begin, run)),
            problem_.x.channel,
            problem_.dy.channel,
            problem_.dx.channel,
            ahead * problem_.x.channel,
            ahead * problem_.dy.channel};
  }

  void write_band(const Band<T>& band) const {
    if (!streaming_) return grads<false>(band);
    if (dense_dx_ && band.count > 1 && band.length * kSize < kShortBytes &&
        band.length * kSize % kLine != 0) {
      return write_staged(band);
    }
    grads<true>(band);
  }

  // Short runs of dx that do not start at a cache line share most of their lines with a neighbour:
  // they are written to a place in the first-level cache, and streamed from there.
  void write_staged(const Band<T>& band) const {
    HWY_ALIGN T stage[kStageBytes / kSize];
    const int64_t fitting = kStageBytes / (band.length * kSize);
    const int64_t step = HWY_MIN(fitting, HWY_MAX(unit(), fitting / unit() * unit()));
    for (int64_t i = 0; i < band.count; i += step) {
      Band<T> part = band;
      part.channels += i;
      part.count = HWY_MIN(step, band.count - i);
      part.x += i * band.x_stride;
      part.dy += i * band.dy_stride;
      part.dx = stage;
      grads<false>(part);
      stream_copy(stage, band.dx + i * band.dx_stride, part.count * band.length);
    }
  }

  template <bool kStreaming>
  void grads(const Band<T>& band) const {
    if (problem_.frozen) {
      plane_grads<T, true, kStreaming>(band);
    } else {
      plane_grads<T, false, kStreaming>(band);
    }
  }

  static HWY_NOINLINE void write_wide(const Band<T>& band) {
    for (int64_t k = 0; k < band.length; ++k) {
      band.dx[k] = narrow<T>(band.channels->dx(widen(band.x[k]), widen(band.dy[k])));
    }
  }

  static const T* at(const void* data, const ChannelsProblem::Strides& strides, int64_t c,
                     const Run& run) {
    return static_cast<const T*>(data) + run.sample * strides.sample + c * strides.channel +
           run.begin;
  }
  ChannelSums* sums(int64_t c) const { return workspace_.sums + c * pieces(); }

  static constexpr int64_t kShortBytes = 2048, kStageBytes = 8192;

  const ChannelsProblem& problem_;
  const Buffers& buffers_;
  const PlanesWorkspace workspace_;
  const Pieces pieces_;
  const double elements_;
  bool from_memory_ = false, streaming_ = false, dense_dx_ = false;
};

// Each group of channels is looked at twice by the same thread, the second time in its cache.
template <class T>
void run_groups(const ChannelsProblem& problem, const PlanesRun<T>& run) {
  const int64_t pieces = run.pieces();
  const int64_t size = run.group_channels();
  const int64_t groups = (problem.channels + size - 1) / size;
  const int64_t tasks = HWY_MIN(groups, kTasksPerThread * threads());
  parallel_for(tasks, run.bytes(), [&](int64_t task) {
    const int64_t first = groups * task / tasks, end = groups * (task + 1) / tasks;
    for (int64_t group = first; group < end; ++group) {
      const bool last = group + 1 == end;
      const Block block = {group * size, HWY_MIN((group + 1) * size, problem.channels),
                           last ? 0 : size};
      run.start(block);
      if (needs_sums(problem)) {
        if (group == first) run.call(block);
        for (int64_t piece = 0; piece < pieces; ++piece) run.sum_piece(block, piece);
      }
      run.finish(block);
      if (!problem.has_dx) continue;
      for (int64_t piece = pieces - 1; piece >= 0; --piece) run.write_piece(block, piece);
    }
    hwy::FlushStream();
  });
}

// The pieces of the channels are the tasks, with a barrier between sums and dx.
template <class T>
void run_pieces(const ChannelsProblem& problem, const PlanesRun<T>& run) {
  const int64_t pieces = run.pieces();
  const int64_t size = run.band_channels();
  const int64_t blocks = (problem.channels + size - 1) / size;
  const auto block = [&](int64_t task) {
    const int64_t begin = task % blocks * size;
    return Block{begin, HWY_MIN(begin + size, problem.channels), 0};
  };
  const Block all = {0, problem.channels, 0};
  run.start(all);
  if (needs_sums(problem)) {
    parallel_for(blocks * pieces, run.bytes(),
                 [&](int64_t task) { run.sum_piece(block(task), task / blocks); });
  }
  run.finish(all);
  if (!problem.has_dx) return;
  parallel_for(blocks * pieces, run.bytes(), [&](int64_t task) {
    const int64_t back = blocks * pieces - 1 - task;
    run.write_piece(block(back), back / blocks);
    hwy::FlushStream();
  });
}

template <class T>
void run_planes(const ChannelsProblem& problem, const Buffers& buffers, void* memory) {
  const PlanesRun<T> run(problem, buffers, memory);
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
