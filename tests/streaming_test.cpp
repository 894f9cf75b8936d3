// Problems beyond the caches take other paths: dx goes past the caches, straight, shifted in
// registers or through a stage, and long rows are shared by threads. None of that may change a bit:
// not against parts of the problem that fit in cache, nor between pointers that are aligned, that
// are not, and in place; nor a byte around dx.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "normgrad/normgrad.hpp"

namespace normgrad {
namespace {

// x, dy and dx together; the third-level cache of a desktop has 32 MiB.
constexpr int64_t kBytes = 48 << 20;

// Values of a type that do not repeat soon: random bits, but for an exponent near 1.
class Data {
 public:
  Data(DType dtype, int64_t count, int64_t offset, uint32_t seed)
      : size_(static_cast<int64_t>(size_of(dtype))),
        first_(offset * size_),
        bytes_(static_cast<size_t>((count + offset) * size_) + 2 * kLine) {
    for (int64_t i = 0; i < count; ++i) {
      seed = seed * 1664525 + 1013904223;
      const uint32_t sign = seed & 0x80000000, mantissa = (seed >> 8) & 0x7FFFFF;
      const uint32_t f32 = sign | 0x3F800000 | mantissa;
      const uint16_t half = static_cast<uint16_t>(
          dtype == DType::kBF16 ? f32 >> 16 : sign >> 16 | 0x3C00 | mantissa >> 13);
      if (size_ == 4) {
        std::memcpy(at(i), &f32, sizeof f32);
      } else {
        std::memcpy(at(i), &half, sizeof half);
      }
    }
  }

  // Whether the bytes around `count` elements are as they were: 0.
  bool alone(int64_t count) {
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    return std::all_of(bytes_.data(), at(0), is_zero) &&
           std::all_of(at(count), bytes_.data() + bytes_.size(), is_zero);
  }

  std::byte* at(int64_t element) {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (kLine - address % kLine) % kLine + first_ + element * size_;
  }

