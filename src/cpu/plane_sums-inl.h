// The first look at a channel: its sums of dy and of dy * (x - mean), in float64.
//
// Of float32 data, every product is exact in float64 and added there. Of 16-bit data, which is
// worth 8 or 11 bits, the first three additions are float32, a tree over eight vectors: half the
// instructions, and within the roundings that the gradients may have (docs/numerics.md).
#if defined(NORMGRAD_CPU_PLANE_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_PLANE_SUMS_INL_H_
#undef NORMGRAD_CPU_PLANE_SUMS_INL_H_
#else
#define NORMGRAD_CPU_PLANE_SUMS_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "cpu/channel.hpp"
#include "cpu/io-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// 16-bit x_hat is made before it is multiplied, since dy * (x - mean) could underflow in float32:
// their sums have the factor `scale`.
template <class T>
inline constexpr bool kPlaneSumsHaveScale = !std::is_same_v<T, float>;

// The sums of a piece of a channel so far.
struct PlaneSums {
  static constexpr size_t kMostDoubles = 2 * HWY_MAX_BYTES / sizeof(float);  // that store() writes

  DoubleSum dy, dy_x;

  HWY_INLINE PlaneSums() {}
  HWY_INLINE explicit PlaneSums(const double* p) : dy(p), dy_x(p + lanes()) {}
  HWY_INLINE void store(double* p) const {
    dy.store(p);
    dy_x.store(p + lanes());
  }

  HWY_INLINE ChannelSums total() const {
    ChannelSums sums;
    store_totals(dy, dy_x, &sums.dy, &sums.dy_centred);
    return sums;
  }
};

template <class T>
class PlaneSummer {
 public:
  HWY_INLINE PlaneSummer(const Scalars& s, const PlaneSums& sums)
      : mean_(hn::Set(Floats(), s.mean)),
        half_mean_(hn::Set(HalfFloats(), s.mean)),
        scale_(hn::Set(Floats(), s.scale)),
        sums_(sums) {}

  // A contiguous run of the channel. kAsk: asks for the lines of another as it goes.
  template <bool kAsk>
  HWY_INLINE void add(const T* x, const T* dy, int64_t count, const T* next_x, const T* next_dy) {
    int64_t k = 0;
    if constexpr (kPlaneSumsHaveScale<T>) {
      const int64_t n = 2 * pair_lanes();
      for (; k + 2 * n <= count; k += 2 * n) {
        if constexpr (kAsk) ask(next_x + k, next_dy + k, n);
        const Terms low = two_pairs(x + k, dy + k);
        if constexpr (kAsk) ask(next_x + k + n, next_dy + k + n, n);
        add(low + two_pairs(x + k + n, dy + k + n));
      }
      if constexpr (kAsk) ask(next_x + k, next_dy + k, count - k);
      if (k < count) add(last_terms(x + k, dy + k, count - k));
    } else {
      for (; k + lanes() <= count; k += lanes()) {
        if constexpr (kAsk) ask(next_x + k, next_dy + k, lanes());
        add_exactly(x + k, dy + k);
      }
      if constexpr (kAsk) ask(next_x + k, next_dy + k, count - k);
      if (k < count) add_last_exactly(x + k, dy + k, count - k);
    }
  }

  // Two runs of at most two pairs each.
  HWY_INLINE void add_two(const T* x, const T* dy, const T* second_x, const T* second_dy,
                          int64_t count) {
    if constexpr (kPlaneSumsHaveScale<T>) {
      add(end_terms(x, dy, count) + end_terms(second_x, second_dy, count));
    }
  }

  // Into the second-level cache, a line at a time: there is room for about 20 on their way.
  static HWY_INLINE void ask(const T* x, const T* dy, int64_t count) {
    constexpr int64_t kLine = 64 / sizeof(T);
    for (int64_t k = 0; k < count; k += kLine) {
      __builtin_prefetch(x + k, 0, 2);
      __builtin_prefetch(dy + k, 0, 2);
    }
  }

