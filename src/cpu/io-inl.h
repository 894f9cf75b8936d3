// Vectors of float32 from and to memory of any element type: one, a pair, or the last few elements
// of a row; and their sums in float64.
#if defined(NORMGRAD_CPU_IO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_IO_INL_H_
#undef NORMGRAD_CPU_IO_INL_H_
#else
#define NORMGRAD_CPU_IO_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

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
using FloatMask = hn::Mask<Floats>;
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

// To nearest, ties to even, in the upper half of each lane. The library's own demotion truncates,
// and the instruction for it flushes subnormals, so this is integer arithmetic: add half a unit,
// less one if the last bit is even. A NaN stays one, since what the kernels store came from 16-bit
// NaNs or from an invalid operation: the lower half of its bits is 0 and cannot carry.
HWY_INLINE hn::Vec<Integers> round_to_bf16(FloatVec v) {
  const Integers di;
  const auto bits = hn::BitCast(di, v);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3  // a mask is one operation less
  const auto odd = hn::TestBit(bits, hn::Set(di, 0x10000));
  return hn::Add(bits, hn::IfThenElse(odd, hn::Set(di, 0x8000), hn::Set(di, 0x7FFF)));
#else
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 1));
  return hn::Add(bits, hn::Add(odd, hn::Set(di, 0x7FFF)));
#endif
}
HWY_INLINE hn::Vec<Words> bf16_words(FloatVec v) {
  const hn::RebindToSigned<Integers> ds;
  return hn::DemoteTo(Words(), hn::BitCast(ds, hn::ShiftRight<16>(round_to_bf16(v))));
}
HWY_INLINE void store(FloatVec v, BF16* p) {
  hn::StoreU(bf16_words(v), Words(), reinterpret_cast<uint16_t*>(p));
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
HWY_INLINE hn::Vec<Words> f16_words(FloatVec v) {
  return hn::BitCast(Words(), hn::DemoteTo(Halves(), v));
}
HWY_INLINE void store(FloatVec v, F16* p) {
  hn::StoreU(f16_words(v), Words(), reinterpret_cast<uint16_t*>(p));
}
#endif

// The last `count` <= lanes() elements of a row; the other lanes are zero.
template <class T>
HWY_INLINE FloatVec load_tail(const T* p, int64_t count) {
  T values[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(values, p, static_cast<size_t>(std::clamp<int64_t>(count, 0, lanes())) * sizeof(T));
  return load(values);
}
template <class T>
HWY_INLINE void store_tail(FloatVec v, T* p, int64_t count) {
  T values[HWY_MAX_BYTES / sizeof(float)];
  store(v, values);
  std::memcpy(p, values, static_cast<size_t>(count) * sizeof(T));
}
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2  // masks that never touch what they leave out
HWY_INLINE FloatVec load_tail(const float* p, int64_t count) {
  return hn::MaskedLoad(hn::FirstN(Floats(), static_cast<size_t>(count)), Floats(), p);
}
HWY_INLINE void store_tail(FloatVec v, float* p, int64_t count) {
  hn::BlendedStore(v, hn::FirstN(Floats(), static_cast<size_t>(count)), Floats(), p);
}
#endif
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3  // also of 16-bit elements
HWY_INLINE hn::Vec<Words> load_words(const void* p, int64_t count) {
  const auto mask = hn::FirstN(Words(), static_cast<size_t>(count));
  return hn::MaskedLoad(mask, Words(), static_cast<const uint16_t*>(p));
}
HWY_INLINE void store_words(hn::Vec<Words> words, void* p, int64_t count) {
  const auto mask = hn::FirstN(Words(), static_cast<size_t>(count));
  hn::BlendedStore(words, mask, Words(), static_cast<uint16_t*>(p));
}
HWY_INLINE FloatVec load_tail(const BF16* p, int64_t count) {
  const auto words = hn::PromoteTo(Integers(), load_words(p, count));
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(words));
}
HWY_INLINE FloatVec load_tail(const F16* p, int64_t count) {
  return hn::PromoteTo(Floats(), hn::BitCast(Halves(), load_words(p, count)));
}
HWY_INLINE void store_tail(FloatVec v, BF16* p, int64_t count) {
  store_words(bf16_words(v), p, count);
}
HWY_INLINE void store_tail(FloatVec v, F16* p, int64_t count) {
  store_words(f16_words(v), p, count);
}
#endif

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

// Two vectors of neighbouring elements. Those of bfloat16 are the even and the odd ones, since a
// shift or a mask then widens 16 of them: whoever keeps float32 beside them keeps the same order
// (pair_position).
struct FloatPair {
  FloatVec a, b;
};
HWY_INLINE int64_t pair_lanes() { return 2 * lanes(); }

// Where element i of a row of `count` stands when its pairs are written out: the even elements of a
// pair before the odd ones; what is left at the end of a row is in order.
template <class T>
HWY_INLINE int64_t pair_position(int64_t i, int64_t count) {
  if (!std::is_same_v<T, BF16> || i >= count / pair_lanes() * pair_lanes()) return i;
  const int64_t in_pair = i % pair_lanes();
  return i - in_pair + in_pair % 2 * lanes() + in_pair / 2;
}

// Two vectors in order as a pair of T, and back.
template <class T>
HWY_INLINE FloatPair pair_of(FloatVec first, FloatVec second) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::is_same_v<T, BF16>) {
    return {hn::ConcatEven(Floats(), second, first), hn::ConcatOdd(Floats(), second, first)};
  }
