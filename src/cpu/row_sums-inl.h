// The two sums of a row that dx needs, in float64.
//
// The first two additions are float32, (t0 + t1) + (t2 + t3) over four vectors: half the
// instructions of float64 throughout, and within the 12 roundings that dx may have: 3 for the x_hat
// before c2, 6 for c2 (g, x - mean, product, two additions, its own), 3 for the rest. A product may
// leave the range of float32 where float64 would not: whoever finds a sum that is not safe sums
// exactly.
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

// kAhead: the lines of x that come soon are asked for meanwhile, and those of dy in the second
// look: both then wait for memory in equal parts. kExact: products and sums in float64 throughout.
template <class T, RowForm kForm, bool kFromX, bool kAhead, bool kExact>
class RowSummer {
 public:
  // gamma stands in the order of pairs; x_ahead is the way to a row that comes soon, in elements.
  HWY_INLINE RowSummer(const T* x, const T* dy, const float* gamma, float mean, int64_t x_ahead)
      : x_(x), dy_(dy), gamma_(gamma), mean_(hn::Set(Floats(), mean)), x_ahead_(x_ahead) {}

  // Columns [begin, end), at most a segment, of a row of `cols`.
  HWY_INLINE RowSums sum(int64_t begin, int64_t end, int64_t cols) {
    const int64_t pairs_end = HWY_MIN(end, cols / pair_lanes() * pair_lanes());
    int64_t c = begin;
    if constexpr (kExact) {
      for (; c < pairs_end; c += pair_lanes()) add_exactly(c);
      if (c < end) {
        const int64_t left = end - c;
        add_exactly(tail_x(c, left), tail_g(c, left));
        if (left > lanes()) {
          add_exactly(tail_x(c + lanes(), left - lanes()), tail_g(c + lanes(), left - lanes()));
        }
      }
    } else {
      for (; c + 2 * pair_lanes() <= pairs_end; c += 2 * pair_lanes()) {
        const Terms low = terms(c), high = terms(c + pair_lanes());
        add(low + high);
      }
      if (c < end) add(last_terms(c, pairs_end, end));
    }
    RowSums sums;
    store_totals(first_, g_x_, &sums.first, &sums.g_x);
    return sums;
  }

  // A row of at most two pairs, lane by lane; its bits are those of sum().
  HWY_INLINE void short_row(int64_t cols, DoubleVec& first, DoubleVec& g_x) {
    const int64_t pairs_end = cols / pair_lanes() * pair_lanes();
    add(cols == 2 * pair_lanes() ? terms(0) + terms(pair_lanes()) : last_terms(0, pairs_end, cols));
    first = first_.lanes_total();
    g_x = g_x_.lanes_total();
  }

 private:
  // The float32 sums of a pair of vectors.
  struct Terms {
    FloatVec first, g_x;
    HWY_INLINE Terms operator+(const Terms& other) const {
      return {hn::Add(first, other.first), hn::Add(g_x, other.g_x)};
    }
  };

  HWY_INLINE FloatVec centred(FloatVec x) const {
    return kForm == RowForm::kCentred ? hn::Sub(x, mean_) : x;
  }
  HWY_INLINE FloatVec tail_x(int64_t c, int64_t left) const {
    return centred(left < lanes() ? load_tail(x_ + c, left) : load(x_ + c));
  }
  HWY_INLINE FloatVec tail_g(int64_t c, int64_t left) const {
    return hn::Mul(left < lanes() ? load_tail(dy_ + c, left) : load(dy_ + c), load(gamma_ + c));
  }