  HWY_INLINE const PlaneSums& sums() const { return sums_; }

 private:
  using HalfFloats = hn::Rebind<float, Doubles>;
  static HWY_INLINE int64_t half_lanes() { return static_cast<int64_t>(hn::Lanes(Doubles())); }

  // Half a vector at a time, widened on its way from memory.
  HWY_INLINE void add_exactly(const float* x, const float* dy) {
    if (half_lanes() == lanes()) return add_last_exactly(x, dy, lanes());
    const auto dy_half = [&](int64_t k) HWY_ATTR {
      return hn::PromoteTo(Doubles(), hn::LoadU(HalfFloats(), dy + k));
    };
    const auto centred_half = [&](int64_t k) HWY_ATTR {
      return hn::PromoteTo(Doubles(), hn::Sub(hn::LoadU(HalfFloats(), x + k), half_mean_));
    };
    const int64_t high = half_lanes();
    const DoublePair dy_pair = {dy_half(0), dy_half(high)};
    sums_.dy.add(dy_pair);
    sums_.dy_x.add_product(dy_pair, {centred_half(0), centred_half(high)});
  }
  HWY_INLINE void add_last_exactly(const float* x, const float* dy, int64_t count) {
    const FloatVec dy_vec = load_tail(dy, count);
    const FloatVec centred = hn::Sub(load_tail(x, count), mean_);
    const bool all = count > half_lanes();
    const DoublePair dy_pair = all ? promote(dy_vec) : promote_low(dy_vec);
    sums_.dy.add(dy_pair);
    sums_.dy_x.add_product(dy_pair, all ? promote(centred) : promote_low(centred));
  }
  // Of a vector whose upper half does not count.
  static HWY_INLINE DoublePair promote_low(FloatVec v) {
#if HWY_TARGET == HWY_SCALAR
    return promote(v);
#else
    return {hn::PromoteTo(Doubles(), hn::LowerHalf(HalfFloats(), v)), hn::Zero(Doubles())};
#endif
  }

  // The float32 sums of a pair of vectors.
  struct Terms {
    FloatVec dy, dy_x_hat;
    HWY_INLINE Terms operator+(const Terms& other) const {
      return {hn::Add(dy, other.dy), hn::Add(dy_x_hat, other.dy_x_hat)};
    }
  };
  HWY_INLINE FloatVec x_hat(FloatVec x) const { return hn::Mul(hn::Sub(x, mean_), scale_); }
  HWY_INLINE Terms terms(FloatPair x, FloatPair dy) const {
    return {hn::Add(dy.a, dy.b), hn::MulAdd(dy.b, x_hat(x.b), hn::Mul(dy.a, x_hat(x.a)))};
  }
  HWY_INLINE Terms terms(const T* x, const T* dy) const {
    return terms(load_pair(x), load_pair(dy));
  }
  HWY_INLINE Terms two_pairs(const T* x, const T* dy) const {
    return terms(x, dy) + terms(x + pair_lanes(), dy + pair_lanes());
  }
  // Fewer than four pairs.
  HWY_INLINE Terms last_terms(const T* x, const T* dy, int64_t count) const {
    const int64_t n = pair_lanes();
    if (count <= 2 * n) return end_terms(x, dy, count);
    const Terms low = two_pairs(x, dy);
    return low + end_terms(x + 2 * n, dy + 2 * n, count - 2 * n);
  }
  // At most two.
  HWY_INLINE Terms end_terms(const T* x, const T* dy, int64_t count) const {
    const int64_t n = pair_lanes();
    if (count < n) return part_terms(x, dy, count);
    const Terms whole = terms(x, dy);
    if (count == n) return whole;
    return whole + (count == 2 * n ? terms(x + n, dy + n) : part_terms(x + n, dy + n, count - n));
  }
  // Less than one.
  HWY_INLINE Terms part_terms(const T* x, const T* dy, int64_t count) const {
    if (count > lanes()) {
      const int64_t left = count - lanes();
      return terms({load(x), load_tail(x + lanes(), left)},
                   {load(dy), load_tail(dy + lanes(), left)});
    }
    const FloatVec dy_vec = load_tail(dy, count);
    return {dy_vec, hn::Mul(dy_vec, x_hat(load_tail(x, count)))};
  }
  HWY_INLINE void add(const Terms& sum) {
    sums_.dy.add(promote(sum.dy));
    sums_.dy_x.add(promote(sum.dy_x_hat));
  }

