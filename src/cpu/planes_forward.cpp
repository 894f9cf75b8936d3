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
#include "cpu/pages.hpp"
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

// Channels that are looked at together.
inline constexpr int64_t kMostChannels = 32;

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

// The elements of neighbouring channels in some samples.
template <class T>
struct Runs {
  int64_t samples, channels, length;
  const T* x;
  T* y;
  ChannelsShape::Strides x_strides, y_strides;
};

// One run. What lacks to whole vectors is in a vector that ends with the run: loads of a few
// elements are slow.
template <class T>
HWY_INLINE void add_run(const T* x, int64_t length, int64_t ahead, ShiftedSummer<>& sums) {
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
  if (k == length) return;
  if (length >= lanes()) {
    sums.add_behind(load(x + length - lanes()), k + lanes() - length);
  } else {
    sums.add_tail(load_tail(x, length), length);
  }
}

// The sums of up to kMostChannels channels. What comes soon is asked for meanwhile, 2 KiB ahead:
// runs of a few KiB are too short for the hardware to foresee.
template <class T>
HWY_NOINLINE void sum_runs(const Runs<T>& runs, ShiftedSums* sums) {
  constexpr int64_t kAhead = 2048 / sizeof(T);
  const int64_t ahead = runs.x_strides.sample * HWY_MAX(1, kAhead / (runs.length * runs.channels));
  ShiftedSummer<> summers[kMostChannels];
  for (int64_t c = 0; c < runs.channels; ++c) {
    sums[c].pivot = pivot_of(widen(runs.x[c * runs.x_strides.channel]));
    summers[c] = ShiftedSummer<>(sums[c].pivot);
  }
  for (int64_t n = 0; n < runs.samples; ++n) {
    const T* x = runs.x + n * runs.x_strides.sample;
    for (int64_t c = 0; c < runs.channels; ++c, x += runs.x_strides.channel) {
      ShiftedSummer<> summer = summers[c];
      add_run(x, runs.length, ahead, summer);
      summers[c] = summer;
    }
  }
  for (int64_t c = 0; c < runs.channels; ++c) summers[c].total(&sums[c].sum, &sums[c].squares);
}

