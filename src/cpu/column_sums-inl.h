// The first look at BatchNorm's rows: sums over some of them, column by column.
//
// Of float32 data, every product is exact in float64 and added there, in the order of the rows. Of
// 16-bit data, which is worth 8 or 11 bits, the sums of eight rows are float32: a third fewer
// instructions, and within the roundings that the gradients may have (docs/numerics.md).
#if defined(NORMGRAD_CPU_COLUMN_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_COLUMN_SUMS_INL_H_
#undef NORMGRAD_CPU_COLUMN_SUMS_INL_H_
#else
#define NORMGRAD_CPU_COLUMN_SUMS_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "cpu/io-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// Rows that lie evenly in every tensor. Pointers are to column 0 of the first, strides in elements.
template <class T>
struct EvenRows {
  int64_t count;
  const T *x, *dy;
  T* dx;
  int64_t x_stride, dy_stride, dx_stride;
  int64_t ahead;  // the way to rows that come soon, in rows; 0: in cache already

  void skip(int64_t rows) {
    count -= rows;
    x += rows * x_stride;
    dy += rows * dy_stride;
    dx += rows * dx_stride;
  }
};

// What makes x_hat of a column's x. Of float32 data: (x - offset) * scale, offset = mean. Of 16-bit
// data: x * scale - offset, with a power of two for the scale: the product is exact, the difference
// is rounded once, and it is as near to 1 as x_hat, so that dy * x_hat underflows only if dy does.
// What lacks to x_hat, a factor of 1/2 to 2, comes later. In the order of pairs.
struct ColumnOffsets {
  const float *offset, *scale;
};

// Sums are made of a multiple of this many rows, if need be of rows of zeros.
template <class T>
inline constexpr int64_t kRowStep = std::is_same_v<T, float> ? 1 : 8;

template <class T>
class ColumnSummer {
 public:
  // dy_x, dy: of each column, overwritten or (`add`) continued. All by value: what is stored might
  // otherwise be a pointer, and would be read anew.
  HWY_INLINE ColumnSummer(const EvenRows<T>& rows, const ColumnOffsets& offsets, double* dy_x,
                          double* dy, bool add)
      : rows_(rows), offsets_(offsets), dy_x_(dy_x), dy_(dy), add_(add) {}

  // Columns [begin, end) of `columns`; begin is a multiple of pair_lanes().
  HWY_INLINE void run(int64_t begin, int64_t end, int64_t columns) const {
    const int64_t pairs_end = HWY_MIN(end, columns / pair_lanes() * pair_lanes());
    int64_t c = begin;
    if constexpr (std::is_same_v<T, float>) {
      for (; c < pairs_end; c += pair_lanes()) sum_exactly<2>(c);
      if (c + lanes() <= end) {
        sum_exactly<1>(c);
        c += lanes();
      }
      if (c < end) sum_last_exactly(c, end - c);
    } else {
      for (; c < pairs_end; c += pair_lanes()) sum<false>(c, 0);
      if (c < end) sum<true>(c, end - c);
    }
  }

 private:
  using HalfFloats = hn::Rebind<float, Doubles>;

  // Vectors of columns, half of one at a time, widened on its way from memory.
  template <int kVectors>
  HWY_INLINE void sum_exactly(int64_t c) const {
    constexpr int kHalves = kVectors * (HWY_TARGET == HWY_SCALAR ? 1 : 2);
    const Doubles d;
    const HalfFloats half;
    const int64_t step = static_cast<int64_t>(hn::Lanes(d));
    hn::Vec<HalfFloats> mean[kHalves];
    DoubleVec dy_sum[kHalves], dy_x_sum[kHalves];
    for (int k = 0; k < kHalves; ++k) {
      mean[k] = hn::LoadU(half, offsets_.offset + c + k * step);
      dy_sum[k] = add_ ? hn::LoadU(d, dy_ + c + k * step) : hn::Zero(d);
      dy_x_sum[k] = add_ ? hn::LoadU(d, dy_x_ + c + k * step) : hn::Zero(d);
    }
    const T *x = rows_.x + c, *dy = rows_.dy + c;
    for (int64_t row = 0; row < rows_.count; ++row) {
      for (int k = 0; k < kHalves; ++k) {
        const DoubleVec dy_half = hn::PromoteTo(d, hn::LoadU(half, dy + k * step));
        const auto centred = hn::Sub(hn::LoadU(half, x + k * step), mean[k]);
        dy_sum[k] = hn::Add(dy_sum[k], dy_half);
        dy_x_sum[k] = hn::MulAdd(dy_half, hn::PromoteTo(d, centred), dy_x_sum[k]);
      }
      prefetch(x, dy);
      x += rows_.x_stride;
      dy += rows_.dy_stride;
    }
    for (int k = 0; k < kHalves; ++k) {
      hn::StoreU(dy_sum[k], d, dy_ + c + k * step);
      hn::StoreU(dy_x_sum[k], d, dy_x_ + c + k * step);
    }
  }
  HWY_INLINE void sum_last_exactly(int64_t c, int64_t count) const {
    const FloatVec mean = load(offsets_.offset + c);
    DoubleSum dy_sum = start(dy_ + c), dy_x_sum = start(dy_x_ + c);
    const T *x = rows_.x + c, *dy = rows_.dy + c;
    for (int64_t row = 0; row < rows_.count; ++row) {
      const DoublePair dy_pair = promote(load_tail(dy, count));
      dy_sum.add(dy_pair);
      dy_x_sum.add_product(dy_pair, promote(hn::Sub(load_tail(x, count), mean)));
      x += rows_.x_stride;
      dy += rows_.dy_stride;
    }
    dy_sum.store(dy_ + c);
    dy_x_sum.store(dy_x_ + c);
  }

