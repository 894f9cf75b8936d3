// The two sums of a row that dx needs, in float64.
//
// The first three additions are float32, over four pairs of vectors: a conversion to float64 costs
// five operations, two of them on the port that shuffles. A product may leave the range of float32
// where float64 would not: whoever finds a sum that is not safe sums exactly.
#if defined(NORMGRAD_CPU_ROW_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_ROW_SUMS_INL_H_
#undef NORMGRAD_CPU_ROW_SUMS_INL_H_
#else
#define NORMGRAD_CPU_ROW_SUMS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "cpu/io-inl.h"
#include "cpu/row_batch-inl.h"
#include "cpu/row_sums.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// How x becomes x_hat.
enum class RowForm {
  kXHat,     // it is x_hat
  kScaled,   // x * scale: RMSNorm
  kCentred,  // (x - mean) * scale
};

// kAhead: the lines that come soon are asked for meanwhile, 2 KiB ahead; those of dy of the rows
// after these in the second look: else the first would wait for memory, and the second leave it
// idle.
template <class T, RowForm kForm, bool kFromX, bool kAhead>
class RowSummer {
 public:
  // gamma stands in the order of pairs.
  HWY_INLINE RowSummer(const T* x, const T* dy, const float* gamma, double mean)
      : x_(x), dy_(dy), gamma_(gamma), mean_(hn::Set(Floats(), static_cast<float>(mean))) {}

  // Columns [begin, end), at most a segment, of a row of `cols`.
  HWY_INLINE RowSums sum(int64_t begin, int64_t end, int64_t cols) {
    const int64_t pairs_end = HWY_MIN(end, cols / pair_lanes() * pair_lanes());
    int64_t c = begin;
    for (; c + 4 * pair_lanes() <= pairs_end; c += 4 * pair_lanes()) {
      const Terms low = two_terms(c);
      add(low + two_terms(c + 2 * pair_lanes()));
    }
    if (c < end) add(last_terms(c, pairs_end, end));
    return totals();
  }

  // The row with products and sums in float64 throughout.
  HWY_INLINE RowSums sum_exactly(int64_t cols) {
    const int64_t pairs_end = cols / pair_lanes() * pair_lanes();
    int64_t c = 0;
    for (; c < pairs_end; c += pair_lanes()) {
      const FloatPair x = load_pair(x_ + c), dy = load_pair(dy_ + c);
      add_exactly(centred(x.a), hn::Mul(dy.a, load(gamma_ + c)));
      add_exactly(centred(x.b), hn::Mul(dy.b, load(gamma_ + c + lanes())));
    }
    for (; c < cols; c += lanes()) add_exactly(tail_x(c, cols - c), tail_g(c, cols - c));
    return totals();
  }

  // A row of at most two pairs, lane by lane. Fewer additions than a long row's leave room for one
  // more in float32, of halves of a vector.
  struct Lanes {
    DoubleVec first, g_x;
  };
  HWY_INLINE Lanes short_row(int64_t cols) {
    const Terms sum = last_terms(0, cols / pair_lanes() * pair_lanes(), cols);
    return {kFromX ? first_.lanes_total() : halves_total(sum.first), halves_total(sum.g_x)};
  }

 private:
  // Float32 sums of g, or of x^2, and of g * x.
  struct Terms {
    FloatVec first, g_x;
    HWY_INLINE Terms operator+(const Terms& other) const {
      return {hn::Add(first, other.first), hn::Add(g_x, other.g_x)};
    }
  };

  HWY_INLINE RowSums totals() const {
    RowSums sums;
    store_totals(first_, g_x_, &sums.first, &sums.g_x);
    return sums;
  }

  HWY_INLINE FloatVec centred(FloatVec x) const {
    return kForm == RowForm::kCentred ? hn::Sub(x, mean_) : x;
  }
  HWY_INLINE FloatVec tail_x(int64_t c, int64_t left) const {
    return centred(left < lanes() ? load_tail(x_ + c, left) : load(x_ + c));
  }
  HWY_INLINE FloatVec tail_g(int64_t c, int64_t left) const {
    return hn::Mul(left < lanes() ? load_tail(dy_ + c, left) : load(dy_ + c), load(gamma_ + c));
  }
  HWY_INLINE void add_exactly(FloatVec x, FloatVec g) {
    const DoublePair x_pair = promote(x), g_pair = promote(g);
    if constexpr (kFromX) {
      first_.add_product(x_pair, x_pair);
    } else {
      first_.add(g_pair);
    }
    g_x_.add_product(g_pair, x_pair);
  }

