#include "comm/reduce.hpp"

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

// Signed sums and products go through unsigned numbers, in which overflow is defined.
template <class Wide>
Wide combine(Reduction reduction, Wide a, Wide b) {
  if (reduction == Reduction::kMax) return a != a || a >= b ? a : b;
  if (reduction == Reduction::kMin) return a != a || a <= b ? a : b;
  if constexpr (std::is_integral_v<Wide>) {
    const auto u = static_cast<uint64_t>(a), v = static_cast<uint64_t>(b);
    return static_cast<Wide>(reduction == Reduction::kProduct ? u * v : u + v);
  } else {
    return reduction == Reduction::kProduct ? a * b : a + b;
  }
}

template <class T>
void reduce_as(const std::byte* from, size_t stride, int parts, int64_t count, Reduction reduction,
               std::byte* to) {
  for (int64_t i = 0; i < count; ++i) {
    const auto value = [&](int part) {
      const std::byte* block = from + static_cast<size_t>(part) * stride;
      return widen(reinterpret_cast<const T*>(block)[i]);
    };
    auto total = value(0);
    for (int part = 1; part < parts; ++part) total = combine(reduction, total, value(part));
    if (reduction == Reduction::kAverage) total /= static_cast<decltype(total)>(parts);
    reinterpret_cast<T*>(to)[i] = narrow<T>(total);
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
