// BatchNorm on the CPU, contiguous along the length: each channel is a row of planes.
//
//   y = (x - mean) * r * gamma + beta,  r = 1 / sqrt(variance + eps)
//
// The statistics need the whole channel before the first y: two looks. A channel that fits in cache
// comes from memory once (1 read, 1 write per element), a larger one twice, the second time in
// reverse. Sums are float64, elements float32: 4 roundings.
//
// Order of the sums: the pieces of pieces.hpp, which meet one after the other (moments.hpp); a
// function of the samples and the length alone.
#include <algorithm>

#include "cpu/caches.hpp"
#include "cpu/forward_channel.hpp"
#include "cpu/parallel.hpp"
#include "cpu/pieces.hpp"
#include "cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/planes_forward.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "cpu/io-inl.h"
#include "cpu/moments-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#ifndef NORMGRAD_CPU_PLANES_FORWARD_ONCE_
#define NORMGRAD_CPU_PLANES_FORWARD_ONCE_
namespace normgrad::cpu {

struct PlanesForwardWorkspace {
  Moments* moments;  // channels x pieces
  ForwardChannel* channels;

  PlanesForwardWorkspace(const ChannelsForwardProblem& problem, void* memory)
      : moments(static_cast<Moments*>(memory)),
        channels(reinterpret_cast<ForwardChannel*>(moments +
                                                   problem.channels * Pieces(problem).count())) {}
};

size_t planes_forward_workspace(const ChannelsForwardProblem& problem) {
  const int64_t pieces = Pieces(problem).count();
  return static_cast<size_t>(problem.channels) *
         (static_cast<size_t>(pieces) * sizeof(Moments) + sizeof(ForwardChannel));
}

}  // namespace normgrad::cpu
#endif  // NORMGRAD_CPU_PLANES_FORWARD_ONCE_

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// Some runs of a channel, `stride` apart. Those that come soon are asked for meanwhile, 2 KiB
// ahead: short ones are too short for the hardware to foresee.
template <class T>
HWY_NOINLINE ShiftedSums sum_runs(const T* x, int64_t stride, int64_t runs, int64_t length,
                                  double pivot) {
  constexpr int64_t kAhead = 2048 / sizeof(T);
  const int64_t ahead = stride * HWY_MAX(1, kAhead / length);
  ShiftedSummer sums(pivot);
  for (int64_t n = 0; n < runs; ++n, x += stride) {
    int64_t k = 0;
    for (; k + pair_lanes() <= length; k += pair_lanes()) {
      sums.add(load_pair(x + k));
      prefetch_pair(x + ahead + k);
    }
    prefetch_pair(x + ahead + k);
    if (k + lanes() <= length) {
      sums.add(load(x + k));
      k += lanes();
    }
    if (k < length) sums.add_tail(load_tail(x + k, length - k), length - k);
  }
  ShiftedSums total = {pivot, 0, 0};
  sums.total(&total.sum, &total.squares);
  return total;
}

// y of one run.
template <class T, bool kStreaming>
class RunWriter {
 public:
  HWY_INLINE explicit RunWriter(const ChannelScale& s)
      : mean_(hn::Set(Floats(), s.mean)),
        mean_rest_(hn::Set(Floats(), s.mean_rest)),
        scale_(hn::Set(Floats(), s.scale)),
        beta_(hn::Set(Floats(), s.beta)) {}

  HWY_INLINE void write(const T* x, T* y, int64_t length) const {
    int64_t k = 0;
    if constexpr (kStreaming) {
      k = HWY_MIN(first_whole(y), length);
      some(x, y, k);
    }
    for (; k + pair_lanes() <= length; k += pair_lanes()) {
      const FloatPair pair = load_pair(x + k);
      if constexpr (kStreaming) {
        stream_pair({element(pair.a), element(pair.b)}, y + k);
      } else {
        store_pair({element(pair.a), element(pair.b)}, y + k);
      }
    }
    some(x + k, y + k, length - k);
  }

 private:
  // Elements before the first that a pair may be streamed to.
  static HWY_INLINE int64_t first_whole(const T* y) {
    const auto bytes = static_cast<uintptr_t>(pair_lanes()) * sizeof(T);
    return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(y) % bytes / sizeof(T));
  }

  HWY_INLINE FloatVec element(FloatVec x) const {
    return hn::MulAdd(hn::Sub(hn::Sub(x, mean_), mean_rest_), scale_, beta_);
  }
  HWY_INLINE void some(const T* x, T* y, int64_t count) const {
    int64_t k = 0;
    if (count >= lanes()) {
      store(element(load(x)), y);
      k = lanes();
    }
    if (k < count) store_tail(element(load_tail(x + k, count - k)), y + k, count - k);
  }

  const FloatVec mean_, mean_rest_, scale_, beta_;
};

// Some runs, from the last to the first: what was read last is still in cache.
template <class T, bool kStreaming>
HWY_NOINLINE void write_runs(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t runs,
                             int64_t length, const ChannelScale& scale) {
  const RunWriter<T, kStreaming> writer(scale);
  for (int64_t n = runs - 1; n >= 0; --n) writer.write(x + n * x_stride, y + n * y_stride, length);
}

template <class T>
class PlanesForwardRun {
 public:
  PlanesForwardRun(const ChannelsForwardProblem& problem, const Buffers& buffers, void* memory)
      : problem_(problem), buffers_(buffers), workspace_(problem, memory), pieces_(problem) {
    streaming_ = bytes() > streaming_bytes() && buffers.y != buffers.x;
  }

