// The second look at a group of rows: dx, and the rows' terms of dgamma and dbeta.
#if defined(NORMGRAD_CPU_ROW_GRADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_ROW_GRADS_INL_H_
#undef NORMGRAD_CPU_ROW_GRADS_INL_H_
#else
#define NORMGRAD_CPU_ROW_GRADS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/formula-inl.h"
#include "cpu/io-inl.h"
#include "cpu/row_batch-inl.h"
#include "cpu/row_sums-inl.h"
#include "cpu/whole_lines-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// Rows are taken four at a time, tile by tile and two by two: the column sums of a tile stay in the
// first-level cache meanwhile. Rows may lie a power of two apart, and x, dy and dx as well; then
// all their lines compete for one set of that cache, which has eight places: 4096 columns of four
// rows at once took 2.05 ns per element in fp32, other numbers of columns 0.8.
inline constexpr int kGroup = 4;
inline constexpr int kAtOnce = 2;
inline constexpr int64_t kGradTile = 512;

// What the second look reads and writes of up to 4 rows.
template <class T>
struct RowGroup {
  int64_t count;
  const T* x[kGroup];
  const T* dy[kGroup];
  const T* dh[kGroup];
  T* dx[kGroup];
  Scalars scalars[kGroup];
  int64_t dy_ahead;  // the way to rows that come soon, in elements
  bool first;        // of a chunk: its sums begin here

  void add(const RowBatch<T>& batch, int64_t k, bool writes_dx) {
    x[count] = batch.x[k];
    dy[count] = batch.dy[k];
    dh[count] = writes_dx && batch.has_dh ? batch.dh[k] : nullptr;
    dx[count] = writes_dx ? batch.dx[k] : nullptr;
    scalars[count] = batch.scalars.row(k);
    ++count;
  }
};

// How the data of a problem moves.
enum class Flow {
  kCached,      // it fits in cache
  kPlain,       // it comes from memory, and rows that come soon are asked for meanwhile
  kStreaming,   // the same, and dx is stored past the caches
  kWholeLines,  // the same, though rows of dx begin within a cache line
  kWithDh,      // as kPlain, and dh is added
};
inline constexpr int kFlows = 5;

// Which rows of a group: the first two of four, whose terms wait for those of the last two, or all
// there are.
enum class Pass { kFirst, kLast, kOnly };

// The terms of the first two rows, for the columns of a tile.
struct FirstTerms {
  HWY_ALIGN float dgamma[kGradTile], dbeta[kGradTile];
};

// Two rows of a group. kParams: dgamma and, unless it is RMSNorm, dbeta. The terms of a column are
// added to the chunk's sum as (t0 + t1) + (t2 + t3): missing rows count as zeros. gamma and the
// sums stand in the order of pairs. kWhole: there are four rows. Else there are up to four, and the
// pointers to what is not there or not wanted are null: few rows come this way, so it is compiled
// once for all sets of outputs. With dh, four rows are compiled for one set: the sums that are not
// wanted are null, too.
template <Pass kPass, bool kWhole, class T, RowForm kForm, bool kDx, bool kParams, Flow kFlow>
class RowGrads {
 public:
  // All by value: what is stored might otherwise be a pointer or a scalar, and would be read anew
  // for every vector.
  HWY_INLINE RowGrads(const RowGroup<T>& rows, const float* gamma, float* dgamma, float* dbeta,
                      FirstTerms& first_terms, WaitingElements<T>* waiting, int64_t begin,
                      int k = kPass == Pass::kLast ? kAtOnce : 0)
      : count_(rows.count - k),
        x_{rows.x[k], rows.x[k + 1]},
        dy_{rows.dy[k], rows.dy[k + 1]},
        dh_{rows.dh[k], rows.dh[k + 1]},
        dx_{rows.dx[k], rows.dx[k + 1]},
        lines_{WholeLines<T>(rows.dx[k]), WholeLines<T>(rows.dx[k + 1])},
        waiting_(waiting + k),
        scalars_{ScalarVecs(rows.scalars[k]), ScalarVecs(rows.scalars[k + 1])},
        dy_ahead_(rows.dy_ahead),
        kept_(kept_sums(rows.first)),
        gamma_(gamma),
        dgamma_(dgamma),
        dbeta_(dbeta),
        first_dgamma_(first_terms.dgamma - begin),
        first_dbeta_(first_terms.dbeta - begin) {}

