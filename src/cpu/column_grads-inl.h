// The second look at BatchNorm's rows: dx.
#if defined(NORMGRAD_CPU_COLUMN_GRADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_COLUMN_GRADS_INL_H_
#undef NORMGRAD_CPU_COLUMN_GRADS_INL_H_
#else
#define NORMGRAD_CPU_COLUMN_GRADS_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "cpu/column_sums-inl.h"
#include "cpu/io-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// dx = gain * (dy - c1 - x_hat * c2), x_hat by ColumnOffsets, c2 with the factor that x_hat lacks;
// frozen: gain * dy. In the order of pairs.
struct ColumnScalars {
  ColumnOffsets offsets;
  const float *gain, *c1, *c2;
};

template <class T, bool kFrozen, bool kStreaming>
class ColumnGrads {
 public:
  // All by value: what is stored might otherwise be a pointer, and would be read anew.
  HWY_INLINE ColumnGrads(const EvenRows<T>& rows, const ColumnScalars& scalars)
      : rows_(rows), scalars_(scalars) {}

  // Columns [begin, end) of `columns`; begin is a multiple of pair_lanes(). `height` rows share a
  // load of the scalars.
  HWY_INLINE void run(int64_t begin, int64_t end, int64_t columns, int64_t height) const {
    const int64_t pairs_end = HWY_MIN(end, columns / pair_lanes() * pair_lanes());
    for (int64_t first = 0; first < rows_.count; first += height) {
      const int64_t last = HWY_MIN(first + height, rows_.count);
      int64_t c = begin;
      for (; c < pairs_end; c += pair_lanes()) pairs(c, first, last);
      if (c + lanes() <= end) {
        vectors<false>(c, lanes(), first, last);
        c += lanes();
      }
      if (c < end) vectors<true>(c, end - c, first, last);
    }
  }

 private:
  // The scalars of a vector of columns.
  struct Vecs {
    FloatVec offset, scale, gain, c1, c2;
    HWY_INLINE Vecs(const ColumnScalars& s, int64_t c)
        : offset(load(s.offsets.offset + c)),
          scale(load(s.offsets.scale + c)),
          gain(load(s.gain + c)),
          c1(load(s.c1 + c)),
          c2(load(s.c2 + c)) {}

    HWY_INLINE FloatVec dx(FloatVec x, FloatVec dy) const {
      if constexpr (kFrozen) return hn::Mul(gain, dy);
      const FloatVec x_hat = std::is_same_v<T, float> ? hn::Mul(hn::Sub(x, offset), scale)
                                                      : hn::MulSub(x, scale, offset);
      return hn::Mul(gain, hn::NegMulAdd(x_hat, c2, hn::Sub(dy, c1)));
    }
  };

  HWY_INLINE void pairs(int64_t c, int64_t first, int64_t last) const {
    const Vecs a(scalars_, c), b(scalars_, c + lanes());
    const T* x = rows_.x + first * rows_.x_stride + c;
    const T* dy = rows_.dy + first * rows_.dy_stride + c;
    T* dx = rows_.dx + first * rows_.dx_stride + c;
    for (int64_t row = first; row < last; ++row) {
      const FloatPair dy_pair = load_pair(dy);
      const FloatPair x_pair = kFrozen ? dy_pair : load_pair(x);
      const FloatPair dx_pair = {a.dx(x_pair.a, dy_pair.a), b.dx(x_pair.b, dy_pair.b)};
      if constexpr (kStreaming) {
        stream_pair(dx_pair, dx);
      } else {
        store_pair(dx_pair, dx);
      }
      if (rows_.ahead != 0) {
        if constexpr (!kFrozen) prefetch_pair(x + rows_.ahead * rows_.x_stride);
        prefetch_pair(dy + rows_.ahead * rows_.dy_stride);
      }
      x += rows_.x_stride;
      dy += rows_.dy_stride;
      dx += rows_.dx_stride;
    }
  }
  template <bool kTail>
  HWY_INLINE void vectors(int64_t c, int64_t count, int64_t first, int64_t last) const {
    const Vecs s(scalars_, c);
    for (int64_t row = first; row < last; ++row) {
      const FloatVec dy = load_some<kTail>(rows_.dy + row * rows_.dy_stride + c, count);
      const FloatVec x = kFrozen ? dy : load_some<kTail>(rows_.x + row * rows_.x_stride + c, count);
      T* dx = rows_.dx + row * rows_.dx_stride + c;
      if constexpr (kStreaming && !kTail) {
        stream(s.dx(x, dy), dx);
      } else {
        store_some<kTail>(s.dx(x, dy), dx, count);
      }
    }
  }

  const EvenRows<T> rows_;
  const ColumnScalars scalars_;
};

template <class T, bool kFrozen, bool kStreaming>
HWY_NOINLINE void column_grads(const EvenRows<T>& rows, const ColumnScalars& scalars, int64_t begin,
                               int64_t end, int64_t columns, int64_t height) {
  const ColumnGrads<T, kFrozen, kStreaming> grads(rows, scalars);
  grads.run(begin, end, columns, height);
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_COLUMN_GRADS_INL_H_
