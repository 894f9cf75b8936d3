// The second look at a channel: dx.
#if defined(NORMGRAD_CPU_PLANE_GRADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_PLANE_GRADS_INL_H_
#undef NORMGRAD_CPU_PLANE_GRADS_INL_H_
#else
#define NORMGRAD_CPU_PLANE_GRADS_INL_H_
#endif

#include <cstdint>

#include "cpu/channel.hpp"
#include "cpu/formula-inl.h"
#include "cpu/io-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// Runs of neighbouring channels, a stride apart.
template <class T>
struct Band {
  const Channel* channels;
  int64_t count, length;
  const T *x, *dy;
  T* dx;
  int64_t x_stride, dy_stride, dx_stride;
  // The way to what comes soon, in elements; 0: nothing does.
  int64_t x_ahead, dy_ahead;
};

template <class T, bool kFrozen, bool kStreaming>
class PlaneGrads {
 public:
  // All by value: what is stored might otherwise be a scalar, and would be read anew for every
  // vector.
  HWY_INLINE PlaneGrads(const Scalars& scalars, int64_t x_ahead, int64_t dy_ahead)
      : s_(scalars), x_ahead_(x_ahead), dy_ahead_(dy_ahead) {}

  HWY_INLINE void run(const T* x, const T* dy, T* dx, int64_t count) const {
    int64_t k = 0;
    if constexpr (kStreaming) {
      // Up to the first cache line that is the run's alone.
      const auto ahead = -reinterpret_cast<uintptr_t>(dx) % kLine / sizeof(T);
      const int64_t head = HWY_MIN(static_cast<int64_t>(ahead), count);
      while (k < head) {
        const int64_t some = HWY_MIN(lanes(), head - k);
        vector<true>(x + k, dy + k, dx + k, some);
        k += some;
      }
    }
    for (; k + pair_lanes() <= count; k += pair_lanes()) pair(x + k, dy + k, dx + k);
    if (k + lanes() <= count) {
      vector<false>(x + k, dy + k, dx + k, lanes());
      k += lanes();
    }
    if (k < count) vector<true>(x + k, dy + k, dx + k, count - k);
  }

 private:
  static constexpr uintptr_t kLine = 64;

  HWY_INLINE FloatVec dx(FloatVec x, FloatVec dy) const {
    if constexpr (kFrozen) return hn::Mul(s_.r, dy);
    return s_.dx(dy, s_.x_hat(x));
  }

  HWY_INLINE void pair(const T* x, const T* dy, T* to) const {
    const FloatPair dy_pair = load_pair(dy);
    const FloatPair x_pair = kFrozen ? dy_pair : load_pair(x);
    const FloatPair dx_pair = {dx(x_pair.a, dy_pair.a), dx(x_pair.b, dy_pair.b)};
    if constexpr (kStreaming) {
      stream_pair(dx_pair, to);
    } else {
      store_pair(dx_pair, to);
    }
    if (dy_ahead_ != 0) {
      prefetch(x + x_ahead_);
      prefetch(dy + dy_ahead_);
    }
  }
  template <bool kTail>
  HWY_INLINE void vector(const T* x, const T* dy, T* to, int64_t count) const {
    const FloatVec dy_vec = load_some<kTail>(dy, count);
    const FloatVec x_vec = kFrozen ? dy_vec : load_some<kTail>(x, count);
    store_some<kTail>(dx(x_vec, dy_vec), to, count);
    if (dy_ahead_ != 0) {
      prefetch(x + x_ahead_);
      prefetch(dy + dy_ahead_);
    }
  }

  static HWY_INLINE void prefetch(const T* p) {
    for (int64_t k = 0; k < pair_lanes(); k += static_cast<int64_t>(kLine / sizeof(T))) {
      __builtin_prefetch(p + k, 0, 2);
    }
  }

  const ScalarVecs s_;
  const int64_t x_ahead_, dy_ahead_;
};

template <class T, bool kFrozen, bool kStreaming>
HWY_NOINLINE void plane_grads(const Band<T>& band) {
  for (int64_t i = 0; i < band.count; ++i) {
    const PlaneGrads<T, kFrozen, kStreaming> grads(band.channels[i].scalars, band.x_ahead,
                                                   band.dy_ahead);
    grads.run(band.x + i * band.x_stride, band.dy + i * band.dy_stride,
              band.dx + i * band.dx_stride, band.length);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_PLANE_GRADS_INL_H_
