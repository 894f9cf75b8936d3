// 16-bit conversions: the scalar ones against the definition of the formats, and the vector stores
// of every instruction set against the scalar ones, at every midpoint between two neighbours.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>

#include "normgrad/normgrad.hpp"
#include "ops/float16.hpp"

namespace normgrad {
namespace {

// A 16-bit format by its definition: e exponent bits, then the mantissa.
double value_of(uint32_t magnitude, int mantissa_bits, int bias) {
  const int exponent = static_cast<int>(magnitude >> mantissa_bits);
  const uint32_t mantissa = magnitude & ((1u << mantissa_bits) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return std::ldexp((1u << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

// Every value of the format, and between every two neighbours the points that decide a rounding.
template <class FromBits, class ToBits>
void expect_nearest(int mantissa_bits, int bias, FromBits from_bits, ToBits to_bits) {
  const uint32_t infinity = (2u * static_cast<uint32_t>(bias) + 1) << mantissa_bits;
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const double below = value_of(bits, mantissa_bits, bias);
    const double above = value_of(bits + 1, mantissa_bits, bias);
    ASSERT_EQ(static_cast<double>(from_bits(static_cast<uint16_t>(bits))), below) << bits;
    const auto middle = static_cast<float>((below + above) / 2);
    for (const float value : {static_cast<float>(below), std::nextafter(middle, 0.0f), middle,
                              std::nextafter(middle, INFINITY)}) {
      const double down = value - below, up = above - value;
      const uint32_t expected = bits + (down > up || (down == up && bits % 2 == 1));
      ASSERT_EQ(to_bits(value), expected) << value;
      ASSERT_EQ(to_bits(-value), expected | 0x8000) << value;
    }
  }
  EXPECT_EQ(to_bits(INFINITY), infinity);
  for (const uint32_t nan : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu}) {
    EXPECT_TRUE(std::isnan(from_bits(to_bits(std::bit_cast<float>(nan))))) << nan;
  }
  EXPECT_TRUE(std::isinf(from_bits(static_cast<uint16_t>(infinity))));
  EXPECT_TRUE(std::isnan(from_bits(static_cast<uint16_t>(infinity + 1))));
}

TEST(Float16, F16IsTheNearestNeighbour) { expect_nearest(10, 15, f32_from_f16, f16_from_f32); }

TEST(Float16, Bf16IsTheNearestNeighbour) { expect_nearest(7, 127, f32_from_bf16, bf16_from_f32); }

// Frozen BatchNorm with dy = 1, mean = 0 and rstd = 1 stores gamma, which is float32, as a 16-bit
// dx: any float32 goes through the kernels' stores. Both kernels: (1, C, 1) walks along the
// channels, (C / 32, 32, 1) with the channels innermost in pairs along the length.
std::vector<uint16_t> stored(DType dtype, const std::vector<float>& values) {
  const auto channels = static_cast<int64_t>(values.size());
  const Tensor data{dtype, {1, channels, 1}}, vector{DType::kF32, {channels}};
  const BatchNormBackward call{.x = data,
                               .dy = data,
                               .gamma = vector,
                               .statistics = Statistics::kMeanRstd,
                               .mean = vector,
                               .spread = vector,
                               .frozen = true,
                               .dx = data};
  const uint16_t one = dtype == DType::kF16 ? f16_from_f32(1) : bf16_from_f32(1);
  const std::vector<uint16_t> dy(values.size(), one), x(values.size(), 0);
  const std::vector<float> mean(values.size(), 0), rstd(values.size(), 1);
  std::vector<uint16_t> dx(values.size(), 0xFFFF);
  const Plan plan(call);
  std::vector<char> workspace(plan.workspace_size());
  plan.run(
      {x.data(), dy.data(), values.data(), mean.data(), rstd.data(), dx.data(), nullptr, nullptr},
      workspace.data(), workspace.size());
  return dx;
}

TEST(Float16, KernelsStoreTheNearestAtEveryMidpoint) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<float> values;
    const uint32_t unit = dtype == DType::kF16 ? 1u << 13 : 1u << 16;
    for (uint64_t base = 0; base < 0x100000000; base += unit) {
      for (const uint32_t low : {0u, 1u, unit / 2 - 1, unit / 2, unit / 2 + 1, unit - 1}) {
        values.push_back(std::bit_cast<float>(static_cast<uint32_t>(base) | low));
      }
    }
    for (const Implementation& implementation : implementations()) {
      setenv("NORMGRAD_IMPL", implementation.name.c_str(), 1);
      const std::vector<uint16_t> dx = stored(dtype, values);
      int64_t wrong = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const bool f16 = dtype == DType::kF16;
        const uint16_t expected = f16 ? f16_from_f32(values[i]) : bf16_from_f32(values[i]);
        if (std::isnan(values[i])) {
          wrong += !std::isnan(f16 ? f32_from_f16(dx[i]) : f32_from_bf16(dx[i]));
        } else if (dx[i] != expected && ++wrong == 1) {
          ADD_FAILURE() << implementation.name << ": " << values[i] << " stored as " << dx[i]
                        << ", expected " << expected;
        }
      }
      EXPECT_EQ(wrong, 0) << implementation.name << " " << name_of(dtype);
    }
    unsetenv("NORMGRAD_IMPL");
  }
}

}  // namespace
}  // namespace normgrad
