// The formulas of an element in float32 vectors, and whether its factors suit them.
#if defined(NORMGRAD_CPU_FORMULA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_FORMULA_INL_H_
#undef NORMGRAD_CPU_FORMULA_INL_H_
#else
#define NORMGRAD_CPU_FORMULA_INL_H_
#endif

#include "cpu/io-inl.h"
#include "cpu/normalizer.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// is_safe() in every lane.
HWY_INLINE hn::Mask<Doubles> are_in_range(DoubleVec factor) {
  const DoubleVec magnitude = hn::Abs(factor);
  return hn::And(hn::Ge(magnitude, hn::Set(Doubles(), kLeastSafe)),
                 hn::Le(magnitude, hn::Set(Doubles(), kMostSafe)));
}

// The scalars of a row or channel in every lane.
struct ScalarVecs {
  FloatVec mean, scale, r, c1, c2;

  HWY_INLINE explicit ScalarVecs(const Scalars& s)
      : mean(hn::Set(Floats(), s.mean)),
        scale(hn::Set(Floats(), s.scale)),
        r(hn::Set(Floats(), s.r)),
        c1(hn::Set(Floats(), s.c1)),
        c2(hn::Set(Floats(), s.c2)) {}

  HWY_INLINE FloatVec x_hat(FloatVec x) const { return hn::Mul(hn::Sub(x, mean), scale); }

  // r * (g - c1 - x_hat * c2)
  HWY_INLINE FloatVec dx(FloatVec g, FloatVec x_hat) const {
    return hn::Mul(r, hn::NegMulAdd(x_hat, c2, hn::Sub(g, c1)));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_FORMULA_INL_H_