  HWY_INLINE DoubleSum start(const double* sum) const {
    return add_ ? DoubleSum(sum) : DoubleSum();
  }

  // The float32 sums of some rows of a pair of vectors.
  struct Terms {
    FloatPair dy, dy_x;
    HWY_INLINE Terms operator+(const Terms& other) const {
      return {{hn::Add(dy.a, other.dy.a), hn::Add(dy.b, other.dy.b)},
              {hn::Add(dy_x.a, other.dy_x.a), hn::Add(dy_x.b, other.dy_x.b)}};
    }
  };
  // kTail: `count` columns in order.
  template <bool kTail>
  static HWY_INLINE FloatPair load_columns(const T* p, int64_t count) {
    if constexpr (!kTail) return load_pair(p);
    if (count <= lanes()) return {load_tail(p, count), hn::Zero(Floats())};
    return {load(p), load_tail(p + lanes(), count - lanes())};
  }
  // Of four rows, one after the other: all but the first product are fused with their addition.
  template <bool kTail>
  HWY_INLINE Terms four_rows(const T* x, const T* dy, int64_t count, FloatPair scale,
                             FloatPair offset) const {
    Terms sum;
    for (int row = 0; row < 4; ++row) {
      const FloatPair dy_pair = load_columns<kTail>(dy, count);
      const FloatPair x_pair = load_columns<kTail>(x, count);
      const FloatVec x_a = hn::MulSub(x_pair.a, scale.a, offset.a);
      const FloatVec x_b = hn::MulSub(x_pair.b, scale.b, offset.b);
      if (row == 0) {
        sum = {dy_pair, {hn::Mul(dy_pair.a, x_a), hn::Mul(dy_pair.b, x_b)}};
      } else {
        sum.dy = {hn::Add(sum.dy.a, dy_pair.a), hn::Add(sum.dy.b, dy_pair.b)};
        sum.dy_x = {hn::MulAdd(dy_pair.a, x_a, sum.dy_x.a), hn::MulAdd(dy_pair.b, x_b, sum.dy_x.b)};
      }
      prefetch(x, dy);
      x += rows_.x_stride;
      dy += rows_.dy_stride;
    }
    return sum;
  }
  template <bool kTail>
  HWY_INLINE void sum(int64_t c, int64_t count) const {
    static_assert(std::is_same_v<T, float> || kRowStep<T> == 8);
    const FloatPair scale = {load(offsets_.scale + c), load(offsets_.scale + c + lanes())};
    const FloatPair offset = {load(offsets_.offset + c), load(offsets_.offset + c + lanes())};
    DoubleSum dy_a = start(dy_ + c), dy_b = start(dy_ + c + lanes());
    DoubleSum dy_x_a = start(dy_x_ + c), dy_x_b = start(dy_x_ + c + lanes());
    const T *x = rows_.x + c, *dy = rows_.dy + c;
    for (int64_t row = 0; row < rows_.count; row += 8) {
      const Terms first = four_rows<kTail>(x, dy, count, scale, offset);
      x += 4 * rows_.x_stride;
      dy += 4 * rows_.dy_stride;
      const Terms sum = first + four_rows<kTail>(x, dy, count, scale, offset);
      x += 4 * rows_.x_stride;
      dy += 4 * rows_.dy_stride;
      dy_a.add(promote(sum.dy.a));
      dy_b.add(promote(sum.dy.b));
      dy_x_a.add(promote(sum.dy_x.a));
      dy_x_b.add(promote(sum.dy_x.b));
    }
    dy_a.store(dy_ + c);
    dy_b.store(dy_ + c + lanes());
    dy_x_a.store(dy_x_ + c);
    dy_x_b.store(dy_x_ + c + lanes());
  }

  HWY_INLINE void prefetch(const T* x, const T* dy) const {
    if (rows_.ahead == 0) return;
    prefetch_pair(x + rows_.ahead * rows_.x_stride);
    prefetch_pair(dy + rows_.ahead * rows_.dy_stride);
  }

  const EvenRows<T> rows_;
  const ColumnOffsets offsets_;
  double* const dy_x_;
  double* const dy_;
  const bool add_;
};

template <class T>
HWY_NOINLINE void column_sums(const EvenRows<T>& rows, const ColumnOffsets& offsets, double* dy_x,
                              double* dy, bool add, int64_t begin, int64_t end, int64_t columns) {
  const ColumnSummer<T> summer(rows, offsets, dy_x, dy, add);
  summer.run(begin, end, columns);
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_COLUMN_SUMS_INL_H_