  const FloatVec mean_;
  const hn::Vec<HalfFloats> half_mean_;
  const FloatVec scale_;
  PlaneSums sums_;
};

// The elements of neighbouring channels in some samples, and those that are read next.
template <class T>
struct SumTile {
  const Channel* channels;
  int64_t count, samples, length;
  const T *x, *dy;
  const T *next_x, *next_dy;  // null if there is nothing to wait for
  ChannelsProblem::Strides x_strides, dy_strides;
  // The channels' sums over the tiles of the piece so far, and over all; from channel to channel.
  bool first;
  double (*sums)[PlaneSums::kMostDoubles];
  ChannelSums* totals;  // null before the last
  int64_t totals_stride;
};

// The walk over the runs of the next tile, in the order of memory.
template <class T>
class NextRuns {
 public:
  HWY_INLINE explicit NextRuns(const SumTile<T>& tile)
      : tile_(tile), x_(tile.next_x), dy_(tile.next_dy), channels_(tile.count) {}

  HWY_INLINE const T* x() const { return x_; }
  HWY_INLINE const T* dy() const { return dy_; }
  HWY_INLINE void advance() {
    x_ += tile_.x_strides.channel;
    dy_ += tile_.dy_strides.channel;
    if (--channels_ > 0) return;
    channels_ = tile_.count;
    x_ += tile_.x_strides.sample - tile_.count * tile_.x_strides.channel;
    dy_ += tile_.dy_strides.sample - tile_.count * tile_.dy_strides.channel;
  }

 private:
  const SumTile<T>& tile_;
  const T *x_, *dy_;
  int64_t channels_;  // of the sample, from here on
};

// The sums stay in registers for all samples of the tile. kAsk: the next tile is asked for
// meanwhile, since runs of a few KiB are too short for the hardware to foresee.
template <bool kAsk, class T>
HWY_NOINLINE void add_tile(const SumTile<T>& tile) {
  NextRuns<T> next(tile);
  const int64_t length = tile.length;
  for (int64_t c = 0; c < tile.count; ++c) {
    PlaneSummer<T> summer(tile.channels[c].scalars,
                          tile.first ? PlaneSums() : PlaneSums(tile.sums[c]));
    const T* x = tile.x + c * tile.x_strides.channel;
    const T* dy = tile.dy + c * tile.dy_strides.channel;
    int64_t n = 0;
    if (kPlaneSumsHaveScale<T> && length <= 2 * pair_lanes()) {
      for (; n + 2 <= tile.samples; n += 2) {
        for (int i = 0; kAsk && i < 2; ++i, next.advance()) summer.ask(next.x(), next.dy(), length);
        summer.add_two(x, dy, x + tile.x_strides.sample, dy + tile.dy_strides.sample, length);
        x += 2 * tile.x_strides.sample;
        dy += 2 * tile.dy_strides.sample;
      }
    }
    for (; n < tile.samples; ++n) {
      summer.template add<kAsk>(x, dy, length, next.x(), next.dy());
      if (kAsk) next.advance();
      x += tile.x_strides.sample;
      dy += tile.dy_strides.sample;
    }
    if (tile.totals == nullptr) {
      summer.sums().store(tile.sums[c]);
    } else {
      tile.totals[c * tile.totals_stride] = summer.sums().total();
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_PLANE_SUMS_INL_H_
