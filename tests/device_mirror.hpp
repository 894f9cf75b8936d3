// Memory of a CUDA device for tests: a copy of a call's operands, and a workspace with red zones.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "normgrad/cuda.hpp"
#include "reference/cases.hpp"
#include "reference/elements.hpp"
#include "reference/memory.hpp"

namespace device_test {

using normgrad::Buffers;
using normgrad::Status;
using normgrad::Tensor;

inline void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

// Given back when it goes. Empty where there was no memory, which is a failure of the test.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) { expect_ok(normgrad::cuda::allocate(bytes, data_)); }
  DeviceMemory(DeviceMemory&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { (void)normgrad::cuda::release(data_); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

// The operands of a call on the device, with all that lies between their elements. Operands that
// share memory share it there, and addresses keep their distance from multiples of 256.
class DeviceMirror {
 public:
  DeviceMirror(const normgrad::reference::Call& call, const Buffers& host) : device_(host) {
    std::visit([&](const auto& c) { find_ranges(c, host); }, call);
    merge();
    for (const Range& range : ranges_) {
      memory_.emplace_back(range.bytes() + kAlignment);
      std::byte* block = memory_.back().data();
      blocks_.push_back(block + reinterpret_cast<uintptr_t>(range.begin) % kAlignment);
    }
    for (const void* Buffers::*input :
         {&Buffers::x, &Buffers::dy, &Buffers::gamma, &Buffers::mean, &Buffers::spread}) {
      device_.*input = device_of(host.*input);
    }
    for (void* Buffers::*output : {&Buffers::dx, &Buffers::dgamma, &Buffers::dbeta}) {
      device_.*output = device_of(host.*output);
    }
    upload();
  }

  // Of the device; null for operands without elements.
  const Buffers& buffers() const { return device_; }

  void upload() {
    for (size_t i = 0; i < ranges_.size(); ++i) {
      expect_ok(normgrad::cuda::copy(blocks_[i], ranges_[i].begin, ranges_[i].bytes()));
    }
  }
  // Waits for the device, then copies everything back: also what should not have changed.
  void download() {
    expect_ok(normgrad::cuda::synchronize());
    for (size_t i = 0; i < ranges_.size(); ++i) {
      expect_ok(normgrad::cuda::copy(ranges_[i].begin, blocks_[i], ranges_[i].bytes()));
    }
  }

 private:
  static constexpr size_t kAlignment = 256;

  struct Range {
    std::byte *begin, *end;
    size_t bytes() const { return static_cast<size_t>(end - begin); }
  };

  void add(const Tensor& tensor, const void* data) {
    if (normgrad::reference::count(tensor) == 0) return;
    int64_t low = 0, high = 1;
    const std::vector<int64_t> strides = normgrad::reference::strides_of(tensor);
    for (size_t axis = 0; axis < strides.size(); ++axis) {
      const int64_t last = strides[axis] * (tensor.shape[axis] - 1);
      (last < 0 ? low : high) += last;
    }
    const auto size = static_cast<int64_t>(normgrad::size_of(tensor.dtype));
    std::byte* first = static_cast<std::byte*>(const_cast<void*>(data));
    ranges_.push_back({first + low * size, first + high * size});
  }
  void add(const std::optional<Tensor>& tensor, const void* data) {
    if (tensor) add(*tensor, data);
  }

  template <class Call>
  void find_ranges(const Call& c, const Buffers& host) {
    add(c.x, host.x);
    add(c.dy, host.dy);
    add(c.gamma, host.gamma);
    add(c.spread, host.spread);
    add(c.dx, host.dx);
    add(c.dgamma, host.dgamma);
    if constexpr (!std::is_same_v<Call, normgrad::RmsNormBackward>) {
      add(c.mean, host.mean);
      add(c.dbeta, host.dbeta);
    }
  }

  void merge() {
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    std::vector<Range> merged;
    for (const Range& range : ranges_) {
      if (!merged.empty() && range.begin < merged.back().end) {
        merged.back().end = std::max(merged.back().end, range.end);
      } else {
        merged.push_back(range);
      }
    }
    ranges_ = merged;
  }

  void* device_of(const void* host) const {
    const auto* address = static_cast<const std::byte*>(host);
    for (size_t i = 0; i < ranges_.size(); ++i) {
      if (address >= ranges_[i].begin && address < ranges_[i].end) {
        return blocks_[i] + (address - ranges_[i].begin);
      }
    }
    return nullptr;
  }

  Buffers device_;
  std::vector<Range> ranges_;  // of the host, apart from each other
  std::vector<DeviceMemory> memory_;
  std::vector<std::byte*> blocks_;
};

// At an odd address, full of NaN.
class DeviceWorkspace {
 public:
  explicit DeviceWorkspace(size_t size) : size_(size), memory_(kStart + size + kAfter) {
    expect_ok(normgrad::cuda::fill(memory_.data(), 0xFF, kStart + size + kAfter));
  }
  void* data() const { return size_ > 0 ? memory_.data() + kStart : nullptr; }

  // Nothing was written outside it.
  bool intact() const {
    std::vector<std::byte> host(kStart + size_ + kAfter);
    expect_ok(normgrad::cuda::synchronize());
    expect_ok(normgrad::cuda::copy(host.data(), memory_.data(), host.size()));
    const std::span<const std::byte> all = host;
    return normgrad::reference::poisoned(all.first(kStart)) &&
           normgrad::reference::poisoned(all.last(kAfter));
  }

 private:
  static constexpr size_t kStart = normgrad::reference::kRedZone + 1;
  static constexpr size_t kAfter = normgrad::reference::kRedZone;
  size_t size_;
  DeviceMemory memory_;
};

// Skips where there is no GPU.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (normgrad::cuda::device_count() == 0) GTEST_SKIP() << "no device";
  }
};

}  // namespace device_test
