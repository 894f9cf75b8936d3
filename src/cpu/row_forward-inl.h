// The two looks at a row of LayerNorm or RMSNorm: its sums, then what is made of them.
#if defined(NORMGRAD_CPU_ROW_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_ROW_FORWARD_INL_H_
#undef NORMGRAD_CPU_ROW_FORWARD_INL_H_
#else
#define NORMGRAD_CPU_ROW_FORWARD_INL_H_
#endif

#include <cstdint>

#include "cpu/io-inl.h"
#include "cpu/moments-inl.h"
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

// x_hat = ((h - mean) - mean_rest) * r: the mean in two floats, since one is off by up to half a
// unit of itself, which may be many standard deviations.
struct RowScale {
  float mean = 0, mean_rest = 0, r = 0;
};

// One row. Pointers to what is not there or not wanted are null.
template <class T>
struct ForwardRow {
  const T *x, *residual;
  T *h, *y, *x_hat;
  const T *next_x, *next_residual;  // a row to ask memory for meanwhile
  ShiftedSums sums;                 // of a segment
  RowScale scale;
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

// The sums of columns [begin, end) of a row of `cols`, at most a segment; writes h if it is wanted.
template <class T, bool kResidual>
HWY_INLINE ShiftedSums sum_row(const ForwardRow<T>& row, double pivot, int64_t begin, int64_t end,
                               int64_t cols) {
  const RowInput<T, kResidual> input(row.x, row.residual);
  T* const h = row.h;
  ShiftedSummer sums(pivot);
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
  return sums.total();
}

// An element of h before it is written, which may be to where x is.
template <class T>
double h_at(const ForwardRow<T>& row, int64_t c) {
  if (row.residual == nullptr) return widen(row.x[c]);
  return widen(
      narrow<T>(static_cast<float>(widen(row.x[c])) + static_cast<float>(widen(row.residual[c]))));
}

// The first look at some rows. RMSNorm's sums are not shifted.
template <class T, bool kResidual>
HWY_NOINLINE void sum_rows(ForwardRow<T>* rows, int64_t count, bool rms, int64_t begin, int64_t end,
                           int64_t cols) {
  for (int64_t k = 0; k < count; ++k) {
    const double pivot = rms ? 0 : pivot_of(h_at(rows[k], begin));
    rows[k].sums = sum_row<T, kResidual>(rows[k], pivot, begin, end, cols);
  }
}

// The outputs of a row from its h. gamma and beta stand in the order of pairs.
template <class T, bool kResidual, bool kStreaming>
class RowWriter {
 public:
  HWY_INLINE RowWriter(const ForwardRow<T>& row, const float* gamma, const float* beta)
      : row_(row),
        input_(row.x, row.residual),
        mean_(hn::Set(Floats(), row.scale.mean)),
        mean_rest_(hn::Set(Floats(), row.scale.mean_rest)),
        r_(hn::Set(Floats(), row.scale.r)),
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
    return hn::Mul(hn::Sub(hn::Sub(h, mean_), mean_rest_), r_);
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
    if (row_.x_hat != nullptr) put(normalized, row_.x_hat + c);
    if (row_.y != nullptr) {
      put({y(normalized.a, c), y(normalized.b, c + lanes())}, row_.y + c);
    }
    prefetch_pair(row_.next_x + c);
    if (row_.next_residual != nullptr) prefetch_pair(row_.next_residual + c);
  }
  template <bool kTail>
  HWY_INLINE void vector(int64_t c, int64_t count) const {
    const FloatVec normalized = x_hat(input_.template vector<kTail>(c, count));
    if (row_.x_hat != nullptr) store_some<kTail>(normalized, row_.x_hat + c, count);
    if (row_.y != nullptr) store_some<kTail>(y(normalized, c), row_.y + c, count);
  }

  const ForwardRow<T> row_;
  const RowInput<T, kResidual> input_;
  const FloatVec mean_, mean_rest_, r_;
  const float *gamma_, *beta_;
};

// The second look at some rows.
template <class T, bool kResidual, bool kStreaming>
HWY_NOINLINE void write_rows(const ForwardRow<T>* rows, int64_t count, const float* gamma,
                             const float* beta, int64_t begin, int64_t end, int64_t cols) {
  for (int64_t k = 0; k < count; ++k) {
    const RowWriter<T, kResidual, kStreaming> writer(rows[k], gamma, beta);
    writer.run(begin, end, cols);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_ROW_FORWARD_INL_H_