  // Which of a chunk's sums there are: none or all.
  static HWY_INLINE FloatMask kept_sums(bool first) {
    return hn::FirstN(Floats(), first ? 0 : static_cast<size_t>(lanes()));
  }

  // The terms of two rows, one column per lane.
  struct Terms {
    FloatVec dgamma, dbeta;

    HWY_INLINE Terms() : dgamma(hn::Zero(Floats())), dbeta(dgamma) {}

    template <int kRow>
    HWY_INLINE void add(FloatVec dy, FloatVec x_hat) {
      if constexpr (kParams) {
        dgamma = kRow == 0 ? hn::Mul(dy, x_hat) : hn::MulAdd(dy, x_hat, dgamma);
      }
      if constexpr (kBeta) dbeta = kRow == 0 ? dy : hn::Add(dbeta, dy);
    }
    // To those of the two rows before.
    HWY_INLINE void add_to(FloatVec first_dgamma, FloatVec first_dbeta) {
      if constexpr (kParams) dgamma = hn::Add(first_dgamma, dgamma);
      if constexpr (kBeta) dbeta = hn::Add(first_dbeta, dbeta);
    }
  };

  // The running sums of a chunk, one column per lane.
  struct Sums {
    FloatVec dgamma, dbeta;

    HWY_INLINE Sums(FloatMask kept, const float* dgamma_sums, const float* dbeta_sums) {
      if constexpr (kParams) dgamma = hn::MaskedLoad(kept, Floats(), dgamma_sums);
      if constexpr (kBeta) dbeta = hn::MaskedLoad(kept, Floats(), dbeta_sums);
    }
    HWY_INLINE void add(const Terms& terms) {
      if constexpr (kParams) dgamma = hn::Add(dgamma, terms.dgamma);
      if constexpr (kBeta) dbeta = hn::Add(dbeta, terms.dbeta);
    }
    HWY_INLINE void write(float* dgamma_sums, float* dbeta_sums) const {
      if constexpr (kParams) store(dgamma, dgamma_sums);
      if constexpr (kBeta) store(dbeta, dbeta_sums);
    }
  };

  template <int kRow>
  static HWY_INLINE FloatVec row(const ScalarVecs& s, FloatVec x, FloatVec dy, FloatVec gamma,
                                 Terms& terms) {
    if constexpr (kForm == RowForm::kCentred) x = hn::Sub(x, s.mean);
    terms.template add<kRow>(dy, kForm == RowForm::kXHat ? x : hn::Mul(x, s.scale));
    // RMSNorm has c1 = 0.
    const FloatVec g = kForm == RowForm::kScaled ? hn::Mul(dy, gamma) : hn::MulSub(dy, gamma, s.c1);
    return hn::NegMulAdd(x, s.c2, hn::Mul(s.r, g));
  }

  // Columns [begin, end) of rows of `cols`, of a stretch [first, last); begin is a multiple of
  // pair_lanes().
  HWY_INLINE void run(int64_t begin, int64_t end, int64_t first, int64_t last, int64_t cols) const {
    const int64_t pairs_end = HWY_MIN(end, cols / pair_lanes() * pair_lanes());
    WaitingElements<T> waiting[kAtOnce] = {};
    int64_t c = begin;
    if constexpr (kLines) {
      if (c == first && c < pairs_end) {
        pair<true>(c, waiting);
        c += pair_lanes();
      } else {
        for (int k = 0; k < kAtOnce; ++k) waiting[k] = waiting_[k];
      }
    }
    for (; c < pairs_end; c += pair_lanes()) pair<false>(c, waiting);
    FloatVec last_dx[2][kAtOnce] = {};
    int vectors = 0;
    if (c + lanes() <= end) {
      vector<false>(c, lanes(), last_dx[vectors++]);
      c += lanes();
    }
    if (c < end) vector<true>(c, end - c, last_dx[vectors]);
    if constexpr (kLines) {
      for (int k = 0; k < kAtOnce; ++k) {
        if (end < last) {
          waiting_[k] = waiting[k];
        } else {
          lines_[k].end({last_dx[0][k], last_dx[1][k]}, end - pairs_end, pairs_end == first,
                        dx_[k] + pairs_end, waiting[k]);
        }
      }
    }
  }

 private:
  static constexpr bool kBeta = kParams && kForm != RowForm::kScaled;
  static constexpr bool kDh = !kWhole || kFlow == Flow::kWithDh;
  static constexpr bool kLines = kDx && kFlow == Flow::kWholeLines;