#endif
  return {first, second};
}
template <class T>
HWY_INLINE FloatPair in_order(FloatPair pair) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::is_same_v<T, BF16>) {
    HWY_ALIGN float values[2 * HWY_MAX_BYTES / sizeof(float)];
    hn::StoreInterleaved2(pair.a, pair.b, Floats(), values);
    return {load(values), load(values + lanes())};
  }
#endif
  return pair;
}

template <class T>
HWY_INLINE FloatPair load_pair(const T* p) {
  return {load(p), load(p + lanes())};
}
template <class T>
HWY_INLINE void store_pair(FloatPair pair, T* p) {
  store(pair.a, p);
  store(pair.b, p + lanes());
}

// Asks for cache lines. kLocality 2: into the second level, 3: into the first.
template <int kLocality = 2, class T>
HWY_INLINE void prefetch_bytes(const T* p, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t byte = 0; byte < bytes; byte += kLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + byte, 0, kLocality);
  }
}
template <int kLocality = 2, class T>
HWY_INLINE void prefetch_pair(const T* p) {
  prefetch_bytes<kLocality>(p, pair_lanes() * static_cast<int64_t>(sizeof(T)));
}

// The same past the caches, to a multiple of their size; on the instruction sets that have no
// 16-bit conversions, through them.
template <class T>
HWY_INLINE void stream(FloatVec v, T* p) {
  store(v, p);
}
HWY_INLINE void stream(FloatVec v, float* p) { hn::Stream(v, Floats(), p); }
#if HWY_TARGET != HWY_SCALAR && (!HWY_ARCH_X86 || HWY_TARGET <= HWY_AVX2)
HWY_INLINE void stream(FloatVec v, F16* p) {
  hn::Stream(f16_words(v), Words(), reinterpret_cast<uint16_t*>(p));
}
#endif
template <class T>
HWY_INLINE void stream_pair(FloatPair pair, T* p) {
  stream(pair.a, p);
  stream(pair.b, p + lanes());
}

#if HWY_TARGET != HWY_SCALAR  // whose pairs are in order as they are
HWY_INLINE FloatPair load_pair(const BF16* p) {
  auto both = hn::LoadU(Integers(), reinterpret_cast<const uint32_t*>(p));
#if HWY_ARCH_X86  // both uses would load it again: four cache lines where rows are not aligned
  asm("" : "+v"(both.raw));
#endif
  return {hn::BitCast(Floats(), hn::ShiftLeft<16>(both)),
          hn::BitCast(Floats(), hn::And(both, hn::Set(Integers(), 0xFFFF0000u)))};
}
HWY_INLINE hn::Vec<Integers> bf16_pair(FloatPair pair) {
  return hn::OrAnd(hn::ShiftRight<16>(round_to_bf16(pair.a)), round_to_bf16(pair.b),
                   hn::Set(Integers(), 0xFFFF0000u));
}
HWY_INLINE void store_pair(FloatPair pair, BF16* p) {
  hn::StoreU(bf16_pair(pair), Integers(), reinterpret_cast<uint32_t*>(p));
}
HWY_INLINE void stream_pair(FloatPair pair, BF16* p) {
  hn::Stream(bf16_pair(pair), Integers(), reinterpret_cast<uint32_t*>(p));
}
#endif

