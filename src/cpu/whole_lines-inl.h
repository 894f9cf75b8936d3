// Rows that begin within a cache line, stored past the caches: only whole lines can be, so each
// line is made of the end of one line's worth of elements and the beginning of the next.
#if defined(NORMGRAD_CPU_WHOLE_LINES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_WHOLE_LINES_INL_H_
#undef NORMGRAD_CPU_WHOLE_LINES_INL_H_
#else
#define NORMGRAD_CPU_WHOLE_LINES_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "cpu/io-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3  // vectors are lines, and one instruction joins two
inline constexpr bool kMakesWholeLines = true;

// The elements of a row that wait for their line, from one stretch of the row to the next.
template <class T>
struct WaitingElements {
  hn::Vec<Integers> line;
};

// Stores a stretch of a row pair by pair. No store reaches over the end of a line, also not with
// lanes that it leaves out: the processor would fetch the line behind, which is stored past the
// caches soon (65536x100 f32: 5.2 ms, 2.0 so).
template <class T>
class WholeLines {
 public:
  HWY_INLINE explicit WholeLines(const T* row)
      : shift_(static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % kLine) / kSize),
        lanes_(hn::Sub(hn::Iota(Lanes(), static_cast<Lane>(kLanes)),
                       hn::Set(Lanes(), static_cast<Lane>(shift_)))) {}

  // The pair belongs to p, which has the shift of the row. kStarts: nothing is waiting yet.
  template <bool kStarts>
  HWY_INLINE void put(FloatPair pair, T* p, WaitingElements<T>& waiting) const {
    if constexpr (std::is_same_v<T, float>) {
      put_line<kStarts>(hn::BitCast(Integers(), pair.a), p, waiting);
      put_line<false>(hn::BitCast(Integers(), pair.b), p + kLanes, waiting);
    } else if constexpr (std::is_same_v<T, BF16>) {
      put_line<kStarts>(bf16_pair(pair), p, waiting);
    } else {
      put_line<kStarts>(line_of(pair), p, waiting);
    }
  }

  // The end of a stretch: the last `count` elements, less than a pair and in order, after what
  // waits; `alone`: nothing does.
  HWY_INLINE void end(FloatPair last, int64_t count, bool alone, T* p,
                      WaitingElements<T>& waiting) const {
    hn::Vec<Integers> line = hn::BitCast(Integers(), last.a);
    if constexpr (kSize == 2) {
      line = line_of(last);
    } else if (count >= kLanes) {
      if (alone) {
        put_line<true>(line, p, waiting);
      } else {
        put_line<false>(line, p, waiting);
      }
      alone = false;
      p += kLanes;
      count -= kLanes;
      line = hn::BitCast(Integers(), last.b);
    }
    const int64_t lanes = shift_ + count;
    const auto ours = hn::AndNot(first_lanes(alone ? shift_ : 0), first_lanes(lanes));
    store_lanes(joined(waiting.line, line), ours, p);
    if (lanes > kLanes) store_lanes(joined(line, line), first_lanes(lanes - kLanes), p + kLanes);
  }

 private:
  using Lane = hwy::UnsignedFromSize<sizeof(T)>;
  using Lanes = hn::ScalableTag<Lane>;
  static constexpr int64_t kLine = 64, kSize = sizeof(T), kLanes = kLine / kSize;

  static HWY_INLINE hn::Vec<Integers> line_of(FloatPair pair) {  // in order, of 16-bit elements
    if constexpr (std::is_same_v<T, BF16>) {
      return hn::BitCast(Integers(), hn::Combine(Lanes(), bf16_words(pair.b), bf16_words(pair.a)));
    } else if constexpr (std::is_same_v<T, F16>) {
      return hn::BitCast(Integers(), hn::Combine(Lanes(), f16_words(pair.b), f16_words(pair.a)));
    }
  }
  static HWY_INLINE hn::Mask<Lanes> first_lanes(int64_t count) {
    return hn::FirstN(Lanes(), static_cast<size_t>(count));
  }
  HWY_INLINE Lane* line_at(T* p) const { return reinterpret_cast<Lane*>(p - shift_); }
  HWY_INLINE void store_lanes(hn::Vec<Lanes> line, hn::Mask<Lanes> mask, T* p) const {
    hn::BlendedStore(line, mask, Lanes(), line_at(p));
  }

  template <bool kStarts>
  HWY_INLINE void put_line(hn::Vec<Integers> line, T* p, WaitingElements<T>& waiting) const {
    if constexpr (kStarts) {  // what is before the row in its first line is not ours
      store_lanes(joined(line, line), hn::Not(first_lanes(shift_)), p);
    } else {
      hn::Stream(joined(waiting.line, line), Lanes(), line_at(p));
    }
    waiting.line = line;
  }
  // The last `shift` elements of the first, and those of the second before its last `shift`.
  HWY_INLINE hn::Vec<Lanes> joined(hn::Vec<Integers> first, hn::Vec<Integers> second) const {
    if constexpr (kSize == 4) {
      return hn::Vec<Lanes>{_mm512_permutex2var_epi32(first.raw, lanes_.raw, second.raw)};
    } else {
      return hn::Vec<Lanes>{_mm512_permutex2var_epi16(first.raw, lanes_.raw, second.raw)};
    }
  }

  const int64_t shift_;
  const hn::Vec<Lanes> lanes_;
};
#else
inline constexpr bool kMakesWholeLines = false;

template <class T>
struct WaitingElements {};

template <class T>
struct WholeLines {
  explicit WholeLines(const T*) {}
};
#endif

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_WHOLE_LINES_INL_H_
