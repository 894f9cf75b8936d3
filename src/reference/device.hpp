// Instances on a CUDA device: copies of their memory, red zones included, and a workspace with red
// zones of its own. What CUDA refuses is thrown as Error.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "normgrad/plan.hpp"
#include "reference/cases.hpp"

namespace normgrad::reference {

// Given back when it goes.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

// Addresses keep their distance from multiples of 256.
class DeviceMirror {
 public:
  explicit DeviceMirror(AnyInstance& instance);  // uploads it

  const Buffers& buffers() const { return buffers_; }  // of the device
  void upload();
  // Waits for the device, then copies everything back: also what should not have changed.
  void download();

 private:
  void* device_of(const void* host) const;

  std::vector<std::span<std::byte>> host_;
  std::vector<DeviceMemory> memory_;
  std::vector<std::byte*> device_;  // the copies, in the same order
  Buffers buffers_;
};

// At an odd address, full of NaN.
class DeviceWorkspace {
 public:
  explicit DeviceWorkspace(size_t size);
  void* data() const;
  bool intact() const;  // nothing was written outside it

 private:
  size_t size_;
  DeviceMemory memory_;
};

}  // namespace normgrad::reference