  template <int kRow>
  HWY_INLINE FloatPair plus_dh(FloatPair dx, int64_t c) const {
    if constexpr (!kDh) return dx;
    if (!kWhole && dh_[kRow] == nullptr) return dx;
    constexpr int64_t kDistance = 2048 / sizeof(T);
    prefetch_pair<3>(dh_[kRow] + c + kDistance);
    const FloatPair dh = load_pair(dh_[kRow] + c);
    return {hn::Add(dx.a, dh.a), hn::Add(dx.b, dh.b)};
  }
  template <bool kTail, int kRow>
  HWY_INLINE FloatVec plus_dh(FloatVec dx, int64_t c, int64_t count) const {
    if constexpr (!kDh) return dx;
    if (!kWhole && dh_[kRow] == nullptr) return dx;
    return hn::Add(dx, load_some<kTail>(dh_[kRow] + c, count));
  }

  // kStarts: the first pair of a stretch.
  template <bool kStarts, int kRow>
  HWY_INLINE void pair_of_row(int64_t c, FloatPair gamma, Terms& a, Terms& b,
                              WaitingElements<T>* waiting) const {
    if constexpr (kRow < kAtOnce) {
      if (!kWhole && kRow >= count_) return;
      const FloatPair x = load_pair(x_[kRow] + c), dy = load_pair(dy_[kRow] + c);
      const FloatPair dx = plus_dh<kRow>({row<kRow>(scalars_[kRow], x.a, dy.a, gamma.a, a),
                                          row<kRow>(scalars_[kRow], x.b, dy.b, gamma.b, b)},
                                         c);
      if constexpr (kDx && kFlow == Flow::kStreaming) {
        stream_pair(dx, dx_[kRow] + c);
      } else if constexpr (kLines) {
        lines_[kRow].template put<kStarts>(dx, dx_[kRow] + c, waiting[kRow]);
      } else if (kDx && (kWhole || dx_[kRow] != nullptr)) {
        store_pair(dx, dx_[kRow] + c);
      }
      if constexpr (kFlow != Flow::kCached) prefetch_pair(dy_[kRow] + c + dy_ahead_);
      pair_of_row<kStarts, kRow + 1>(c, gamma, a, b, waiting);
    }
  }
  template <bool kStarts>
  HWY_INLINE void pair(int64_t c, WaitingElements<T>* waiting) const {
    Terms a, b;
    pair_of_row<kStarts, 0>(c, load_pair(gamma_ + c), a, b, waiting);
    add(a, c);
    add(b, c + lanes());
  }

  template <bool kTail, int kRow>
  HWY_INLINE void vector_of_row(int64_t c, int64_t count, FloatVec gamma, Terms& terms,
                                FloatVec* lines_dx) const {
    if constexpr (kRow < kAtOnce) {
      if (!kWhole && kRow >= count_) return;
      const FloatVec x = load_some<kTail>(x_[kRow] + c, count);
      const FloatVec dy = load_some<kTail>(dy_[kRow] + c, count);
      const FloatVec dx =
          plus_dh<kTail, kRow>(row<kRow>(scalars_[kRow], x, dy, gamma, terms), c, count);
      if constexpr (kLines) {
        lines_dx[kRow] = dx;
      } else if constexpr (kDx && kFlow == Flow::kStreaming && !kTail) {
        stream(dx, dx_[kRow] + c);
      } else if (kDx && (kWhole || dx_[kRow] != nullptr)) {
        store_some<kTail>(dx, dx_[kRow] + c, count);
      }
      vector_of_row<kTail, kRow + 1>(c, count, gamma, terms, lines_dx);
    }
  }
  template <bool kTail>
  HWY_INLINE void vector(int64_t c, int64_t count, FloatVec* lines_dx) const {
    Terms terms;
    vector_of_row<kTail, 0>(c, count, load(gamma_ + c), terms, lines_dx);
    add(terms, c);
  }
  HWY_INLINE void add(Terms& terms, int64_t c) const {
    if (kDh && dgamma_ == nullptr) return;
    if constexpr (kPass == Pass::kFirst) {
      if constexpr (kParams) store(terms.dgamma, first_dgamma_ + c);
      if constexpr (kBeta) store(terms.dbeta, first_dbeta_ + c);
      return;
    }
    if constexpr (kPass == Pass::kLast && kParams) {
      terms.add_to(load(first_dgamma_ + c), kBeta ? load(first_dbeta_ + c) : terms.dbeta);
    }
    Sums sums(kept_, dgamma_ + c, dbeta_ + c);
    sums.add(terms);
    sums.write(dgamma_ + c, dbeta_ + c);
  }

