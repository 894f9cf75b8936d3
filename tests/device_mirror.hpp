// Memory of a CUDA device for tests of front ends: a copy of an instance, and a workspace with red
// zones.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "normgrad/cuda.hpp"
#include "reference/cases.hpp"
#include "reference/memory.hpp"

namespace device_test {

using normgrad::Buffers;
using normgrad::Status;

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

// The memory of an instance on the device, red zones included. Addresses keep their distance from
// multiples of 256.
class DeviceMirror {
 public:
  explicit DeviceMirror(normgrad::reference::Instance& instance) : host_(instance.memories()) {
    for (const auto& memory : host_) {
      memory_.emplace_back(memory.size() + kAlignment);
      const size_t phase = reinterpret_cast<uintptr_t>(memory.data()) % kAlignment;
      device_.push_back(memory_.back().data() + phase);
    }
    const Buffers& host = instance.buffers();
    for (const void* Buffers::*input :
         {&Buffers::x, &Buffers::dy, &Buffers::gamma, &Buffers::mean, &Buffers::spread}) {
      buffers_.*input = device_of(host.*input);
    }
    for (void* Buffers::*output : {&Buffers::dx, &Buffers::dgamma, &Buffers::dbeta}) {
      buffers_.*output = device_of(host.*output);
    }
    upload();
  }

  // Of the device.
  const Buffers& buffers() const { return buffers_; }

  void upload() {
    for (size_t i = 0; i < host_.size(); ++i) {
      if (host_[i].empty()) continue;  // an operand that the call does not have
      expect_ok(normgrad::cuda::copy(device_[i], host_[i].data(), host_[i].size()));
    }
  }
  // Waits for the device, then copies everything back: also what should not have changed.
  void download() {
    expect_ok(normgrad::cuda::synchronize());
    for (size_t i = 0; i < host_.size(); ++i) {
      if (host_[i].empty()) continue;
      expect_ok(normgrad::cuda::copy(host_[i].data(), device_[i], host_[i].size()));
    }
  }

 private:
  static constexpr size_t kAlignment = 256;

  void* device_of(const void* host) const {
    const auto* address = static_cast<const std::byte*>(host);
    for (size_t i = 0; i < host_.size(); ++i) {
      if (address >= host_[i].data() && address < host_[i].data() + host_[i].size()) {
        return device_[i] + (address - host_[i].data());
      }
    }
    return nullptr;
  }

  std::vector<std::span<std::byte>> host_;
  std::vector<DeviceMemory> memory_;
  std::vector<std::byte*> device_;  // the copies, in the same order
  Buffers buffers_;
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
