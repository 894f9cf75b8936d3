// BatchNorm backward on the CPU, contiguous along the length: each channel is a row of planes.
//
//   dx = gamma * r * (dy - c1 - x_hat * c2),  c1 = mean(dy), c2 = mean(dy * x_hat) over the channel
//   dgamma = sum of dy * x_hat, dbeta = sum of dy; with frozen statistics dx = gamma * r * dy
//
// The sums need the whole channel before the first dx: two looks. A channel that fits in cache
// comes from memory once (2 reads, 1 write per element), a larger one twice. Elements are float32,
// the sums float64 of exact products.
//
// Order of the sums: a channel is cut into pieces of about 16384 elements (some samples, or part of
// one), which meet in an aligned binary tree; a function of the length alone.
#include <algorithm>
#include <bit>

#include "cpu/parallel.hpp"
#include "cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/planes.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "cpu/channel.hpp"
#include "cpu/formula-inl.h"
#include "cpu/io-inl.h"
#include "hwy/highway.h"

#ifndef NORMGRAD_CPU_PLANES_ONCE_
#define NORMGRAD_CPU_PLANES_ONCE_
namespace normgrad::cpu {

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

template <bool kTail, class T>
HWY_INLINE void add_to_sums(const T* x, const T* dy, FloatVec mean, int64_t count,
                            DoubleSum& sum_dy, DoubleSum& sum_dy_centred) {
  const DoublePair dy_pair = promote(load_some<kTail>(dy, count));
  const DoublePair centred = promote(hn::Sub(load_some<kTail>(x, count), mean));
  sum_dy.add(dy_pair);
  sum_dy_centred.add_product(dy_pair, centred);
}

template <bool kFrozen, bool kTail, class T>
HWY_INLINE void write_dx(const T* x, const T* dy, T* dx, const ScalarVecs& s, int64_t count) {
  const FloatVec dy_vec = load_some<kTail>(dy, count);
  if constexpr (kFrozen) {
    store_some<kTail>(hn::Mul(s.r, dy_vec), dx, count);
  } else {
    store_some<kTail>(s.dx(dy_vec, s.x_hat(load_some<kTail>(x, count))), dx, count);
  }
}

template <bool kFrozen, class T>
void write_run(const T* x, const T* dy, T* dx, const Scalars& scalars, int64_t count) {
  const ScalarVecs s(scalars);
  int64_t k = 0;
  for (; k + lanes() <= count; k += lanes()) {
    write_dx<kFrozen, false>(x + k, dy + k, dx + k, s, 0);
  }
  if (k < count) write_dx<kFrozen, true>(x + k, dy + k, dx + k, s, count - k);
}

template <class T>
class PlanesRun {
 public:
  PlanesRun(const ChannelsProblem& problem, const Buffers& buffers, void* memory)
      : problem_(problem),
        buffers_(buffers),
        workspace_(problem, memory),
        pieces_(problem),
        elements_(batch_elements(problem, buffers)) {}

  int64_t pieces() const { return pieces_.count(); }

  void start(int64_t c) const { workspace_.channels[c] = make_channel(problem_, buffers_, c); }

  void sum_piece(int64_t c, int64_t piece) const {
    const FloatVec mean = hn::Set(Floats(), workspace_.channels[c].scalars.mean);
    DoubleSum sum_dy, sum_dy_centred;
    for (int64_t i = 0; i < pieces_.runs(piece); ++i) {
      const Run run = pieces_.run(piece, i);
      const T* x = at(buffers_.x, problem_.x, c, run);
      const T* dy = at(buffers_.dy, problem_.dy, c, run);
      int64_t k = 0;
      for (; k + lanes() <= run.count; k += lanes()) {
        add_to_sums<false>(x + k, dy + k, mean, 0, sum_dy, sum_dy_centred);
      }
      if (k < run.count) {
        add_to_sums<true>(x + k, dy + k, mean, run.count - k, sum_dy, sum_dy_centred);
      }
    }
    sums(c)[piece] = {sum_dy.total(), sum_dy_centred.total()};
  }

  void finish(int64_t c) const {
    const bool summed = pieces() > 0 && needs_sums(problem_);
    ChannelSums* s = sums(c);
    for (int64_t step = 1; summed && step < pieces(); step *= 2) {
      for (int64_t i = 0; i + step < pieces(); i += 2 * step) {
        s[i].dy += s[i + step].dy;
        s[i].dy_centred += s[i + step].dy_centred;
      }
    }
    finish_channel<T>(problem_, buffers_, c, summed ? s[0] : ChannelSums{}, elements_,
                      workspace_.channels[c]);
  }

  void dx_piece(int64_t c, int64_t piece) const {
    const Channel& channel = workspace_.channels[c];
    for (int64_t i = 0; i < pieces_.runs(piece); ++i) {
      const Run run = pieces_.run(piece, i);
      const T* x = at(buffers_.x, problem_.x, c, run);
      const T* dy = at(buffers_.dy, problem_.dy, c, run);
      T* dx = const_cast<T*>(at(buffers_.dx, problem_.dx, c, run));
      if (channel.wide) {
        for (int64_t k = 0; k < run.count; ++k) {
          dx[k] = narrow<T>(channel.dx(widen(x[k]), widen(dy[k])));
        }
      } else if (problem_.frozen) {
        write_run<true>(x, dy, dx, channel.scalars, run.count);
      } else {
        write_run<false>(x, dy, dx, channel.scalars, run.count);
      }
    }
  }

 private:
  static const T* at(const void* data, const ChannelsProblem::Strides& strides, int64_t c,
                     const Run& run) {
    return static_cast<const T*>(data) + run.sample * strides.sample + c * strides.channel +
           run.begin;
  }
  ChannelSums* sums(int64_t c) const { return workspace_.sums + c * pieces(); }

  const ChannelsProblem& problem_;
  const Buffers& buffers_;
  const PlanesWorkspace workspace_;
  const Pieces pieces_;
  const double elements_;
};

template <class T>
void run_planes(const ChannelsProblem& problem, const Buffers& buffers, void* memory) {
  const PlanesRun<T> run(problem, buffers, memory);
  const int64_t channels = problem.channels;
  const int64_t pieces = run.pieces();
  const bool sums = needs_sums(problem);
  const int64_t bytes =
      3 * problem.samples * problem.length * channels * static_cast<int64_t>(sizeof(T));

  // Many channels: each is one task, and its second look finds it in cache if it fits there.
  constexpr int64_t kManyChannels = 32;
  if (channels >= kManyChannels || pieces <= 1) {
    parallel_for(channels, bytes, [&](int64_t c) {
      run.start(c);
      for (int64_t piece = 0; sums && piece < pieces; ++piece) run.sum_piece(c, piece);
      run.finish(c);
      for (int64_t piece = 0; problem.has_dx && piece < pieces; ++piece) run.dx_piece(c, piece);
    });
    return;
  }
  // Few channels: their pieces are the tasks, with a barrier between sums and dx.
  for (int64_t c = 0; c < channels; ++c) run.start(c);
  if (sums) {
    parallel_for(channels * pieces, bytes,
                 [&](int64_t task) { run.sum_piece(task / pieces, task % pieces); });
  }
  parallel_for(channels, bytes, [&](int64_t c) { run.finish(c); });
  if (!problem.has_dx) return;
  parallel_for(channels * pieces, bytes,
               [&](int64_t task) { run.dx_piece(task / pieces, task % pieces); });
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
