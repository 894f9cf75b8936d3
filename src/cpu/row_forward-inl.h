// The two looks at a row of LayerNorm or RMSNorm: its sums, then what is made of them.
#if defined(NORMGRAD_CPU_ROW_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_ROW_FORWARD_INL_H_
#undef NORMGRAD_CPU_ROW_FORWARD_INL_H_
#else
#define NORMGRAD_CPU_ROW_FORWARD_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "cpu/io-inl.h"
#include "cpu/moments-inl.h"
#include "cpu/row_scalars-inl.h"
#include "cpu/row_sums.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// What a store to T and a load would make of v.
template <class T>
HWY_INLINE FloatVec as_stored(FloatVec v) {
  if constexpr (std::is_same_v<T, BF16>) {
    return hn::BitCast(Floats(), hn::And(round_to_bf16(v), hn::Set(Integers(), 0xFFFF0000u)));
  } else if constexpr (std::is_same_v<T, F16>) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
    T values[HWY_MAX_BYTES / sizeof(float)];
    store(v, values);
    return load(values);
#else
    return hn::PromoteTo(Floats(), hn::DemoteTo(Halves(), v));
#endif
  } else {
    return v;
  }
}

// Rows that are looked at together, so that their scalars do not wait for each other. Pointers to
// what is not there or not wanted are null.
template <class T>
struct ForwardBatch {
  int64_t count = 0;
  const T *x[kMostRows], *residual[kMostRows] = {};
  T *h[kMostRows] = {}, *y[kMostRows] = {}, *x_hat[kMostRows] = {};
  int64_t x_ahead = 0, residual_ahead = 0;  // the way to rows that come soon
  int64_t mean_at[kMostRows] = {}, spread_at[kMostRows] = {};
  // Of a segment: the sums of h - pivot and of its square. RMSNorm's pivot and first sum are 0.
  double pivot[kMostRows] = {}, sum[kMostRows] = {}, squares[kMostRows] = {};
  // Of the rows.
  double mean[kMostRows] = {}, variance[kMostRows] = {}, r[kMostRows] = {};
  bool any_wide = false;  // some need float64
  // x_hat = ((h - mean_high) - mean_low) * scale: the mean in two floats, since one is off by up to
  // half a unit of itself, which may be many standard deviations.
  float mean_high[kMostRows] = {}, mean_low[kMostRows] = {}, scale[kMostRows] = {};
};

// h = x + residual, rounded to T; x itself without a residual.
template <class T, bool kResidual>
class RowInput {
 public:
  HWY_INLINE RowInput(const T* x, const T* residual) : x_(x), residual_(residual) {}

  HWY_INLINE FloatPair pair(int64_t c) const {
    const FloatPair x = load_pair(x_ + c);
    if constexpr (!kResidual) return x;
    const FloatPair residual = load_pair(residual_ + c);
    return {as_stored<T>(hn::Add(x.a, residual.a)), as_stored<T>(hn::Add(x.b, residual.b))};
  }
  template <bool kTail>
  HWY_INLINE FloatVec vector(int64_t c, int64_t count) const {
    const FloatVec x = load_some<kTail>(x_ + c, count);
    if constexpr (!kResidual) return x;
    return as_stored<T>(hn::Add(x, load_some<kTail>(residual_ + c, count)));
  }

 private:
  const T *x_, *residual_;
};

// The sums of columns [begin, end) of row k of `cols`, at most a segment; writes h if it is wanted.
template <class T, bool kResidual, bool kRms>
HWY_INLINE void sum_row(ForwardBatch<T>& batch, int64_t k, int64_t begin, int64_t end,
                        int64_t cols) {
  const RowInput<T, kResidual> input(batch.x[k], batch.residual[k]);
  T* const h = batch.h[k];
  ShiftedSummer<kRms> sums(batch.pivot[k]);
  const int64_t pairs_end = HWY_MIN(end, cols / pair_lanes() * pair_lanes());
  int64_t c = begin;
  for (; c < pairs_end; c += pair_lanes()) {
    const FloatPair pair = input.pair(c);
    if (h != nullptr) store_pair(pair, h + c);
    sums.add(pair);
  }
  if (c + lanes() <= end) {
    const FloatVec v = input.template vector<false>(c, lanes());
    if (h != nullptr) store(v, h + c);
    sums.add(v);
    c += lanes();
  }
  if (c < end) {
    const FloatVec v = input.template vector<true>(c, end - c);
    if (h != nullptr) store_tail(v, h + c, end - c);
    sums.add_tail(v, end - c);
  }
  sums.total(&batch.sum[k], &batch.squares[k]);
}

// An element of h before it is written, which may be to where x is.
template <class T>
HWY_INLINE double h_at(const ForwardBatch<T>& batch, int64_t k, int64_t c) {
  const double x = widen(batch.x[k][c]);
  if (batch.residual[k] == nullptr) return x;
  return widen(narrow<T>(static_cast<float>(x) + static_cast<float>(widen(batch.residual[k][c]))));
}

// The first look.
template <class T, bool kResidual, bool kRms>
HWY_NOINLINE void sum_rows(ForwardBatch<T>& batch, int64_t begin, int64_t end, int64_t cols) {
  for (int64_t k = 0; k < batch.count; ++k) {
    batch.pivot[k] = kRms ? 0 : pivot_of(h_at(batch, k, begin));
    sum_row<T, kResidual, kRms>(batch, k, begin, end, cols);
  }
}

// Where eps is most of the denominator, x_hat may be too small for float32 and y not.
inline constexpr double kLeastShare = 0x1p-120;