  void run() const {
    if (problem_.channels >= kManyChannels * threads() || pieces_.count() <= 1) {
      by_channels();
    } else {
      by_pieces();
    }
  }

 private:
  static constexpr int64_t kSize = sizeof(T);

  int64_t bytes() const {
    return 2 * problem_.samples * problem_.length * problem_.channels * kSize;
  }

  // Whole channels are dealt out: the second look at one finds it in the thread's cache.
  void by_channels() const {
    const int64_t channel_bytes = HWY_MAX(1, problem_.samples * problem_.length * kSize);
    const int64_t size = std::clamp<int64_t>((1 << 16) / channel_bytes, 1,
                                             HWY_MAX(1, problem_.channels / threads()));
    parallel_for((problem_.channels + size - 1) / size, bytes(), [&](int64_t task) {
      const int64_t end = HWY_MIN((task + 1) * size, problem_.channels);
      for (int64_t c = task * size; c < end; ++c) {
        for (int64_t i = 0; !problem_.frozen && i < pieces_.count(); ++i) sum_piece(c, i);
        finish(c);
        for (int64_t i = pieces_.count() - 1; problem_.has_y && i >= 0; --i) write_piece(c, i);
      }
      hwy::FlushStream();
    });
  }

  // The pieces of the channels are dealt out, those of neighbours with short runs together, with a
  // barrier between sums and y.
  void by_pieces() const {
    constexpr int64_t kBandBytes = 4096;
    const int64_t size =
        std::clamp<int64_t>(kBandBytes / (problem_.length * kSize), 1, problem_.channels);
    const int64_t blocks = (problem_.channels + size - 1) / size;
    const int64_t tasks = blocks * pieces_.count();
    const auto for_channels = [&](int64_t task, const auto& body) {
      const int64_t begin = task % blocks * size, end = HWY_MIN(begin + size, problem_.channels);
      for (int64_t c = begin; c < end; ++c) body(c, task / blocks);
    };
    if (!problem_.frozen) {
      parallel_for(tasks, bytes(), [&](int64_t task) {
        for_channels(task, [&](int64_t c, int64_t piece) { sum_piece(c, piece); });
      });
    }
    for (int64_t c = 0; c < problem_.channels; ++c) finish(c);
    if (!problem_.has_y) return;
    // Backwards: what was read last is in some cache.
    parallel_for(tasks, bytes(), [&](int64_t task) {
      for_channels(tasks - 1 - task, [&](int64_t c, int64_t piece) { write_piece(c, piece); });
      hwy::FlushStream();
    });
  }

  Moments* moments(int64_t c) const { return workspace_.moments + c * pieces_.count(); }

  void sum_piece(int64_t c, int64_t piece) const {
    const Run first = pieces_.run(piece, 0);
    const int64_t runs = pieces_.runs(piece);
    const T* x = at(static_cast<const T*>(buffers_.x), problem_.x, c, first);
    const ShiftedSums sums = sum_runs(x, problem_.x.sample, runs, first.count, pivot_of(widen(*x)));
    moments(c)[piece] = Moments(static_cast<double>(runs * first.count), sums);
  }

  void finish(int64_t c) const {
    Moments total;
    for (int64_t i = 0; !problem_.frozen && i < pieces_.count(); ++i) total += moments(c)[i];
    workspace_.channels[c] = finish_forward_channel(problem_, buffers_, c, total);
  }

  void write_piece(int64_t c, int64_t piece) const {
    const ForwardChannel& channel = workspace_.channels[c];
    const Run first = pieces_.run(piece, 0);
    const int64_t runs = pieces_.runs(piece);
    const T* x = at(static_cast<const T*>(buffers_.x), problem_.x, c, first);
    T* y = at(static_cast<T*>(buffers_.y), problem_.y, c, first);
    if (channel.wide) {
      for (int64_t n = 0; n < runs; ++n) {
        write_wide(channel, x + n * problem_.x.sample, y + n * problem_.y.sample, first.count);
      }
      return;
    }
    const auto write = streaming_ ? write_runs<T, true> : write_runs<T, false>;
    write(x, problem_.x.sample, y, problem_.y.sample, runs, first.count, channel.scale);
  }
  static HWY_NOINLINE void write_wide(const ForwardChannel& channel, const T* x, T* y,
                                      int64_t length) {
    for (int64_t k = 0; k < length; ++k) y[k] = narrow<T>(channel.y(widen(x[k])));
  }

  template <class Element>
  static Element* at(Element* data, const ChannelsShape::Strides& strides, int64_t c,
                     const Run& run) {
    return data + run.sample * strides.sample + c * strides.channel + run.begin;
  }

  const ChannelsForwardProblem& problem_;
  const Buffers& buffers_;
  const PlanesForwardWorkspace workspace_;
  const Pieces pieces_;
  bool streaming_ = false;
};

Status launch_planes_forward(const ChannelsForwardProblem& problem, const Buffers& buffers,
                             void* memory, void*) {
  const DefaultFloatEnvironment environment;
  with_type(problem.dtype,
            [&](auto type) { PlanesForwardRun<decltype(type)>(problem, buffers, memory).run(); });
  return {};
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normgrad::cpu {

HWY_EXPORT(launch_planes_forward);

Launch<ChannelsForwardProblem> planes_forward_launch(int64_t target) {
  return HWY_DISPATCH_TABLE(launch_planes_forward)[table_index(target)];
}

}  // namespace normgrad::cpu
#endif  // HWY_ONCE
