// More than 2^32 elements on the GPU: 8.6 GB of dx, from one broadcast row of x and dy.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "normgrad/cuda.hpp"
#include "normgrad/normgrad.hpp"
#include "ops/float16.hpp"

namespace normgrad {
namespace {

void* on_device(const void* data, size_t bytes) {
  void* memory = nullptr;
  EXPECT_TRUE(cuda::allocate(bytes, memory).ok());
  if (data != nullptr) EXPECT_TRUE(cuda::copy(memory, data, bytes).ok());
  return memory;
}

TEST(CudaBigIndex, RowsBeyondTwoToTheThirtyTwoElements) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no device";
  constexpr int64_t kRows = (int64_t{1} << 26) + 7, kCols = 64;
  constexpr size_t kRowBytes = kCols * sizeof(uint16_t);
  const Tensor broadcast{DType::kBF16, {kRows, kCols}, {0, 1}}, data{DType::kBF16, {kRows, kCols}};
  const Tensor vector{DType::kF32, {kCols}}, scalar{DType::kF32, {kRows}, {0}};
  const Plan plan(LayerNormBackward{.x = broadcast,
                                    .dy = broadcast,
                                    .gamma = vector,
                                    .mean = scalar,
                                    .spread = scalar,
                                    .dx = data,
                                    .dgamma = vector,
                                    .dbeta = vector},
                  Device::kCuda);
  std::vector<uint16_t> x(kCols), dy(kCols);
  std::vector<float> gamma(kCols), dgamma(kCols), dbeta(kCols);
  for (int64_t c = 0; c < kCols; ++c) {
    x[c] = bf16_from_f32(static_cast<float>(c) - 30);
    dy[c] = bf16_from_f32(static_cast<float>(c % 7) - 2);
    gamma[c] = 1 + static_cast<float>(c) / 64;
  }
  const float mean = 1.5f, rstd = 0.25f;
  constexpr size_t kVector = kCols * sizeof(float);
  Buffers buffers;
  buffers.x = on_device(x.data(), kRowBytes);
  buffers.dy = on_device(dy.data(), kRowBytes);
  buffers.gamma = on_device(gamma.data(), kVector);
  buffers.mean = on_device(&mean, sizeof mean);
  buffers.spread = on_device(&rstd, sizeof rstd);
  buffers.dx = on_device(nullptr, kRows * kRowBytes);
  buffers.dgamma = on_device(nullptr, kVector);
  buffers.dbeta = on_device(nullptr, kVector);
  ASSERT_TRUE(cuda::fill(buffers.dx, 0xFF, kRows * kRowBytes).ok());
  plan.run(buffers, on_device(nullptr, plan.workspace_size()), plan.workspace_size());
  // Every row is the same row: some everywhere, and all of the last.
  std::vector<char> first(kRowBytes), rows(4096 * kRowBytes);
  const char* dx = static_cast<const char*>(buffers.dx);
  ASSERT_TRUE(cuda::copy(first.data(), dx, kRowBytes).ok());
  for (int64_t at = 0; at < kRows; at += kRows / 61) {
    const int64_t begin = std::min(at, kRows - 4096);
    ASSERT_TRUE(cuda::copy(rows.data(), dx + begin * kRowBytes, rows.size()).ok());
    for (size_t i = 0; i < 4096; ++i) {
      ASSERT_EQ(std::memcmp(first.data(), rows.data() + i * kRowBytes, kRowBytes), 0) << begin + i;
    }
  }
  // Small integers: the sums are exact, and rounded once.
  ASSERT_TRUE(cuda::copy(dgamma.data(), buffers.dgamma, kVector).ok());
  ASSERT_TRUE(cuda::copy(dbeta.data(), buffers.dbeta, kVector).ok());
  for (int64_t c = 0; c < kCols; ++c) {
    const double dy_value = f32_from_bf16(dy[c]);
    const double x_hat = (f32_from_bf16(x[c]) - mean) * rstd;
    EXPECT_EQ(dbeta[c], static_cast<float>(dy_value * kRows)) << c;
    EXPECT_EQ(dgamma[c], static_cast<float>(dy_value * x_hat * kRows)) << c;
  }
}

}  // namespace
}  // namespace normgrad