// Whether the elements of a row need float64.
template <class T>
bool is_wide(const ForwardBatch<T>& batch, int64_t k) {
  const double mean = batch.mean[k], variance = batch.variance[k], r = batch.r[k];
  return !is_safe(r) || !(mean == 0 || is_safe(mean)) ||
         !(variance == 0 || variance * (r * r) >= kLeastShare);
}

// The scalars from mean and variance, several rows at a time: a division is 16 cycles, for one row
// or for eight.
template <class T>
HWY_NOINLINE void make_scalars(ForwardBatch<T>& batch, double eps) {
  const Doubles d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  bool fine = true;
  for (int64_t k = 0; k < batch.count; k += step) {
    const DoubleVec mean = hn::LoadU(d, batch.mean + k),
                    variance = hn::LoadU(d, batch.variance + k);
    const DoubleVec r = hn::Div(hn::Set(d, 1), hn::Sqrt(hn::Add(variance, hn::Set(d, eps))));
    const auto high = rounded(mean);
    hn::StoreU(high, FloatsOfDoubles(), batch.mean_high + k);
    hn::StoreU(rounded(hn::Sub(mean, hn::PromoteTo(d, high))), FloatsOfDoubles(),
               batch.mean_low + k);
    hn::StoreU(rounded(r), FloatsOfDoubles(), batch.scale + k);
    hn::StoreU(r, d, batch.r + k);
    const DoubleVec zero = hn::Zero(d);
    const auto large = hn::Ge(hn::Mul(variance, hn::Mul(r, r)), hn::Set(d, kLeastShare));
    const auto good =
        hn::And(hn::And(are_in_range(r), hn::Or(are_in_range(mean), hn::Eq(mean, zero))),
                hn::Or(large, hn::Eq(variance, zero)));
    // The last vector may reach beyond the batch.
    const auto inside = hn::FirstN(d, static_cast<size_t>(HWY_MIN(step, batch.count - k)));
    fine = fine && hn::AllTrue(d, hn::Or(good, hn::Not(inside)));
  }
  batch.any_wide = !fine;
}

// The outputs of row k from its h, which is read where there is one: the first look may have
// written it over x or residual. gamma and beta stand in the order of pairs.
template <class T, bool kResidual, bool kStreaming>
class RowWriter {
 public:
  HWY_INLINE RowWriter(const ForwardBatch<T>& batch, int64_t k, const float* gamma,
                       const float* beta)
      : input_(batch.h[k] != nullptr ? batch.h[k] : batch.x[k], batch.residual[k]),
        y_(batch.y[k]),
        x_hat_(batch.x_hat[k]),
        next_x_(batch.x[k] + batch.x_ahead),
        next_residual_(batch.residual[k] == nullptr ? nullptr
                                                    : batch.residual[k] + batch.residual_ahead),
        mean_high_(hn::Set(Floats(), batch.mean_high[k])),
        mean_low_(hn::Set(Floats(), batch.mean_low[k])),
        scale_(hn::Set(Floats(), batch.scale[k])),
        gamma_(gamma),
        beta_(beta) {}

  HWY_INLINE void run(int64_t begin, int64_t end, int64_t cols) const {
    const int64_t pairs_end = HWY_MIN(end, cols / pair_lanes() * pair_lanes());
    int64_t c = begin;
    for (; c < pairs_end; c += pair_lanes()) pair(c);
    if (c + lanes() <= end) {
      vector<false>(c, lanes());
      c += lanes();
    }
    if (c < end) vector<true>(c, end - c);
  }

 private:
  HWY_INLINE FloatVec x_hat(FloatVec h) const {
    return hn::Mul(hn::Sub(hn::Sub(h, mean_high_), mean_low_), scale_);
  }
  HWY_INLINE FloatVec y(FloatVec x_hat, int64_t c) const {
    return hn::MulAdd(x_hat, load(gamma_ + c), load(beta_ + c));
  }

  static HWY_INLINE void put(FloatPair pair, T* to) {
    if constexpr (kStreaming) {
      stream_pair(pair, to);
    } else {
      store_pair(pair, to);
    }
  }
  HWY_INLINE void pair(int64_t c) const {
    const FloatPair h = input_.pair(c);
    const FloatPair normalized = {x_hat(h.a), x_hat(h.b)};
    if (x_hat_ != nullptr) put(normalized, x_hat_ + c);
    if (y_ != nullptr) put({y(normalized.a, c), y(normalized.b, c + lanes())}, y_ + c);
    prefetch_pair(next_x_ + c);
    if (next_residual_ != nullptr) prefetch_pair(next_residual_ + c);
  }
  template <bool kTail>
  HWY_INLINE void vector(int64_t c, int64_t count) const {
    const FloatVec normalized = x_hat(input_.template vector<kTail>(c, count));
    if (x_hat_ != nullptr) store_some<kTail>(normalized, x_hat_ + c, count);
    if (y_ != nullptr) store_some<kTail>(y(normalized, c), y_ + c, count);
  }

  const RowInput<T, kResidual> input_;
  T *const y_, *const x_hat_;
  const T *const next_x_, *const next_residual_;
  const FloatVec mean_high_, mean_low_, scale_;
  const float *const gamma_, *const beta_;
};

// The second look at rows [first, last) of a batch.
template <class T, bool kResidual, bool kStreaming>
HWY_NOINLINE void write_rows(const ForwardBatch<T>& batch, int64_t first, int64_t last,
                             const float* gamma, const float* beta, int64_t begin, int64_t end,
                             int64_t cols) {
  for (int64_t k = first; k < last; ++k) {
    const RowWriter<T, kResidual, kStreaming> writer(batch, k, gamma, beta);
    writer.run(begin, end, cols);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_ROW_FORWARD_INL_H_