  HWY_INLINE void add_square(FloatVec x) {
    const DoublePair pair = promote(x);
    first_.add_product(pair, pair);
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
  HWY_INLINE void add_exactly(int64_t c) {
    if constexpr (kAhead) prefetch_pair(x_ + c + x_ahead_);
    const FloatPair x = load_pair(x_ + c), dy = load_pair(dy_ + c);
    add_exactly(centred(x.a), hn::Mul(dy.a, load(gamma_ + c)));
    add_exactly(centred(x.b), hn::Mul(dy.b, load(gamma_ + c + lanes())));
  }

  HWY_INLINE Terms terms(FloatVec x0, FloatVec g0, FloatVec x1, FloatVec g1) {
    const FloatVec g_x = hn::MulAdd(g1, x1, hn::Mul(g0, x0));
    if constexpr (kFromX) {
      // r is a factor of dx three times, so a rounding here counts one and a half: one addition of
      // squares of 16-bit numbers, which are exact, and none of others.
      if constexpr (sizeof(T) == 2) {
        first_.add(promote(hn::MulAdd(x1, x1, hn::Mul(x0, x0))));
      } else {
        add_square(x0);
        add_square(x1);
      }
      return {g_x, g_x};
    } else {
      return {hn::Add(g0, g1), g_x};
    }
  }
  HWY_INLINE Terms terms(int64_t c) {
    if constexpr (kAhead) prefetch_pair(x_ + c + x_ahead_);
    const FloatPair x = load_pair(x_ + c), dy = load_pair(dy_ + c);
    return terms(centred(x.a), hn::Mul(dy.a, load(gamma_ + c)), centred(x.b),
                 hn::Mul(dy.b, load(gamma_ + c + lanes())));
  }
  HWY_INLINE Terms terms(FloatVec x, FloatVec g) {
    if constexpr (kFromX) add_square(x);
    return {g, hn::Mul(g, x)};
  }
  // One pair or none, then what is left of the row. Absent terms count as zeros.
  HWY_INLINE Terms last_terms(int64_t c, int64_t pairs_end, int64_t end) {
    if (c == pairs_end) return tail_terms(c, end - c);
    const Terms sum = terms(c);
    c += pair_lanes();
    return c == end ? sum : sum + tail_terms(c, end - c);
  }
  HWY_INLINE Terms tail_terms(int64_t c, int64_t left) {
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
  const int64_t x_ahead_;
  DoubleSum first_, g_x_;
};

// Segment `index` of a row of `cols`.
template <class T, RowForm kForm, bool kFromX>
HWY_NOINLINE RowSums sum_segment(const T* x, const T* dy, const float* gamma, float mean,
                                 int64_t cols, int64_t index) {
  const int64_t begin = index * kSegment;
  return RowSummer<T, kForm, kFromX, false, false>(x, dy, gamma, mean, 0)
      .sum(begin, HWY_MIN(begin + kSegment, cols), cols);
}

// The sums of rows [first, last) of a batch.
template <class T, RowForm kForm, bool kFromX, bool kAhead, bool kExact>
HWY_NOINLINE void sum_rows(RowBatch<T>& batch, int64_t first, int64_t last, const float* gamma,
                           int64_t cols, int64_t x_ahead) {
  for (int64_t k = first; k < last; ++k) {
    const float mean = static_cast<float>(batch.measures.mean[k]);
    RowSums sums;
    for (int64_t begin = 0; begin < cols; begin += kSegment) {
      RowSummer<T, kForm, kFromX, kAhead, kExact> summer(batch.x[k], batch.dy[k], gamma, mean,
                                                         x_ahead);
      const RowSums segment = summer.sum(begin, HWY_MIN(begin + kSegment, cols), cols);
      sums.first += segment.first;
      sums.g_x += segment.g_x;
    }
    batch.measures.first[k] = sums.first;
    batch.measures.g_x[k] = sums.g_x;
  }
}

// The same for short rows, four at a time: the sums of one would wait for each other. `ahead` is
// the way to the next batch, 0 if it is in cache.
template <class T, RowForm kForm, bool kFromX>
HWY_NOINLINE void sum_short_rows(RowBatch<T>& batch, const float* gamma, int64_t cols,
                                 int64_t x_ahead, int64_t dy_ahead) {
  int64_t k = 0;
  for (; k + 4 <= batch.count; k += 4) {
    DoubleVec first[4], g_x[4];
    if (x_ahead != 0) {
      const int64_t bytes = (batch.x[k + 3] - batch.x[k] + cols) * static_cast<int64_t>(sizeof(T));
      prefetch_bytes(batch.x[k] + x_ahead, bytes);
      prefetch_bytes(batch.dy[k] + dy_ahead, bytes);
    }
    for (int64_t i = 0; i < 4; ++i) {
      const float mean = static_cast<float>(batch.measures.mean[k + i]);
      RowSummer<T, kForm, kFromX, false, false>(batch.x[k + i], batch.dy[k + i], gamma, mean, 0)
          .short_row(cols, first[i], g_x[i]);
    }
    store_four_totals(first, g_x, batch.measures.first + k, batch.measures.g_x + k);
  }
  sum_rows<T, kForm, kFromX, false, false>(batch, k, batch.count, gamma, cols, 0);
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_ROW_SUMS_INL_H_