  const int64_t count_;
  const T* const x_[kAtOnce];
  const T* const dy_[kAtOnce];
  const T* const dh_[kAtOnce];
  T* const dx_[kAtOnce];
  const WholeLines<T> lines_[kAtOnce];
  WaitingElements<T>* const waiting_;
  const ScalarVecs scalars_[kAtOnce];
  const int64_t dy_ahead_;
  const FloatMask kept_;
  const float* gamma_;
  float* dgamma_;
  float* dbeta_;
  float* first_dgamma_;  // at column 0
  float* first_dbeta_;
};

template <bool kWhole, class T, RowForm kForm, bool kDx, bool kParams, Flow kFlow>
HWY_NOINLINE void row_grads(const RowGroup<T>& rows, const float* gamma, float* dgamma,
                            float* dbeta, int64_t begin, int64_t end, int64_t cols) {
  FirstTerms first_terms;
  WaitingElements<T> waiting[kGroup];
  const auto pass = [&](auto which, int64_t c) HWY_ATTR {
    const RowGrads<decltype(which)::value, kWhole, T, kForm, kDx, kParams, kFlow> grads(
        rows, gamma, dgamma, dbeta, first_terms, waiting, c);
    grads.run(c, HWY_MIN(c + kGradTile, end), begin, end, cols);
  };
  for (int64_t c = begin; c < end; c += kGradTile) {
    if (kWhole || rows.count > kAtOnce) {
      pass(std::integral_constant<Pass, Pass::kFirst>(), c);
      pass(std::integral_constant<Pass, Pass::kLast>(), c);
    } else {
      pass(std::integral_constant<Pass, Pass::kOnly>(), c);
    }
  }
}

// The second look at a whole batch of rows of a few vectors: the column sums stay in registers from
// the first row to the last.
template <class T, RowForm kForm, bool kParams, bool kStreaming>
class ShortRows {
 public:
  HWY_INLINE ShortRows(const RowBatch<T>& batch, bool first, const float* gamma, float* dgamma,
                       float* dbeta)
      : count_(batch.count),
        kept_(Grads::kept_sums(first)),
        x_(batch.x),
        dy_(batch.dy),
        dx_(batch.dx),
        scalars_(batch.scalars),
        gamma_(gamma),
        dgamma_(dgamma),
        dbeta_(dbeta) {}

  HWY_INLINE void run(int64_t cols) const {
    int64_t c = 0;
    for (; c + pair_lanes() <= cols; c += pair_lanes()) pair(c);
    if (c + lanes() <= cols) {
      vector<false>(c, lanes());
      c += lanes();
    }
    if (c < cols) vector<true>(c, cols - c);
  }

 private:
  using Grads = RowGrads<Pass::kOnly, true, T, kForm, true, kParams, Flow::kCached>;
  using Terms = typename Grads::Terms;

  template <int kRow>
  HWY_INLINE FloatVec row(int64_t k, FloatVec x, FloatVec dy, FloatVec gamma, Terms& terms) const {
    return Grads::template row<kRow>(ScalarVecs(scalars_.row(k + kRow)), x, dy, gamma, terms);
  }

  template <int kRow>
  HWY_INLINE void pair_of_row(int64_t k, int64_t c, FloatPair gamma, Terms& a, Terms& b) const {
    if constexpr (kRow < kAtOnce) {
      const FloatPair x = load_pair(x_[k + kRow] + c), dy = load_pair(dy_[k + kRow] + c);
      const FloatPair dx = {row<kRow>(k, x.a, dy.a, gamma.a, a),
                            row<kRow>(k, x.b, dy.b, gamma.b, b)};
      if constexpr (kStreaming) {
        stream_pair(dx, dx_[k + kRow] + c);
      } else {
        store_pair(dx, dx_[k + kRow] + c);
      }
      pair_of_row<kRow + 1>(k, c, gamma, a, b);
    }
  }
  HWY_INLINE void pair(int64_t c) const {
    const FloatPair gamma = load_pair(gamma_ + c);
    typename Grads::Sums a(kept_, dgamma_ + c, dbeta_ + c);
    typename Grads::Sums b(kept_, dgamma_ + c + lanes(), dbeta_ + c + lanes());
    for (int64_t k = 0; k < count_; k += kGroup) {
      Terms a_first, b_first, a_last, b_last;
      pair_of_row<0>(k, c, gamma, a_first, b_first);
      pair_of_row<0>(k + kAtOnce, c, gamma, a_last, b_last);
      a_last.add_to(a_first.dgamma, a_first.dbeta);
      b_last.add_to(b_first.dgamma, b_first.dbeta);
      a.add(a_last);
      b.add(b_last);
    }
    a.write(dgamma_ + c, dbeta_ + c);
    b.write(dgamma_ + c + lanes(), dbeta_ + c + lanes());
  }