  HWY_INLINE Terms terms(FloatVec x0, FloatVec g0, FloatVec x1, FloatVec g1) const {
    const FloatVec g_x = hn::MulAdd(g1, x1, hn::Mul(g0, x0));
    return {kFromX ? hn::MulAdd(x1, x1, hn::Mul(x0, x0)) : hn::Add(g0, g1), g_x};
  }
  HWY_INLINE Terms terms(int64_t c) const {
    if constexpr (kAhead) {
      constexpr int64_t kDistance = 2048 / sizeof(T);
      prefetch_pair<3>(x_ + c + kDistance);
      prefetch_pair<3>(dy_ + c + kDistance);
    }
    const FloatPair x = load_pair(x_ + c), dy = load_pair(dy_ + c);
    return terms(centred(x.a), hn::Mul(dy.a, load(gamma_ + c)), centred(x.b),
                 hn::Mul(dy.b, load(gamma_ + c + lanes())));
  }
  HWY_INLINE Terms terms(FloatVec x, FloatVec g) const {
    return {kFromX ? hn::Mul(x, x) : g, hn::Mul(g, x)};
  }
  HWY_INLINE Terms two_terms(int64_t c) { return meet(terms(c), terms(c + pair_lanes())); }
  // low + high. Squares go on to float64 here: r is a factor of dx three times, so a rounding of
  // theirs counts one and a half, and there may be two. Those of 16-bit numbers are exact, and have
  // had one.
  HWY_INLINE Terms meet(const Terms& low, const Terms& high) {
    if constexpr (kFromX && sizeof(T) == 2) first_.add(promote(hn::Add(low.first, high.first)));
    if constexpr (kFromX && sizeof(T) == 4) {
      first_.add(promote(low.first));
      first_.add(promote(high.first));
    }
    return low + high;
  }
  HWY_INLINE Terms alone(const Terms& terms) {
    if constexpr (kFromX) first_.add(promote(terms.first));
    return terms;
  }
  // What is left of the row: up to three pairs, then less than one.
  HWY_INLINE Terms last_terms(int64_t c, int64_t pairs_end, int64_t end) {
    if (c + 2 * pair_lanes() > pairs_end) return less_than_two(c, pairs_end, end);
    const Terms sum = two_terms(c);
    c += 2 * pair_lanes();
    return c == end ? sum : sum + less_than_two(c, pairs_end, end);
  }
  HWY_INLINE Terms less_than_two(int64_t c, int64_t pairs_end, int64_t end) {
    if (c == pairs_end) return alone(tail_terms(c, end - c));
    const Terms low = terms(c);
    c += pair_lanes();
    return c == end ? alone(low) : meet(low, tail_terms(c, end - c));
  }
  HWY_INLINE Terms tail_terms(int64_t c, int64_t left) const {
    const FloatVec x = tail_x(c, left), g = tail_g(c, left);
    if (left <= lanes()) return terms(x, g);
    return terms(x, g, tail_x(c + lanes(), left - lanes()), tail_g(c + lanes(), left - lanes()));
  }
  HWY_INLINE void add(const Terms& sum) {
    if constexpr (!kFromX) first_.add(promote(sum.first));
    g_x_.add(promote(sum.g_x));
  }

  const T* x_;
  const T* dy_;
  const float* gamma_;
  const FloatVec mean_;
  DoubleSum first_, g_x_;
};

// Segment `index` of a row of `cols`.
template <class T, RowForm kForm, bool kFromX, bool kAhead>
HWY_NOINLINE RowSums sum_segment(const T* x, const T* dy, const float* gamma, double mean,
                                 int64_t cols, int64_t index) {
  const int64_t begin = index * kSegment;
  return RowSummer<T, kForm, kFromX, kAhead>(x, dy, gamma, mean)
      .sum(begin, HWY_MIN(begin + kSegment, cols), cols);
}

template <class T, RowForm kForm, bool kFromX>
HWY_NOINLINE RowSums sum_exactly(const T* x, const T* dy, const float* gamma, double mean,
                                 int64_t cols) {
  return RowSummer<T, kForm, kFromX, false>(x, dy, gamma, mean).sum_exactly(cols);
}

// Row k of a batch, or the last one.
template <class T, RowForm kForm, bool kFromX>
HWY_INLINE auto short_row(const RowBatch<T>& batch, int64_t k, const float* gamma, int64_t cols) {
  const int64_t row = HWY_MIN(k, batch.count - 1);
  return RowSummer<T, kForm, kFromX, false>(batch.x[row], batch.dy[row], gamma,
                                            batch.measures.mean[row])
      .short_row(cols);
}

// The sums of a batch of short rows, four at a time: those of one would wait for each other. The
// `ahead`s are the way to the next batch, 0 if it is in cache.
template <class T, RowForm kForm, bool kFromX>
HWY_NOINLINE void sum_short_rows(RowBatch<T>& batch, const float* gamma, int64_t cols,
                                 int64_t x_ahead, int64_t dy_ahead) {
  for (int64_t k = 0; k < batch.count; k += 4) {
    if (x_ahead != 0) {
      const int64_t bytes = 4 * cols * static_cast<int64_t>(sizeof(T));
      prefetch_bytes(batch.x[k] + x_ahead, bytes);
      prefetch_bytes(batch.dy[k] + dy_ahead, bytes);
    }
    const auto a = short_row<T, kForm, kFromX>(batch, k, gamma, cols);
    const auto b = short_row<T, kForm, kFromX>(batch, k + 1, gamma, cols);
    const auto c = short_row<T, kForm, kFromX>(batch, k + 2, gamma, cols);
    const auto d = short_row<T, kForm, kFromX>(batch, k + 3, gamma, cols);
    const DoubleVec first[] = {a.first, b.first, c.first, d.first};
    const DoubleVec g_x[] = {a.g_x, b.g_x, c.g_x, d.g_x};
    store_four_totals(first, g_x, batch.measures.first + k, batch.measures.g_x + k);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_ROW_SUMS_INL_H_
