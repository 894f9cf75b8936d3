#include "comm/reduce.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "ops/float16.hpp"

namespace normgrad::comm {
namespace {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

double widen(float value) { return value; }
double widen(double value) { return value; }
double widen(F16 value) { return f32_from_f16(value.bits); }
double widen(BF16 value) { return f32_from_bf16(value.bits); }
int64_t widen(int32_t value) { return value; }
int64_t widen(int64_t value) { return value; }
uint64_t widen(uint32_t value) { return value; }
uint64_t widen(uint64_t value) { return value; }

// To odd, if it has to be rounded: what is rounded to 16 bits next is then as if it came straight
// from float64. 1 + 2^-11 + 2^-24 would otherwise lose its last bit, become a tie, and end as 1.
float to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (nearest == value || !std::isfinite(nearest)) return nearest;
  const bool away = std::fabs(nearest) > std::fabs(value);
  const uint32_t below = std::bit_cast<uint32_t>(nearest) - (away ? 1 : 0);
  return std::bit_cast<float>(below | 1);
}

template <class T>
T narrow(auto value) {
  if constexpr (std::is_same_v<T, F16>) {
    return {f16_from_f32(to_odd(value))};
  } else if constexpr (std::is_same_v<T, BF16>) {
    return {bf16_from_f32(to_odd(value))};
  } else {
    return static_cast<T>(value);
  }
}

bool is_nan(double value) { return std::isnan(value); }
bool is_nan(int64_t) { return false; }
bool is_nan(uint64_t) { return false; }

// Signed sums and products go through unsigned numbers, in which overflow is defined.
template <Reduction kReduction, class Wide>
Wide combine(Wide a, Wide b) {
  if constexpr (kReduction == Reduction::kMax) return is_nan(a) || a >= b ? a : b;
  if constexpr (kReduction == Reduction::kMin) return is_nan(a) || a <= b ? a : b;
  using Number = std::conditional_t<std::is_integral_v<Wide>, uint64_t, Wide>;
  const auto u = static_cast<Number>(a), v = static_cast<Number>(b);
  return static_cast<Wide>(kReduction == Reduction::kProduct ? u * v : u + v);
}

// In blocks that stay in the first-level cache, so that memory is read in its order.
template <class T, Reduction kReduction>
void reduce_as(const std::byte* from, size_t stride, int parts, int64_t count, std::byte* to) {
  constexpr int64_t kBlock = 512;
  decltype(widen(T{})) total[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t size = std::min(kBlock, count - first);
    const auto block = [&](int part) {
      return reinterpret_cast<const T*>(from + static_cast<size_t>(part) * stride) + first;
    };
    const T* own = block(0);
    for (int64_t i = 0; i < size; ++i) total[i] = widen(own[i]);
    for (int part = 1; part < parts; ++part) {
      const T* other = block(part);
      for (int64_t i = 0; i < size; ++i) {
        total[i] = combine<kReduction>(total[i], widen(other[i]));
      }
    }
    if (kReduction == Reduction::kAverage) {
      for (int64_t i = 0; i < size; ++i) total[i] /= static_cast<decltype(widen(T{}))>(parts);
    }
    T* results = reinterpret_cast<T*>(to) + first;
    for (int64_t i = 0; i < size; ++i) results[i] = narrow<T>(total[i]);
  }
}

template <class T>
void reduce_as(const std::byte* from, size_t stride, int parts, int64_t count, Reduction reduction,
               std::byte* to) {
  switch (reduction) {
    case Reduction::kSum:
      return reduce_as<T, Reduction::kSum>(from, stride, parts, count, to);
    case Reduction::kProduct:
      return reduce_as<T, Reduction::kProduct>(from, stride, parts, count, to);
    case Reduction::kMax:
      return reduce_as<T, Reduction::kMax>(from, stride, parts, count, to);
    case Reduction::kMin:
      return reduce_as<T, Reduction::kMin>(from, stride, parts, count, to);
    case Reduction::kAverage:
      return reduce_as<T, Reduction::kAverage>(from, stride, parts, count, to);
  }
}

}  // namespace

void reduce_parts(const std::byte* from, size_t stride, int parts, int64_t count, Element element,
                  Reduction reduction, std::byte* to) {
  const auto run = [&]<class T>(T) { reduce_as<T>(from, stride, parts, count, reduction, to); };
  switch (element) {
    case Element::kF32:
      return run(float{});
    case Element::kF16:
      return run(F16{});
    case Element::kBF16:
      return run(BF16{});
    case Element::kF64:
      return run(double{});
    case Element::kI32:
      return run(int32_t{});
    case Element::kI64:
      return run(int64_t{});
    case Element::kU32:
      return run(uint32_t{});
    case Element::kU64:
      return run(uint64_t{});
  }
}

}  // namespace normgrad::comm
