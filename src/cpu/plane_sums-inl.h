// The first look at a channel: its sums of dy and of dy * (x - mean), in float64.
//
// Of float32 data, every product is exact in float64 and added there. Of 16-bit data, which is
// worth 8 or 11 bits, the first two additions are float32, (t0 + t1) + (t2 + t3) over four vectors:
// half the instructions, and within the roundings that the gradients may have (docs/numerics.md).
#if defined(NORMGRAD_CPU_PLANE_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_PLANE_SUMS_INL_H_
#undef NORMGRAD_CPU_PLANE_SUMS_INL_H_
#else
#define NORMGRAD_CPU_PLANE_SUMS_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "cpu/channel.hpp"
#include "cpu/io-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// 16-bit x_hat is made before it is multiplied, since dy * (x - mean) could underflow in float32:
// their sums have the factor `scale`.
template <class T>
inline constexpr bool plane_sums_have_scale = !std::is_same_v<T, float>;

template <class T>
class PlaneSummer {
 public:
  HWY_INLINE explicit PlaneSummer(const Scalars& s)
      : mean_(hn::Set(Floats(), s.mean)),
        half_mean_(hn::Set(HalfFloats(), s.mean)),
        scale_(hn::Set(Floats(), s.scale)) {}

  // A contiguous run of the channel.
  HWY_INLINE void add(const T* x, const T* dy, int64_t count) {
    int64_t k = 0;
    if constexpr (plane_sums_have_scale<T>) {
      for (; k + 2 * pair_lanes() <= count; k += 2 * pair_lanes()) {
        add(terms(x + k, dy + k) + terms(x + k + pair_lanes(), dy + k + pair_lanes()));
      }
      if (k < count) add(last_terms(x + k, dy + k, count - k));
    } else {
      for (; k + lanes() <= count; k += lanes()) add_exactly(x + k, dy + k);
      if (k < count) add_last_exactly(x + k, dy + k, count - k);
    }
  }

  HWY_INLINE ChannelSums total() const {
    ChannelSums sums;
    store_totals(dy_, dy_x_, &sums.dy, &sums.dy_centred);
    return sums;
  }

 private:
  using HalfFloats = hn::Rebind<float, Doubles>;
  static HWY_INLINE int64_t half_lanes() { return static_cast<int64_t>(hn::Lanes(Doubles())); }

  // Half a vector at a time, widened on its way from memory.
  HWY_INLINE void add_exactly(const float* x, const float* dy) {
    if (half_lanes() == lanes()) return add_last_exactly(x, dy, lanes());
    const auto dy_half = [&](int64_t k) HWY_ATTR {
      return hn::PromoteTo(Doubles(), hn::LoadU(HalfFloats(), dy + k));
    };
    const auto centred_half = [&](int64_t k) HWY_ATTR {
      return hn::PromoteTo(Doubles(), hn::Sub(hn::LoadU(HalfFloats(), x + k), half_mean_));
    };
    const int64_t high = half_lanes();
    const DoublePair dy_pair = {dy_half(0), dy_half(high)};
    dy_.add(dy_pair);
    dy_x_.add_product(dy_pair, {centred_half(0), centred_half(high)});
  }
  HWY_INLINE void add_last_exactly(const float* x, const float* dy, int64_t count) {
    const DoublePair dy_pair = promote(load_tail(dy, count));
    dy_.add(dy_pair);
    dy_x_.add_product(dy_pair, promote(hn::Sub(load_tail(x, count), mean_)));
  }

  // The float32 sums of a pair of vectors.
  struct Terms {
    FloatVec dy, dy_x_hat;
    HWY_INLINE Terms operator+(const Terms& other) const {
      return {hn::Add(dy, other.dy), hn::Add(dy_x_hat, other.dy_x_hat)};
    }
  };
  HWY_INLINE FloatVec x_hat(FloatVec x) const { return hn::Mul(hn::Sub(x, mean_), scale_); }
  HWY_INLINE Terms terms(FloatPair x, FloatPair dy) const {
    return {hn::Add(dy.a, dy.b), hn::MulAdd(dy.b, x_hat(x.b), hn::Mul(dy.a, x_hat(x.a)))};
  }
  HWY_INLINE Terms terms(const T* x, const T* dy) const {
    return terms(load_pair(x), load_pair(dy));
  }
  // One pair or none, then what is left of the run.
  HWY_INLINE Terms last_terms(const T* x, const T* dy, int64_t count) const {
    const FloatVec zero = hn::Zero(Floats());
    Terms sum = {zero, zero};
    if (count >= pair_lanes()) {
      sum = terms(x, dy);
      x += pair_lanes();
      dy += pair_lanes();
      count -= pair_lanes();
    }
    if (count > lanes()) {
      const int64_t left = count - lanes();
      return sum + terms({load(x), load_tail(x + lanes(), left)},
                         {load(dy), load_tail(dy + lanes(), left)});
    }
    if (count > 0) {
      const FloatVec dy_vec = load_tail(dy, count);
      sum = sum + Terms{dy_vec, hn::Mul(dy_vec, x_hat(load_tail(x, count)))};
    }
    return sum;
  }
  HWY_INLINE void add(const Terms& sum) {
    dy_.add(promote(sum.dy));
    dy_x_.add(promote(sum.dy_x_hat));
  }

  const FloatVec mean_;
  const hn::Vec<HalfFloats> half_mean_;
  const FloatVec scale_;
  DoubleSum dy_, dy_x_;
};

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_PLANE_SUMS_INL_H_
