// 16-bit conversions: the scalar ones against the compiler's, and the vector stores of every
// instruction set against the scalar ones, at every midpoint between two neighbours.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>

#include "normgrad/normgrad.hpp"
#include "ops/float16.hpp"

namespace normgrad {
namespace {

TEST(Float16, ScalarConversionsAgreeWithTheCompiler) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = std::bit_cast<_Float16>(static_cast<uint16_t>(bits));
    const float expected = static_cast<float>(half),
                got = f32_from_f16(static_cast<uint16_t>(bits));
    EXPECT_TRUE(expected == got || (std::isnan(expected) && std::isnan(got))) << bits;
  }
  // Every 16-bit pattern's neighbourhood in float32, where rounding is decided.
  for (uint64_t base = 0; base < 0x100000000; base += 0x1000) {
    for (const int delta : {-1, 0, 1}) {
      const float value = std::bit_cast<float>(static_cast<uint32_t>(base + delta));
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(f32_from_f16(f16_from_f32(value)))) << base;
      } else {
        ASSERT_EQ(f16_from_f32(value), std::bit_cast<uint16_t>(static_cast<_Float16>(value)))
            << base + delta;
      }
    }
  }
}

// bf16 has no compiler type here: the nearest of the two neighbours, in float64.
TEST(Float16, Bf16IsTheNearestNeighbour) {
  for (uint32_t high = 0; high < 0x7F80; ++high) {
    const double below = f32_from_bf16(static_cast<uint16_t>(high));
    const double above =
        high + 1 < 0x7F80 ? f32_from_bf16(static_cast<uint16_t>(high + 1)) : 0x1p128;
    for (const uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const float value = std::bit_cast<float>(high << 16 | low);
      const bool up = value - below > above - value || (value - below == above - value && high % 2);
      EXPECT_EQ(bf16_from_f32(value), high + up) << high << " " << low;
      EXPECT_EQ(bf16_from_f32(-value), (high + up) | 0x8000) << high << " " << low;
    }
  }
  EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(std::bit_cast<float>(0x7F800001)))));
  EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(std::bit_cast<float>(0xFFFFFFFF)))));
}

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