// Copies `count` elements, from the `shift`-th of a cache line on to its end at most. Whole lines
// with a mask, where there are masks: a store that reaches over the end, if only with lanes that it
// leaves out, fetches the line behind, which is stored past the caches soon.
template <class T>
HWY_INLINE void copy_into_line(const T* from, T* to, int64_t shift, int64_t count) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const hn::ScalableTag<hwy::UnsignedFromSize<sizeof(T)>> d;
  using Lane = hn::TFromD<decltype(d)>;
  const auto before = hn::FirstN(d, static_cast<size_t>(shift));
  const auto mask = hn::AndNot(before, hn::FirstN(d, static_cast<size_t>(shift + count)));
  hn::BlendedStore(hn::MaskedLoad(mask, d, reinterpret_cast<const Lane*>(from) - shift), mask, d,
                   reinterpret_cast<Lane*>(to) - shift);
#else
  (void)shift;
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
#endif
}

// Copies `count` elements past the caches, from a place in them to one of any alignment.
template <class T>
HWY_INLINE void stream_copy(const T* from, T* to, int64_t count) {
  constexpr int64_t kSize = sizeof(T), kLine = 64, kLineCount = kLine / kSize;
  using Bytes = hn::ScalableTag<uint8_t>;
  const int64_t step = static_cast<int64_t>(hn::Lanes(Bytes()));
  const int64_t shift = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLine) / kSize;
  int64_t done = shift == 0 ? 0 : HWY_MIN(kLineCount - shift, count);
  if (done > 0) copy_into_line(from, to, shift, done);
  for (; done + kLineCount <= count; done += kLineCount) {
    const auto* source = reinterpret_cast<const uint8_t*>(from + done);
    auto* target = reinterpret_cast<uint8_t*>(to + done);
    for (int64_t k = 0; k < kLine; k += step) {
      hn::Stream(hn::LoadU(Bytes(), source + k), Bytes(), target + k);
    }
  }
  if (done < count) copy_into_line(from + done, to + done, 0, count - done);
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

HWY_INLINE void store(DoublePair v, double* p) {  // lanes() doubles
  hn::StoreU(v.low, Doubles(), p);
  const int64_t stored = static_cast<int64_t>(hn::Lanes(Doubles()));
  if (stored < lanes()) hn::StoreU(v.high, Doubles(), p + stored);
}

