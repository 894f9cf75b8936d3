// The scalars of a batch of rows, side by side, so that short rows do not pay for theirs one by
// one: a division is 16 cycles, for one row or for eight.
#if defined(NORMGRAD_CPU_ROW_SCALARS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_ROW_SCALARS_INL_H_
#undef NORMGRAD_CPU_ROW_SCALARS_INL_H_
#else
#define NORMGRAD_CPU_ROW_SCALARS_INL_H_
#endif

#include <cstdint>

#include "cpu/formula-inl.h"
#include "cpu/io-inl.h"
#include "cpu/normalizer.hpp"
#include "cpu/row_sums.hpp"
#include "hwy/highway.h"
#include "ops/problem.hpp"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// In float32, for the second look: dx = r * (g - c1) - (x - mean) * c2, where c2 has got the
// factors scale and r.
struct RowScalars {
  float mean[kMostRows] = {}, scale[kMostRows] = {}, r[kMostRows] = {};
  float c1[kMostRows] = {}, c2[kMostRows] = {};

  HWY_INLINE Scalars row(int64_t k) const { return {mean[k], scale[k], r[k], c1[k], c2[k]}; }
  HWY_INLINE void set(int64_t k, const Scalars& s) {
    mean[k] = s.mean;
    scale[k] = s.scale;
    r[k] = s.r;
    c1[k] = s.c1;
    c2[k] = s.c2;
  }
};

// What they are made of.
struct RowMeasures {
  double mean[kMostRows] = {}, spread[kMostRows] = {};  // as given
  double first[kMostRows] = {}, g_x[kMostRows] = {};    // sums, see RowSums

  void set(int64_t k, const RowSums& sums) {
    first[k] = sums.first;
    g_x[k] = sums.g_x;
  }
};

// The scalars of rows [0, count), and whether each of them is plainly fine for float32. If not, the
// caller looks at every row with care. for_dx: the sums of g are there.
inline bool make_scalars(const RowMeasures& measures, const RowsProblem& problem, bool for_dx,
                         int64_t count, RowScalars& scalars) {
  const RowStatistics statistics = problem.statistics;
  const Doubles d;
  const DoubleVec one = hn::Set(d, 1), per_col = hn::Set(d, 1 / static_cast<double>(problem.cols));
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  bool fine = true;
  for (int64_t k = 0; k < count; k += step) {
    const DoubleVec first = hn::Mul(hn::LoadU(d, measures.first + k), per_col);
    const DoubleVec g_x = hn::Mul(hn::LoadU(d, measures.g_x + k), per_col);
    DoubleVec spread = hn::LoadU(d, measures.spread + k);
    if (statistics == RowStatistics::kFromX) spread = first;
    DoubleVec r = spread;
    if (statistics == RowStatistics::kFromX || statistics == RowStatistics::kMeanVariance) {
      r = hn::Div(one, hn::Sqrt(hn::Add(spread, hn::Set(d, problem.eps))));
    } else if (statistics == RowStatistics::kXHatStd) {
      r = hn::Div(one, spread);
    }
    const DoubleVec scale = statistics == RowStatistics::kXHatStd ? one : r;
    const DoubleVec c1 = is_rms(statistics) ? hn::Zero(d) : first;
    const DoubleVec c2 = hn::Mul(scale, g_x);
    const DoubleVec factor = hn::Mul(r, scale);
    auto good = are_in_range(r);
    if (statistics == RowStatistics::kFromX) good = hn::And(good, are_in_range(first));
    if (for_dx) {
      const DoubleVec sum = hn::Add(hn::Abs(c1), hn::Abs(c2));  // NaN if one is
      good = hn::And(good, hn::And(are_in_range(sum), are_in_range(g_x)));
      good = hn::And(good, are_in_range(hn::Mul(factor, sum)));
    }
    // The last vector may reach beyond the batch.
    const auto inside = hn::FirstN(d, static_cast<size_t>(HWY_MIN(step, count - k)));
    fine = fine && hn::AllTrue(d, hn::Or(good, hn::Not(inside)));
    const auto put = [&](DoubleVec v, float* to)
                         HWY_ATTR { hn::StoreU(rounded(v), FloatsOfDoubles(), to + k); };
    put(hn::LoadU(d, measures.mean + k), scalars.mean);
    put(scale, scalars.scale);
    put(r, scalars.r);
    put(c1, scalars.c1);
    put(hn::Mul(factor, c2), scalars.c2);
  }
  return fine;
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_ROW_SCALARS_INL_H_
