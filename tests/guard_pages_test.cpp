// No kernel reads or writes beyond its operands, not even what it throws away: every buffer and the
// workspace lie right behind, or right before, a page that nobody may touch. The kernels are too
// large for the address sanitizer's compiler pass; this sees the same, in all of them, at full
// speed.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "normgrad/normgrad.hpp"

namespace normgrad {
namespace {

enum class Side { kBegin, kEnd };

// Memory between two forbidden pages, flush with one of them.
class Guarded {
 public:
  Guarded(size_t bytes, Side side) : bytes_(bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inside = (bytes + page - 1) / page * page;
    mapped_ = inside + 2 * page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(mprotect(base_ + page, inside, PROT_READ | PROT_WRITE), 0);
    data_ = base_ + page + (side == Side::kEnd ? inside - bytes : 0);
  }
  ~Guarded() { munmap(base_, mapped_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  size_t bytes_, mapped_;
  std::byte *base_, *data_;
};

// The buffers of one call.
class Operands {
 public:
  Operands(DType dtype, Side side) : dtype_(dtype), side_(side) {}

  // `count` elements of values between 1 and 2.
  std::byte* make(int64_t count) {
    const size_t size = size_of(dtype_);
    Guarded& memory = all_.emplace_back(static_cast<size_t>(count) * size, side_);
    for (int64_t i = 0; i < count; ++i) {
      seed_ = seed_ * 1664525 + 1013904223;
      const uint32_t f32 = 0x3F800000 | seed_ >> 9;
      const auto half =
          static_cast<uint16_t>(dtype_ == DType::kBF16 ? f32 >> 16 : 0x3C00 | (seed_ >> 22));
      std::byte* to = memory.data() + static_cast<size_t>(i) * size;
      std::memcpy(to, size == 4 ? static_cast<const void*>(&f32) : &half, size);
    }
    return memory.data();
  }

  template <class Call>
  void run(const Call& call, const Buffers& buffers) {
    const Plan plan(call);
    // Its end is at a multiple of 64 bytes, as the start of a workspace has to be.
    const Guarded workspace((plan.workspace_size() + 63) / 64 * 64, side_);
    plan.run(buffers, workspace.data(), workspace.size());
  }

  // All bytes of all operands.
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> bytes;
    for (const Guarded& one : all_) bytes.insert(bytes.end(), one.data(), one.data() + one.size());
    return bytes;
  }

 private:
  DType dtype_;
  Side side_;
  uint32_t seed_ = 1;
  std::deque<Guarded> all_;
};

std::vector<std::byte> layer_norm(DType dtype, Side side, int64_t rows, int64_t cols) {
  Operands operands(dtype, side);
  Buffers buffers;
  buffers.x = operands.make(rows * cols);
  buffers.dy = operands.make(rows * cols);
  buffers.gamma = operands.make(cols);
  buffers.mean = operands.make(rows);
  buffers.spread = operands.make(rows);
  buffers.dx = operands.make(rows * cols);
  buffers.dgamma = operands.make(cols);
  buffers.dbeta = operands.make(cols);
  const Tensor data{dtype, {rows, cols}}, params{dtype, {cols}}, scalars{dtype, {rows}};
  operands.run(LayerNormBackward{.x = data,
                                 .dy = data,
                                 .gamma = params,
                                 .statistics = Statistics::kMeanRstd,
                                 .mean = scalars,
                                 .spread = scalars,
                                 .dx = data,
                                 .dgamma = params,
                                 .dbeta = params},
               buffers);
  return operands.bytes();
}

std::vector<std::byte> rms_norm(DType dtype, Side side, int64_t rows, int64_t cols) {
  Operands operands(dtype, side);
  Buffers buffers;
  buffers.x = operands.make(rows * cols);
  buffers.dy = operands.make(rows * cols);
  buffers.gamma = operands.make(cols);
  buffers.dx = operands.make(rows * cols);
  buffers.dgamma = operands.make(cols);
  const Tensor data{dtype, {rows, cols}}, params{dtype, {cols}};
  operands.run(
      RmsNormBackward{.x = data, .dy = data, .gamma = params, .dx = data, .dgamma = params},
      buffers);
  return operands.bytes();
}

std::vector<std::byte> batch_norm(DType dtype, Side side, const std::vector<int64_t>& shape,
                                  int channel_axis) {
  const int64_t count = shape[0] * shape[1] * shape[2];
  const int64_t channels = shape[static_cast<size_t>(channel_axis)];
  Operands operands(dtype, side);
  Buffers buffers;
  buffers.x = operands.make(count);
  buffers.dy = operands.make(count);
  buffers.gamma = operands.make(channels);
  buffers.mean = operands.make(channels);
  buffers.spread = operands.make(channels);
  buffers.dx = operands.make(count);
  buffers.dgamma = operands.make(channels);
  buffers.dbeta = operands.make(channels);
  const Tensor data{dtype, shape}, params{dtype, {channels}};
  operands.run(BatchNormBackward{.x = data,
                                 .dy = data,
                                 .gamma = params,
                                 .statistics = Statistics::kMeanRstd,
                                 .mean = params,
                                 .spread = params,
                                 .channel_axis = channel_axis,
                                 .dx = data,
                                 .dgamma = params,
                                 .dbeta = params},
               buffers);
  return operands.bytes();
}

std::vector<std::byte> layer(DType dtype, Side side, int64_t rows, int64_t cols) {
  Operands operands(dtype, side);
  Buffers buffers;
  buffers.x = operands.make(rows * cols);
  buffers.residual = operands.make(rows * cols);
  buffers.gamma = operands.make(cols);
  buffers.beta = operands.make(cols);
  buffers.y = operands.make(rows * cols);
  buffers.h = operands.make(rows * cols);
  buffers.x_hat = operands.make(rows * cols);
  buffers.saved_mean = operands.make(rows);
  buffers.saved_spread = operands.make(rows);
  const Tensor data{dtype, {rows, cols}}, params{dtype, {cols}}, scalars{dtype, {rows}};
  operands.run(LayerNorm{.x = data,
                         .residual = data,
                         .gamma = params,
                         .beta = params,
                         .y = data,
                         .h = data,
                         .x_hat = data,
                         .mean = scalars,
                         .spread = scalars},
               buffers);
  operands.run(RmsNorm{.x = data, .gamma = params, .y = data, .spread = scalars}, buffers);
  // And a gradient with the residual's.
  buffers.dy = buffers.y;
  buffers.dh = buffers.h;
  buffers.mean = buffers.saved_mean;
  buffers.spread = buffers.saved_spread;
  buffers.dx = operands.make(rows * cols);
  operands.run(LayerNormBackward{.x = data,
                                 .dy = data,
                                 .gamma = params,
                                 .mean = scalars,
                                 .spread = scalars,
                                 .dh = data,
                                 .dx = data},
               buffers);
  return operands.bytes();
}

std::vector<std::byte> channels_layer(DType dtype, Side side, const std::vector<int64_t>& shape,
                                      int channel_axis) {
  const int64_t count = shape[0] * shape[1] * shape[2];
  const int64_t channels = shape[static_cast<size_t>(channel_axis)];
  Operands operands(dtype, side);
  Buffers buffers;
  buffers.x = operands.make(count);
  buffers.gamma = operands.make(channels);
  buffers.beta = operands.make(channels);
  buffers.y = operands.make(count);
  buffers.saved_mean = operands.make(channels);
  buffers.saved_spread = operands.make(channels);
  buffers.running_mean = operands.make(channels);
  buffers.running_variance = operands.make(channels);
  const Tensor data{dtype, shape}, params{dtype, {channels}};
  operands.run(BatchNorm{.x = data,
                         .gamma = params,
                         .beta = params,
                         .channel_axis = channel_axis,
                         .running_mean = params,
                         .running_variance = params,
                         .y = data,
                         .mean = params,
                         .spread = params},
               buffers);
  // And in two steps, of one part.
  const Tensor one{DType::kI64, {1}};
  buffers.squares = operands.make(channels);
  buffers.count = operands.make(8 / static_cast<int64_t>(size_of(dtype)));
  void* saved_mean = std::exchange(buffers.saved_mean, operands.make(channels));
  operands.run(
      BatchNormReduce{
          .x = data, .channel_axis = channel_axis, .mean = params, .squares = params, .count = one},
      buffers);
  buffers.mean = std::exchange(buffers.saved_mean, saved_mean);
  operands.run(BatchNormElementwise{.x = data,
                                    .gamma = params,
                                    .beta = params,
                                    .channel_axis = channel_axis,
                                    .mean = params,
                                    .squares = params,
                                    .count = one,
                                    .y = data,
                                    .saved_mean = params,
                                    .saved_spread = params},
               buffers);
  return operands.bytes();
}

class GuardPages : public testing::TestWithParam<DType> {
 protected:
  // call(side) on either side with every implementation: the same bits.
  template <class Call>
  void on_both_sides(const Call& call) {
    for (const Implementation& implementation : implementations()) {
      if (implementation.name.rfind("cpu:", 0) != 0) continue;
      setenv("NORMGRAD_IMPL", implementation.name.c_str(), 1);
      EXPECT_TRUE(call(Side::kBegin) == call(Side::kEnd)) << implementation.name;
    }
    unsetenv("NORMGRAD_IMPL");
  }
};

constexpr int64_t kCounts[] = {1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 49, 63, 64, 65, 127, 129, 1000};

TEST_P(GuardPages, Rows) {
  for (const int64_t rows : {1, 3, 5, 37}) {
    for (const int64_t cols : kCounts) {
      SCOPED_TRACE(testing::Message() << rows << " x " << cols);
      on_both_sides([&](Side side) { return layer_norm(GetParam(), side, rows, cols); });
      on_both_sides([&](Side side) { return rms_norm(GetParam(), side, rows, cols); });
      on_both_sides([&](Side side) { return layer(GetParam(), side, rows, cols); });
    }
  }
}

TEST_P(GuardPages, Channels) {
  for (const int64_t channels : {1, 3, 5, 17, 70}) {
    for (const int64_t length : kCounts) {
      SCOPED_TRACE(testing::Message() << channels << " channels of " << length);
      on_both_sides([&](Side side) {
        return batch_norm(GetParam(), side, {3, channels, length}, 1);
      });
      on_both_sides([&](Side side) {
        return batch_norm(GetParam(), side, {3, length, channels}, 2);
      });
      on_both_sides([&](Side side) {
        return channels_layer(GetParam(), side, {3, channels, length}, 1);
      });
      on_both_sides([&](Side side) {
        return channels_layer(GetParam(), side, {3, length, channels}, 2);
      });
    }
  }
}

// Beyond the caches, where lines are asked for ahead and dx goes through a stage.
TEST_P(GuardPages, Streaming) {
  constexpr int64_t kBytes = 48 << 20;
  const auto elements = kBytes / 3 / static_cast<int64_t>(size_of(GetParam()));
  for (const Side side : {Side::kBegin, Side::kEnd}) {
    layer_norm(GetParam(), side, elements / 1001, 1001);
    layer_norm(GetParam(), side, elements / 17, 17);
    rms_norm(GetParam(), side, elements / 300001, 300001);
    layer(GetParam(), side, elements / 1001, 1001);
    layer(GetParam(), side, elements / 300001, 300001);
    channels_layer(GetParam(), side, {5, elements / 5 / 3137, 3137}, 1);
    channels_layer(GetParam(), side, {5, elements / 5 / 67, 67}, 2);
    batch_norm(GetParam(), side, {5, elements / 5 / 3137, 3137}, 1);
    batch_norm(GetParam(), side, {5, elements / 5 / 67, 67}, 2);
    batch_norm(GetParam(), side, {5, elements / 5 / 3, 3}, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GuardPages,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16));

}  // namespace
}  // namespace normgrad
