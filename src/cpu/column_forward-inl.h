// The two looks at BatchNorm's rows: sums over some of them, column by column, and y.
#if defined(NORMGRAD_CPU_COLUMN_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_COLUMN_FORWARD_INL_H_
#undef NORMGRAD_CPU_COLUMN_FORWARD_INL_H_
#else
#define NORMGRAD_CPU_COLUMN_FORWARD_INL_H_
#endif

#include <cstdint>

#include "cpu/io-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// Rows that lie evenly. Pointers are to column 0 of the first, strides in elements.
template <class T>
struct ForwardRows {
  int64_t count;
  const T* x;
  T* y;
  int64_t x_stride, y_stride;
  int64_t ahead;  // the way to rows that come soon, in rows; 0: in cache already
};

// Adds to each column's sums of x - pivot and of its square, in float64, in the order of the rows.
// All vectors over the columns are in the order of pairs; behind the last column they have zeros.
template <class T>
class ColumnMoments {
 public:
  HWY_INLINE ColumnMoments(const ForwardRows<T>& rows, const float* pivot, double* sum,
                           double* squares, bool add)
      : rows_(rows), pivot_(pivot), sum_(sum), squares_(squares), add_(add) {}

  // Columns [begin, end) of `columns`; begin is a multiple of pair_lanes().
  HWY_INLINE void run(int64_t begin, int64_t end, int64_t columns) const {
    const int64_t pairs_end = HWY_MIN(end, columns / pair_lanes() * pair_lanes());
    int64_t c = begin;
    for (; c < pairs_end; c += pair_lanes()) pairs(c);
    if (c + lanes() <= end) {
      vectors<false>(c, lanes());
      c += lanes();
    }
    if (c < end) vectors<true>(c, end - c);
  }

 private:
  // The sums of a vector of columns.
  struct Sums {
    DoubleSum sum, squares;
    DoublePair pivot;

    HWY_INLINE Sums(const ColumnMoments& m, int64_t c) : pivot(promote(load(m.pivot_ + c))) {
      if (!m.add_) return;
      sum = DoubleSum(m.sum_ + c);
      squares = DoubleSum(m.squares_ + c);
    }
    HWY_INLINE void add(FloatVec x) {
      const DoublePair wide = promote(x);
      const DoublePair shifted = {hn::Sub(wide.low, pivot.low), hn::Sub(wide.high, pivot.high)};
      sum.add(shifted);
      squares.add_product(shifted, shifted);
    }
    HWY_INLINE void store(const ColumnMoments& m, int64_t c) const {
      sum.store(m.sum_ + c);
      squares.store(m.squares_ + c);
    }
  };

  HWY_INLINE void pairs(int64_t c) const {
    Sums a(*this, c), b(*this, c + lanes());
    const T* x = rows_.x + c;
    for (int64_t row = 0; row < rows_.count; ++row, x += rows_.x_stride) {
      const FloatPair pair = load_pair(x);
      a.add(pair.a);
      b.add(pair.b);
      if (rows_.ahead != 0) prefetch_pair(x + rows_.ahead * rows_.x_stride);
    }
    a.store(*this, c);
    b.store(*this, c + lanes());
  }
  template <bool kTail>
  HWY_INLINE void vectors(int64_t c, int64_t count) const {
    Sums sums(*this, c);
    const T* x = rows_.x + c;
    for (int64_t row = 0; row < rows_.count; ++row, x += rows_.x_stride) {
      sums.add(load_some<kTail>(x, count));
    }
    sums.store(*this, c);
  }

  const ForwardRows<T> rows_;
  const float* const pivot_;
  double *const sum_, *const squares_;
  const bool add_;
};

template <class T>
HWY_NOINLINE void column_moments(const ForwardRows<T>& rows, const float* pivot, double* sum,
                                 double* squares, bool add, int64_t begin, int64_t end,
                                 int64_t columns) {
  const ColumnMoments<T> moments(rows, pivot, sum, squares, add);
  moments.run(begin, end, columns);
}

// ChannelScale, one per column.
struct ColumnScales {
  float *mean, *mean_rest, *scale, *beta;
};

template <class T, bool kStreaming>
class ColumnWriter {
 public:
  HWY_INLINE ColumnWriter(const ForwardRows<T>& rows, const ColumnScales& scales)
      : rows_(rows), scales_(scales) {}

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
  struct Vecs {
    FloatVec mean, mean_rest, scale, beta;
    HWY_INLINE Vecs(const ColumnScales& s, int64_t c)
        : mean(load(s.mean + c)),
          mean_rest(load(s.mean_rest + c)),
          scale(load(s.scale + c)),
          beta(load(s.beta + c)) {}

    HWY_INLINE FloatVec y(FloatVec x) const {
      return hn::MulAdd(hn::Sub(hn::Sub(x, mean), mean_rest), scale, beta);
    }
  };

  HWY_INLINE void pairs(int64_t c, int64_t first, int64_t last) const {
    const Vecs a(scales_, c), b(scales_, c + lanes());
    const T* x = rows_.x + first * rows_.x_stride + c;
    T* y = rows_.y + first * rows_.y_stride + c;
    for (int64_t row = first; row < last; ++row) {
      const FloatPair pair = load_pair(x);
      if constexpr (kStreaming) {
        stream_pair({a.y(pair.a), b.y(pair.b)}, y);
      } else {
        store_pair({a.y(pair.a), b.y(pair.b)}, y);
      }
      if (rows_.ahead != 0) prefetch_pair(x + rows_.ahead * rows_.x_stride);
      x += rows_.x_stride;
      y += rows_.y_stride;
    }
  }
  template <bool kTail>
  HWY_INLINE void vectors(int64_t c, int64_t count, int64_t first, int64_t last) const {
    const Vecs s(scales_, c);
    for (int64_t row = first; row < last; ++row) {
      const FloatVec x = load_some<kTail>(rows_.x + row * rows_.x_stride + c, count);
      store_some<kTail>(s.y(x), rows_.y + row * rows_.y_stride + c, count);
    }
  }

  const ForwardRows<T> rows_;
  const ColumnScales scales_;
};

template <class T, bool kStreaming>
HWY_NOINLINE void write_columns(const ForwardRows<T>& rows, const ColumnScales& scales,
                                int64_t begin, int64_t end, int64_t columns, int64_t height) {
  const ColumnWriter<T, kStreaming> writer(rows, scales);
  writer.run(begin, end, columns, height);
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_COLUMN_FORWARD_INL_H_
