// More than 2^32 elements: 8.6 GB of dx, from one broadcast row of x and dy.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "normgrad/normgrad.hpp"
#include "ops/float16.hpp"

namespace normgrad {
namespace {

TEST(BigIndex, RowsBeyondTwoToTheThirtyTwoElements) {
  constexpr int64_t kRows = (int64_t{1} << 26) + 7, kCols = 64;
  const Tensor broadcast{DType::kBF16, {kRows, kCols}, {0, 1}}, data{DType::kBF16, {kRows, kCols}};
  const Tensor vector{DType::kF32, {kCols}}, scalar{DType::kF32, {kRows}, {0}};
  const Plan plan(LayerNormBackward{.x = broadcast,
                                    .dy = broadcast,
                                    .gamma = vector,
                                    .mean = scalar,
                                    .spread = scalar,
                                    .dx = data,
                                    .dgamma = vector,
                                    .dbeta = vector});
  std::vector<uint16_t> x(kCols), dy(kCols);
  std::vector<float> gamma(kCols), dgamma(kCols), dbeta(kCols);
  for (int64_t c = 0; c < kCols; ++c) {
    x[c] = bf16_from_f32(static_cast<float>(c) - 30);
    dy[c] = bf16_from_f32(static_cast<float>(c % 7) - 2);
    gamma[c] = 1 + static_cast<float>(c) / 64;
  }
  const float mean = 1.5f, rstd = 0.25f;
  const std::unique_ptr<uint16_t[]> dx(new uint16_t[kRows * kCols]);
  std::vector<char> workspace(plan.workspace_size());
  plan.run({x.data(), dy.data(), gamma.data(), &mean, &rstd, dx.get(), dgamma.data(), dbeta.data()},
           workspace.data(), workspace.size());
  // Every row is the same row.
  for (int64_t row = 1; row < kRows; ++row) {
    ASSERT_EQ(std::memcmp(dx.get(), dx.get() + row * kCols, kCols * sizeof(uint16_t)), 0) << row;
  }
  // Small integers: the sums are exact, and rounded once.
  for (int64_t c = 0; c < kCols; ++c) {
    const double dy_value = f32_from_bf16(dy[c]);
    const double x_hat = (f32_from_bf16(x[c]) - mean) * rstd;
    EXPECT_EQ(dbeta[c], static_cast<float>(dy_value * kRows)) << c;
    EXPECT_EQ(dgamma[c], static_cast<float>(dy_value * x_hat * kRows)) << c;
  }
}

}  // namespace
}  // namespace normgrad