// The sum of its halves, as doubles.
HWY_INLINE DoubleVec halves_total(FloatVec v) {
#if HWY_TARGET == HWY_SCALAR
  return hn::PromoteTo(Doubles(), v);
#else
  const hn::Half<Floats> half;
  return hn::PromoteTo(Doubles(), hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
#endif
}

// Lanes of a running float64 sum.
class DoubleSum {
 public:
  HWY_INLINE DoubleSum() : low_(hn::Zero(Doubles())), high_(hn::Zero(Doubles())) {}
  HWY_INLINE explicit DoubleSum(const double* p)  // as store() left it
      : low_(hn::LoadU(Doubles(), p)),
        high_(hn::Lanes(Doubles()) < hn::Lanes(Floats())
                  ? hn::LoadU(Doubles(), p + lanes() - static_cast<int64_t>(hn::Lanes(Doubles())))
                  : hn::Zero(Doubles())) {}
  HWY_INLINE void add(DoublePair a) {
    low_ = hn::Add(low_, a.low);
    high_ = hn::Add(high_, a.high);
  }
  // a * b is exact: two 24-bit mantissas fit into 53 bits.
  HWY_INLINE void add_product(DoublePair a, DoublePair b) {
    low_ = hn::MulAdd(a.low, b.low, low_);
    high_ = hn::MulAdd(a.high, b.high, high_);
  }
  HWY_INLINE DoubleVec lanes_total() const { return hn::Add(low_, high_); }
  HWY_INLINE void store(double* p) const {  // lanes() doubles
    HWY_NAMESPACE::store(DoublePair{low_, high_}, p);
  }

 private:
  DoubleVec low_, high_;
};

// Doubles, rounded. Without instructions for it, the library's own demotion clamps Inf.
using FloatsOfDoubles = hn::Rebind<float, Doubles>;
HWY_INLINE hn::Vec<FloatsOfDoubles> rounded(DoubleVec v) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  HWY_ALIGN double wide[hn::MaxLanes(Doubles())];
  HWY_ALIGN float narrow[hn::MaxLanes(Doubles())];
  hn::Store(v, Doubles(), wide);
  for (size_t i = 0; i < hn::MaxLanes(Doubles()); ++i) narrow[i] = static_cast<float>(wide[i]);
  return hn::Load(FloatsOfDoubles(), narrow);
#else
  return hn::DemoteTo(FloatsOfDoubles(), v);
#endif
}
HWY_INLINE FloatVec load_rounded(const double* p) {
#if HWY_TARGET == HWY_SCALAR
  return rounded(hn::LoadU(Doubles(), p));
#else
  return hn::Combine(Floats(), rounded(hn::LoadU(Doubles(), p + hn::Lanes(Doubles()))),
                     rounded(hn::LoadU(Doubles(), p)));
#endif
}

// The totals of the lanes of a and b, both in the instructions of one: short rows have many totals.
HWY_INLINE void store_totals(DoubleVec a, DoubleVec b, double* total_a, double* total_b) {
#if HWY_TARGET == HWY_SCALAR
  *total_a = hn::GetLane(a);
  *total_b = hn::GetLane(b);
#else
  const Doubles d;
  DoubleVec sums = hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  sums = hn::Add(sums, hn::SwapAdjacentBlocks(sums));
#endif
  if (hn::Lanes(d) > 2) sums = hn::Add(sums, hn::Reverse2(d, sums));
  *total_a = hn::GetLane(sums);
  *total_b = hn::GetLane(hn::UpperHalf(hn::Half<Doubles>(), sums));
#endif
}

HWY_INLINE void store_totals(const DoubleSum& a, const DoubleSum& b, double* total_a,
                             double* total_b) {
  store_totals(a.lanes_total(), b.lanes_total(), total_a, total_b);
}

// The same of four pairs, next to each other.
HWY_INLINE void store_four_totals(const DoubleVec* a, const DoubleVec* b, double* totals_a,
                                  double* totals_b) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const Doubles d;
  const auto halves = [](DoubleVec v, DoubleVec w) HWY_ATTR {
    return hn::Add(hn::ConcatLowerLower(Doubles(), w, v), hn::ConcatUpperUpper(Doubles(), w, v));
  };
  const auto blocks = [](DoubleVec v, DoubleVec w) HWY_ATTR {
    return hn::Add(DoubleVec{_mm512_shuffle_f64x2(v.raw, w.raw, 0x88)},
                   DoubleVec{_mm512_shuffle_f64x2(v.raw, w.raw, 0xDD)});
  };
  const DoubleVec a_sums = blocks(halves(a[0], a[1]), halves(a[2], a[3]));
  const DoubleVec b_sums = blocks(halves(b[0], b[1]), halves(b[2], b[3]));
  // a0 b0 a1 b1 a2 b2 a3 b3
  const DoubleVec sums =
      hn::Add(hn::InterleaveLower(d, a_sums, b_sums), hn::InterleaveUpper(d, a_sums, b_sums));
  const hn::Half<Doubles> half;
  hn::StoreU(hn::LowerHalf(half, hn::ConcatEven(d, sums, sums)), half, totals_a);
  hn::StoreU(hn::LowerHalf(half, hn::ConcatOdd(d, sums, sums)), half, totals_b);
#else
  for (int k = 0; k < 4; ++k) store_totals(a[k], b[k], totals_a + k, totals_b + k);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_IO_INL_H_
