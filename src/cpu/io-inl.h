// Vectors of float32 from and to memory of any element type, whole or the last few elements of a
// row; and their sums in float64.
#if defined(NORMGRAD_CPU_IO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_IO_INL_H_
#undef NORMGRAD_CPU_IO_INL_H_
#else
#define NORMGRAD_CPU_IO_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "cpu/dtype.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
#if HWY_TARGET == HWY_SCALAR
using Doubles = hn::Rebind<double, Floats>;
#else
using Doubles = hn::Repartition<double, Floats>;
#endif
using FloatVec = hn::Vec<Floats>;
using DoubleVec = hn::Vec<Doubles>;
using Words = hn::Rebind<uint16_t, Floats>;
using Integers = hn::RebindToUnsigned<Floats>;

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(Floats())); }

HWY_INLINE FloatVec load(const float* p) { return hn::LoadU(Floats(), p); }
HWY_INLINE void store(FloatVec v, float* p) { hn::StoreU(v, Floats(), p); }

HWY_INLINE FloatVec load(const BF16* p) {
  const auto words = hn::LoadU(Words(), reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Integers(), words)));
}

// To nearest, ties to even. The library's own demotion truncates, and the instruction for it
// flushes subnormals, so this is integer arithmetic: add half a unit, less one if the last bit is
// even.
HWY_INLINE void store(FloatVec v, BF16* p) {
  const Integers di;
  const hn::RebindToSigned<Integers> ds;
  const auto bits = hn::BitCast(di, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(di, 0x7FFF)));
  const auto quiet = hn::Or(bits, hn::Set(di, 0x400000));
  const auto nan = hn::RebindMask(di, hn::IsNaN(v));
  const auto high = hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded));
  const auto words = hn::DemoteTo(Words(), hn::BitCast(ds, high));
  hn::StoreU(words, Words(), reinterpret_cast<uint16_t*>(p));
}

#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2  // no conversion instruction before F16C
HWY_INLINE FloatVec load(const F16* p) {
  HWY_ALIGN float values[HWY_MAX_BYTES / sizeof(float)];
  for (int64_t i = 0; i < lanes(); ++i) values[i] = f32_from_f16(p[i].bits);
  return hn::Load(Floats(), values);
}
HWY_INLINE void store(FloatVec v, F16* p) {
  HWY_ALIGN float values[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(v, Floats(), values);
  for (int64_t i = 0; i < lanes(); ++i) p[i].bits = f16_from_f32(values[i]);
}
#else
using Halves = hn::Rebind<hwy::float16_t, Floats>;
HWY_INLINE FloatVec load(const F16* p) {
  const auto halves = hn::LoadU(Halves(), reinterpret_cast<const hwy::float16_t*>(p));
  return hn::PromoteTo(Floats(), halves);
}
HWY_INLINE void store(FloatVec v, F16* p) {
  hn::StoreU(hn::DemoteTo(Halves(), v), Halves(), reinterpret_cast<hwy::float16_t*>(p));
}
#endif

// The last `count` < lanes() elements of a row; the other lanes are zero.
template <class T>
HWY_INLINE FloatVec load_tail(const T* p, int64_t count) {
  T values[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(values, p, static_cast<size_t>(count) * sizeof(T));
  return load(values);
}
template <class T>
HWY_INLINE void store_tail(FloatVec v, T* p, int64_t count) {
  T values[HWY_MAX_BYTES / sizeof(float)];
  store(v, values);
  std::memcpy(p, values, static_cast<size_t>(count) * sizeof(T));
}

// kTail: `count` elements; else a whole vector.
template <bool kTail, class T>
HWY_INLINE FloatVec load_some(const T* p, int64_t count) {
  if constexpr (kTail) return load_tail(p, count);
  return load(p);
}
template <bool kTail, class T>
HWY_INLINE void store_some(FloatVec v, T* p, int64_t count) {
  if constexpr (kTail) {
    store_tail(v, p, count);
  } else {
    store(v, p);
  }
}

// A vector of floats as two of doubles, exactly.
struct DoublePair {
  DoubleVec low, high;
};
HWY_INLINE DoublePair promote(FloatVec v) {
#if HWY_TARGET == HWY_SCALAR  // one float, one double
  return {hn::PromoteTo(Doubles(), v), hn::Zero(Doubles())};
#else
  const hn::Half<Floats> half;
  return {hn::PromoteTo(Doubles(), hn::LowerHalf(half, v)),
          hn::PromoteTo(Doubles(), hn::UpperHalf(half, v))};
#endif
}

// Lanes of a running float64 sum.
class DoubleSum {
 public:
  HWY_INLINE DoubleSum() : low_(hn::Zero(Doubles())), high_(hn::Zero(Doubles())) {}
  HWY_INLINE void add(DoublePair a) {
    low_ = hn::Add(low_, a.low);
    high_ = hn::Add(high_, a.high);
  }
  // a * b is exact: two 24-bit mantissas fit into 53 bits.
  HWY_INLINE void add_product(DoublePair a, DoublePair b) {
    low_ = hn::MulAdd(a.low, b.low, low_);
    high_ = hn::MulAdd(a.high, b.high, high_);
  }
  HWY_INLINE double total() const {
    return hn::GetLane(hn::SumOfLanes(Doubles(), hn::Add(low_, high_)));
  }
  HWY_INLINE void store(double* p) const {  // lanes() doubles
    hn::StoreU(low_, Doubles(), p);
    const int64_t stored = static_cast<int64_t>(hn::Lanes(Doubles()));
    if (stored < lanes()) hn::StoreU(high_, Doubles(), p + stored);
  }

 private:
  DoubleVec low_, high_;
};

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_IO_INL_H_
