// gamma and beta as the rows' kernels want them: float32, in the order of pairs.
#if defined(NORMGRAD_CPU_ROW_PARAMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_ROW_PARAMS_INL_H_
#undef NORMGRAD_CPU_ROW_PARAMS_INL_H_
#else
#define NORMGRAD_CPU_ROW_PARAMS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cpu/io-inl.h"
#include "cpu/parallel.hpp"
#include "hwy/highway.h"
#include "ops/problem.hpp"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// The bits of a NaN that came from float32 data may not survive the rounding to bfloat16; those of
// the library's own NaN are all ones, and do not either.
template <class P>
HWY_INLINE FloatVec quiet(FloatVec v) {
  if constexpr (!std::is_same_v<P, BF16>) return v;
  const FloatVec nan = hn::BitCast(Floats(), hn::Set(Integers(), 0x7FC00000u));
  return hn::IfThenElse(hn::IsNaN(v), nan, v);
}

// Columns [begin, end) of a parameter; begin is the first of a pair.
template <class T, class P>
void load_params(const P* params, int64_t stride, int64_t begin, int64_t end, int64_t cols,
                 float* to) {
  const int64_t pairs_end = HWY_MIN(end, cols / pair_lanes() * pair_lanes());
  int64_t c = begin;
  if (stride == 1) {
    for (; c < pairs_end; c += pair_lanes()) {
      store_pair(pair_of<T>(quiet<T>(load(params + c)), quiet<T>(load(params + c + lanes()))),
                 to + c);
    }
  }
  for (; c < end; ++c) {
    const auto value = static_cast<float>(widen(params[c * stride]));
    to[pair_position<T>(c, cols)] =
        std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
  }
}

// Whether the caller's are what the kernels want: then one row of 8192 needs no copy of them.
template <class T>
bool takes_params_as_they_are(const Vector& vector, int64_t cols) {
  return !std::is_same_v<T, BF16> && vector.present && vector.dtype == DType::kF32 &&
         vector.stride == 1 && cols % pair_lanes() == 0;
}

// The caller's, or a copy of them in `memory`, `absent` where there are none, and zeros behind.
template <class T>
const float* make_params(const Vector& vector, const void* data, float absent, int64_t cols,
                         int64_t padded, float* memory) {
  if (takes_params_as_they_are<T>(vector, cols)) return static_cast<const float*>(data);
  constexpr int64_t kTile = 8192;
  parallel_for((cols + kTile - 1) / kTile, cols * 8, [&](int64_t tile) {
    const int64_t begin = tile * kTile, end = HWY_MIN(begin + kTile, cols);
    if (!vector.present) return std::fill(memory + begin, memory + end, absent);
    with_type(vector.dtype, [&](auto type) {
      const auto* params = static_cast<const decltype(type)*>(data);
      load_params<T>(params, vector.stride, begin, end, cols, memory);
    });
  });
  std::fill(memory + cols, memory + padded, 0.0f);
  return memory;
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_ROW_PARAMS_INL_H_
