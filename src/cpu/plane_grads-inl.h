// The second look at channels: dx.
#if defined(NORMGRAD_CPU_PLANE_GRADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_PLANE_GRADS_INL_H_
#undef NORMGRAD_CPU_PLANE_GRADS_INL_H_
#else
#define NORMGRAD_CPU_PLANE_GRADS_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "cpu/channel.hpp"
#include "cpu/formula-inl.h"
#include "cpu/io-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// What follows from 16-bit data takes x - mean for x_hat: its scalar c2 has the factor `scale`, and
// a multiplication and its rounding are saved.
template <class T>
inline constexpr bool kC2HasScale = !std::is_same_v<T, float>;

// The elements of neighbouring channels in one sample.
template <class T>
struct Stretch {
  const Channel* channels;
  int64_t count, length;
  const T *x, *dy;
  T* dx;
  int64_t x_stride, dy_stride, dx_stride;  // from channel to channel
  // Where one channel ends, the next begins, and none is shorter than a pair of vectors: vectors
  // then hold the end of one and the beginning of the next, instead of a few elements each.
  bool dense;
};

template <class T, bool kFrozen, bool kStreaming>
class PlaneGrads {
 public:
  static HWY_INLINE void write(const Stretch<T>& stretch) {
    ScalarVecs next(stretch.channels[0].scalars);
    for (int64_t c = 0; c < stretch.count; ++c) {
      const ScalarVecs s = next;
      if (c + 1 < stretch.count) next = ScalarVecs(stretch.channels[c + 1].scalars);
      const T* x = stretch.x + c * stretch.x_stride;
      const T* dy = stretch.dy + c * stretch.dy_stride;
      T* dx = stretch.dx + c * stretch.dx_stride;
      const int64_t length = stretch.length;
      int64_t k = HWY_MIN(first_whole(dx), length);
      if (!stretch.dense || c == 0) some(s, x, dy, dx, k);
      for (; k + pair_lanes() <= length; k += pair_lanes()) {
        put(pair(s, s, x + k, dy + k), dx + k);
      }
      if (!kPairs && k + lanes() <= length) {
        put(element(s, load(x + k), load(dy + k)), dx + k);
        k += lanes();
      }
      if (!stretch.dense || c + 1 == stretch.count) {
        some(s, x + k, dy + k, dx + k, length - k);
      } else if (k < length) {
        border(s, next, x + k, dy + k, dx + k, length - k);
      }
    }
  }

 private:
  // The halves of pairs of bfloat16 are not neighbours.
  static constexpr bool kPairs = std::is_same_v<T, BF16> && HWY_TARGET != HWY_SCALAR;

  // Elements before the first that whole vectors (of bfloat16, pairs) start at: at multiples of
  // their size in memory, as streaming wants it, and so that none is in two cache lines.
  static HWY_INLINE int64_t first_whole(const T* dx) {
    const auto bytes = static_cast<uintptr_t>(kPairs ? pair_lanes() : lanes()) * sizeof(T);
    return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(dx) % bytes / sizeof(T));
  }

  static HWY_INLINE FloatVec element(const ScalarVecs& s, FloatVec x, FloatVec dy) {
    if constexpr (kFrozen) return hn::Mul(s.r, dy);
    if constexpr (kC2HasScale<T>) return s.dx(dy, hn::Sub(x, s.mean));
    return s.dx(dy, s.x_hat(x));
  }
  static HWY_INLINE FloatPair pair(const ScalarVecs& a, const ScalarVecs& b, const T* x,
                                   const T* dy) {
    const FloatPair dy_pair = load_pair(dy);
    const FloatPair x_pair = kFrozen ? dy_pair : load_pair(x);
    return {element(a, x_pair.a, dy_pair.a), element(b, x_pair.b, dy_pair.b)};
  }
  // `mine` elements of this channel, then some of the next.
  static HWY_INLINE void border(const ScalarVecs& s, const ScalarVecs& next, const T* x,
                                const T* dy, T* dx, int64_t mine) {
    if constexpr (kPairs) {
      put(pair(blend(s, next, (mine + 1) / 2), blend(s, next, mine / 2), x, dy), dx);
    } else {
      put(element(blend(s, next, mine), load(x), load(dy)), dx);
    }
  }
  static HWY_INLINE void some(const ScalarVecs& s, const T* x, const T* dy, T* dx, int64_t count) {
    for (int64_t k = 0; k < count; k += lanes()) {
      const int64_t left = HWY_MIN(count - k, lanes());
      const FloatVec dy_vec = load_tail(dy + k, left);
      const FloatVec x_vec = kFrozen ? dy_vec : load_tail(x + k, left);
      store_tail(element(s, x_vec, dy_vec), dx + k, left);
    }
  }

  static HWY_INLINE void put(FloatPair pair, T* dx) {
    if constexpr (kStreaming) {
      stream_pair(pair, dx);
    } else {
      store_pair(pair, dx);
    }
  }
  static HWY_INLINE void put(FloatVec vector, T* dx) {
    if constexpr (kStreaming) {
      stream(vector, dx);
    } else {
      store(vector, dx);
    }
  }

  static HWY_INLINE ScalarVecs blend(const ScalarVecs& s, const ScalarVecs& next, int64_t mine) {
    const auto mask = hn::FirstN(Floats(), static_cast<size_t>(mine));
    ScalarVecs both = s;
    both.mean = hn::IfThenElse(mask, s.mean, next.mean);
    both.scale = hn::IfThenElse(mask, s.scale, next.scale);
    both.r = hn::IfThenElse(mask, s.r, next.r);
    both.c1 = hn::IfThenElse(mask, s.c1, next.c1);
    both.c2 = hn::IfThenElse(mask, s.c2, next.c2);
    return both;
  }
};

template <class T, bool kFrozen, bool kStreaming>
HWY_NOINLINE void plane_grads(const Stretch<T>& stretch) {
  PlaneGrads<T, kFrozen, kStreaming>::write(stretch);
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_PLANE_GRADS_INL_H_
