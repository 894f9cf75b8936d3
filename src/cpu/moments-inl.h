// The shifted sums of moments.hpp, a vector at a time. All of it is float64: a difference rounded
// to float32 would be off by a rounding of the pivot, which may be far from the mean.
#if defined(NORMGRAD_CPU_MOMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_MOMENTS_INL_H_
#undef NORMGRAD_CPU_MOMENTS_INL_H_
#else
#define NORMGRAD_CPU_MOMENTS_INL_H_
#endif

#include <cstdint>

#include "cpu/io-inl.h"
#include "cpu/moments.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// kPlain: of squares only, and not shifted.
template <bool kPlain = false>
class ShiftedSummer {
 public:
  HWY_INLINE ShiftedSummer() : ShiftedSummer(0) {}
  HWY_INLINE explicit ShiftedSummer(double pivot)
      : pivot_vec_(hn::Set(Floats(), static_cast<float>(pivot))),
        pivot_doubles_(hn::Set(Doubles(), pivot)) {}

  // The two halves have sums of their own: an addition takes four cycles.
  HWY_INLINE void add(FloatPair pair) {
    add(pair.a, a_);
    add(pair.b, b_);
  }
  HWY_INLINE void add(FloatVec v) { add(v, a_); }
  // The first `count` lanes, and all but those.
  HWY_INLINE void add_tail(FloatVec v, int64_t count) {
    const auto there = hn::FirstN(Floats(), static_cast<size_t>(count));
    add(hn::IfThenElse(there, v, pivot_vec_), b_);
  }
  HWY_INLINE void add_behind(FloatVec v, int64_t count) {
    const auto there = hn::FirstN(Floats(), static_cast<size_t>(count));
    add(hn::IfThenElse(there, pivot_vec_, v), b_);
  }

  HWY_INLINE void total(double* sum, double* squares) const {
    store_totals(hn::Add(a_.sum.lanes_total(), b_.sum.lanes_total()),
                 hn::Add(a_.squares.lanes_total(), b_.squares.lanes_total()), sum, squares);
  }

 private:
  struct Sums {
    DoubleSum sum, squares;
    HWY_INLINE Sums() {}
  };

  HWY_INLINE void add(FloatVec v, Sums& sums) const {
    const DoublePair wide = promote(v);
    if constexpr (kPlain) return sums.squares.add_product(wide, wide);
    const DoublePair shifted = {hn::Sub(wide.low, pivot_doubles_),
                                kHalves == 2 ? hn::Sub(wide.high, pivot_doubles_) : wide.high};
    sums.sum.add(shifted);
    sums.squares.add_product(shifted, shifted);
  }
  static constexpr int kHalves = HWY_TARGET == HWY_SCALAR ? 1 : 2;

  FloatVec pivot_vec_;
  DoubleVec pivot_doubles_;
  Sums a_, b_;
};

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_MOMENTS_INL_H_