 private:
  static constexpr size_t kLine = 64;
  int64_t size_, first_;
  std::vector<std::byte> bytes_;
};

std::vector<std::byte> copy(Data& data, int64_t first, int64_t count, DType dtype) {
  const std::byte* begin = data.at(first);
  return {begin, begin + count * static_cast<int64_t>(size_of(dtype))};
}

template <class Call>
void run(const Call& call, const Buffers& buffers) {
  const Plan plan(call);
  std::vector<std::byte> workspace(plan.workspace_size());
  plan.run(buffers, workspace.data(), workspace.size());
}

enum class Dx { kAligned, kShifted, kInPlace };

struct Outputs {
  std::vector<std::byte> dx, dgamma, dbeta;
  bool operator==(const Outputs&) const = default;
};

// LayerNorm of rows [first, first + count) of a problem of so many columns.
Outputs layer_norm(DType dtype, int64_t cols, int64_t first, int64_t count, Dx where) {
  Data x(dtype, (first + count) * cols, 0, 1), dy(dtype, (first + count) * cols, 0, 2);
  Data dx(dtype, count * cols, where == Dx::kShifted ? 1 : 0, 3);
  Data gamma(dtype, cols, 0, 4), spread(dtype, first + count, 0, 5);
  Data dgamma(dtype, cols, 0, 6), dbeta(dtype, cols, 0, 7);
  const Tensor data{dtype, {count, cols}}, params{dtype, {cols}}, rows{dtype, {count}};
  Data& target = where == Dx::kInPlace ? dy : dx;
  const int64_t target_first = where == Dx::kInPlace ? first * cols : 0;
  Buffers buffers;
  buffers.x = x.at(first * cols);
  buffers.dy = dy.at(first * cols);
  buffers.gamma = gamma.at(0);
  buffers.spread = spread.at(first);
  buffers.dx = target.at(target_first);
  buffers.dgamma = dgamma.at(0);
  buffers.dbeta = dbeta.at(0);
  run(LayerNormBackward{.x = data,
                        .dy = data,
                        .gamma = params,
                        .statistics = Statistics::kXHatStd,
                        .spread = rows,
                        .dx = data,
                        .dgamma = params,
                        .dbeta = params},
      buffers);
  EXPECT_TRUE(dx.alone(count * cols)) << cols << " columns";
  return {copy(target, target_first, count * cols, dtype), copy(dgamma, 0, cols, dtype),
          copy(dbeta, 0, cols, dtype)};
}

// BatchNorm of samples x channels x length, with gaps of so many elements after the samples.
Outputs batch_norm(DType dtype, const std::vector<int64_t>& shape, bool channels_last, Dx where,
                   int64_t gap) {
  const int64_t channels = shape[1], length = shape[2];
  const int64_t elements = channels * length, stride = elements + gap;
  const int64_t count = shape[0] * stride;
  Data x(dtype, count, 0, 1), dy(dtype, count, 0, 2);
  Data dx(dtype, count, where == Dx::kShifted ? 1 : 0, 3);
  Data gamma(dtype, channels, 0, 4), mean(dtype, channels, 0, 5), rstd(dtype, channels, 0, 6);
  Data dgamma(dtype, channels, 0, 7), dbeta(dtype, channels, 0, 8);
  const Tensor planes{dtype, shape, {stride, length, 1}}, rows{dtype, shape, {stride, 1, channels}};
  const Tensor &data = channels_last ? rows : planes, params{dtype, {channels}};
  Data& target = where == Dx::kInPlace ? dy : dx;
  Buffers buffers;
  buffers.x = x.at(0);
  buffers.dy = dy.at(0);
  buffers.gamma = gamma.at(0);
  buffers.mean = mean.at(0);
  buffers.spread = rstd.at(0);
  buffers.dx = target.at(0);
  buffers.dgamma = dgamma.at(0);
  buffers.dbeta = dbeta.at(0);
  run(BatchNormBackward{.x = data,
                        .dy = data,
                        .gamma = params,
                        .statistics = Statistics::kMeanRstd,
                        .mean = params,
                        .spread = params,
                        .dx = data,
                        .dgamma = params,
                        .dbeta = params},
      buffers);
  EXPECT_TRUE(dx.alone(count)) << channels << " channels, length " << length;
  Outputs outputs = {{}, copy(dgamma, 0, channels, dtype), copy(dbeta, 0, channels, dtype)};
  for (int64_t sample = 0; sample < shape[0]; ++sample) {
    const std::vector<std::byte> some = copy(target, sample * stride, elements, dtype);
    outputs.dx.insert(outputs.dx.end(), some.begin(), some.end());
  }
  return outputs;
}

class Streaming : public testing::TestWithParam<DType> {};

void expect_same_rows(DType dtype, int64_t cols) {
  const int64_t size = static_cast<int64_t>(size_of(dtype));
  const int64_t rows = kBytes / (3 * size * cols) + 3;
  const Outputs whole = layer_norm(dtype, cols, 0, rows, Dx::kAligned);
  EXPECT_TRUE(layer_norm(dtype, cols, 0, rows, Dx::kShifted) == whole) << cols << " columns";
  EXPECT_TRUE(layer_norm(dtype, cols, 0, rows, Dx::kInPlace) == whole) << cols << " columns";
  const int64_t few = 7, first = rows - few;
  const Outputs part = layer_norm(dtype, cols, first, few, Dx::kAligned);
  EXPECT_EQ(std::memcmp(part.dx.data(), whole.dx.data() + first * cols * size, part.dx.size()), 0)
      << cols << " columns";
}

TEST_P(Streaming, RowsKeepTheirBits) {
  // The last two: shared columns, of whose last stretch less than a pair of vectors is left.
  for (int64_t cols : {16, 64, 97, 1001, 1024, 70000, 196613, 196629}) {
    expect_same_rows(GetParam(), cols);
  }
}

// Only AVX-512 shifts rows in registers.
TEST_P(Streaming, RowsInAStageKeepTheirBits) {
  const std::vector<Implementation> all = implementations();
  const auto is_avx2 = [](const Implementation& i) { return i.name == std::string("cpu:avx2"); };
  if (std::none_of(all.begin(), all.end(), is_avx2)) GTEST_SKIP() << "no AVX2";
  setenv("NORMGRAD_IMPL", "cpu:avx2", 1);
  for (int64_t cols : {97, 1001, 5000}) expect_same_rows(GetParam(), cols);
  unsetenv("NORMGRAD_IMPL");
}

void expect_same_channels(DType dtype, int64_t channels, int64_t length, bool gaps) {
  const int64_t bytes = 3 * static_cast<int64_t>(size_of(dtype)) * channels * length;
  // Each sample starts at a cache line.
  const int64_t gap = gaps ? 32 - channels * length % 32 : 0;
  const std::vector<int64_t> shape = {kBytes / bytes + 1, channels, length};
  for (const bool last : {false, true}) {
    const Outputs whole = batch_norm(dtype, shape, last, Dx::kAligned, gap);
    for (const Dx where : {Dx::kShifted, Dx::kInPlace}) {
      EXPECT_TRUE(batch_norm(dtype, shape, last, where, gap) == whole)
          << channels << " channels, length " << length << ", gap " << gap << ", last " << last;
    }
  }
}

TEST_P(Streaming, ChannelsKeepTheirBits) {
  for (int64_t length : {1, 49, 1001, 60000}) {
    for (int64_t channels : {3, 40}) expect_same_channels(GetParam(), channels, length, false);
  }
  expect_same_channels(GetParam(), 1100, 49, false);  // rows of several stages
}

TEST_P(Streaming, ChannelsWithGapsKeepTheirBits) {
  for (int64_t channels : {3, 40}) expect_same_channels(GetParam(), channels, 49, true);
}

INSTANTIATE_TEST_SUITE_P(Types, Streaming, testing::Values(DType::kF32, DType::kF16, DType::kBF16));

}  // namespace
}  // namespace normgrad