  template <bool kTail, int kRow>
  HWY_INLINE void vector_of_row(int64_t k, int64_t c, int64_t count, FloatVec gamma,
                                Terms& terms) const {
    if constexpr (kRow < kAtOnce) {
      const FloatVec x = load_some<kTail>(x_[k + kRow] + c, count);
      const FloatVec dy = load_some<kTail>(dy_[k + kRow] + c, count);
      const FloatVec dx = row<kRow>(k, x, dy, gamma, terms);
      if constexpr (kStreaming && !kTail) {
        stream(dx, dx_[k + kRow] + c);
      } else {
        store_some<kTail>(dx, dx_[k + kRow] + c, count);
      }
      vector_of_row<kTail, kRow + 1>(k, c, count, gamma, terms);
    }
  }
  template <bool kTail>
  HWY_INLINE void vector(int64_t c, int64_t count) const {
    const FloatVec gamma = load(gamma_ + c);
    typename Grads::Sums sums(kept_, dgamma_ + c, dbeta_ + c);
    for (int64_t k = 0; k < count_; k += kGroup) {
      Terms first, last;
      vector_of_row<kTail, 0>(k, c, count, gamma, first);
      vector_of_row<kTail, 0>(k + kAtOnce, c, count, gamma, last);
      last.add_to(first.dgamma, first.dbeta);
      sums.add(last);
    }
    sums.write(dgamma_ + c, dbeta_ + c);
  }

  const int64_t count_;  // a multiple of kGroup
  const FloatMask kept_;
  const T* const* x_;
  const T* const* dy_;
  T* const* dx_;
  const RowScalars& scalars_;
  const float* gamma_;
  float* dgamma_;
  float* dbeta_;
};

template <class T, RowForm kForm, bool kParams, bool kStreaming>
HWY_NOINLINE void short_rows(const RowBatch<T>& batch, bool first, const float* gamma,
                             float* dgamma, float* dbeta, int64_t cols) {
  const ShortRows<T, kForm, kParams, kStreaming> rows(batch, first, gamma, dgamma, dbeta);
  rows.run(cols);
}

// The second look for one set of outputs.
template <class T>
struct GradKernels {
  using Group = void (*)(const RowGroup<T>&, const float* gamma, float* dgamma, float* dbeta,
                         int64_t begin, int64_t end, int64_t cols);
  using Short = void (*)(const RowBatch<T>&, bool first, const float* gamma, float* dgamma,
                         float* dbeta, int64_t cols);
  Group part;                          // up to four rows, any outputs
  Group whole[kFlows];                 // four, by Flow
  Short short_plain, short_streaming;  // with dx, a multiple of four
};

template <class T, RowForm kForm>
GradKernels<T> choose_kernels(bool dx, bool params) {
  constexpr auto kPart = row_grads<false, T, kForm, true, true, Flow::kCached>;
  if (!dx) {
    constexpr auto kWhole = row_grads<true, T, kForm, false, true, Flow::kPlain>;
    return {kPart, {kWhole, kWhole, kWhole, kWhole, nullptr}, nullptr, nullptr};
  }
  const auto with_dx = [](auto with_params) -> GradKernels<T> {
    constexpr bool kParams = decltype(with_params)::value;
    constexpr Flow kLines = kMakesWholeLines ? Flow::kWholeLines : Flow::kPlain;
    return {kPart,
            {row_grads<true, T, kForm, true, kParams, Flow::kCached>,
             row_grads<true, T, kForm, true, kParams, Flow::kPlain>,
             row_grads<true, T, kForm, true, kParams, Flow::kStreaming>,
             row_grads<true, T, kForm, true, kParams, kLines>,
             row_grads<true, T, kForm, true, true, Flow::kWithDh>},
            short_rows<T, kForm, kParams, false>,
            short_rows<T, kForm, kParams, true>};
  };
  return params ? with_dx(std::true_type()) : with_dx(std::false_type());
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_ROW_GRADS_INL_H_