template <class T>
HWY_NOINLINE void write_wide(const ForwardChannel& channel, const T* x, T* y, int64_t length) {
  for (int64_t k = 0; k < length; ++k) y[k] = narrow<T>(channel.y(widen(x[k])));
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

  // What lacks to whole vectors is in one that ends with the run. It is read first: y may be x.
  HWY_INLINE void write(const T* x, T* y, int64_t length) const {
    if (length < lanes()) return store_tail(element(load_tail(x, length)), y, length);
    const FloatVec last = element(load(x + length - lanes()));
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
    if (k + lanes() <= length) {
      store(element(load(x + k)), y + k);
      k += lanes();
    }
    if (k < length) store(last, y + length - lanes());
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

// From the last run to the first: what was read last is still in cache.
template <class T, bool kStreaming>
HWY_NOINLINE void write_runs(const Runs<T>& runs, const ForwardChannel* channels) {
  for (int64_t n = runs.samples - 1; n >= 0; --n) {
    for (int64_t c = runs.channels - 1; c >= 0; --c) {
      const T* x = runs.x + n * runs.x_strides.sample + c * runs.x_strides.channel;
      T* y = runs.y + n * runs.y_strides.sample + c * runs.y_strides.channel;
      if (channels[c].wide) {
        write_wide(channels[c], x, y, runs.length);
      } else {
        RunWriter<T, kStreaming>(channels[c].scale).write(x, y, runs.length);
      }
    }
  }
}

template <class T>
class PlanesForwardRun {
 public:
  PlanesForwardRun(const ChannelsForwardProblem& problem, const Buffers& buffers, void* memory)
      : problem_(problem), buffers_(buffers), workspace_(problem, memory), pieces_(problem) {
    // Short runs leave too many lines that are not whole.
    streaming_ = problem.has_y && buffers.y != buffers.x &&
                 stored_past_caches(written(buffers.y, problem.y, bytes() / 2), bytes()) &&
                 problem.length * kSize >= kLeastStreamed;
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
  static constexpr int64_t kLeastStreamed = 1024;

  int64_t bytes() const {
    return 2 * problem_.samples * problem_.length * problem_.channels * kSize;
  }

  // Whole channels are dealt out, in groups: the second look at a group finds it in the thread's
  // cache.
  void by_channels() const {
    const int64_t channel_bytes = HWY_MAX(1, problem_.samples * problem_.length * kSize);
    const int64_t fitting = HWY_MIN(core_cache_bytes() / 2 / channel_bytes, kMostChannels);
    const int64_t size =
        std::clamp<int64_t>(problem_.channels / (4 * threads()), 1, HWY_MAX(1, fitting));
    parallel_for((problem_.channels + size - 1) / size, bytes(), [&](int64_t task) {
      const int64_t begin = task * size, end = HWY_MIN(begin + size, problem_.channels);
      for (int64_t i = 0; needs_moments(problem_) && i < pieces_.count(); ++i)
        sum_piece(begin, end, i);
      finish(begin, end);
      for (int64_t i = pieces_.count() - 1; problem_.has_y && i >= 0; --i) {
        write_piece(begin, end, i);
      }
      hwy::FlushStream();
    });
  }

  // The pieces of the channels are dealt out, those of neighbours with short runs together, with a
  // barrier between sums and y.
  void by_pieces() const {
    constexpr int64_t kBandBytes = 4096;
    const int64_t fitting = HWY_MIN(kBandBytes / (problem_.length * kSize), kMostChannels);
    const int64_t size = std::clamp<int64_t>(fitting, 1, problem_.channels);
    const int64_t blocks = (problem_.channels + size - 1) / size;
    const int64_t tasks = blocks * pieces_.count();
    const auto end = [&](int64_t begin) { return HWY_MIN(begin + size, problem_.channels); };
    if (needs_moments(problem_)) {
      parallel_for(tasks, bytes(), [&](int64_t task) {
        const int64_t begin = task % blocks * size;
        sum_piece(begin, end(begin), task / blocks);
      });
    }
    finish(0, problem_.channels);
    if (!problem_.has_y) return;
    const auto write = [&](int64_t task) {
      const int64_t begin = task % blocks * size;
      write_piece(begin, end(begin), task / blocks);
      hwy::FlushStream();
    };
    parallel_for(tasks, bytes(), write, Order::kBackward);
  }

  Moments* moments(int64_t c) const { return workspace_.moments + c * pieces_.count(); }

  // Channels [begin, end).
  Runs<T> runs(int64_t begin, int64_t end, int64_t piece) const {
    const Run first = pieces_.run(piece, 0);
    const auto offset = [&](const ChannelsShape::Strides& strides) {
      return first.sample * strides.sample + begin * strides.channel + first.begin;
    };
    Runs<T> runs = {pieces_.runs(piece), end - begin, first.count, nullptr, nullptr,
                    problem_.x,          problem_.y};
    runs.x = static_cast<const T*>(buffers_.x) + offset(problem_.x);
    if (problem_.has_y) runs.y = static_cast<T*>(buffers_.y) + offset(problem_.y);
    return runs;
  }

  void sum_piece(int64_t begin, int64_t end, int64_t piece) const {
    ShiftedSums sums[kMostChannels];
    const Runs<T> elements = runs(begin, end, piece);
    sum_runs(elements, sums);
    for (int64_t c = begin; c < end; ++c) {
      moments(c)[piece] =
          Moments(static_cast<double>(elements.samples * elements.length), sums[c - begin]);
    }
  }

  void finish(int64_t begin, int64_t end) const {
    const int64_t pieces = needs_moments(problem_) ? pieces_.count() : 0;
    GivenMoments given(problem_, buffers_, end);
    for (int64_t c = begin; c < end; ++c) {
      Moments total;
      for (int64_t i = 0; i < pieces; ++i) total += moments(c)[i];
      workspace_.channels[c] = finish_forward_channel(problem_, buffers_, c, total, given);
    }
  }

  void write_piece(int64_t begin, int64_t end, int64_t piece) const {
    const auto write = streaming_ ? write_runs<T, true> : write_runs<T, false>;
    write(runs(begin, end, piece), workspace_.channels + begin);
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
