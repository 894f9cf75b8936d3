// A call held ready behind the InfiniOP C API, as a program would hold it: created once, computed
// many times, on memory from infinirtMalloc. Everything here throws std::runtime_error.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "normgrad/plan.hpp"
#include "reference/cases.hpp"

namespace normgrad::tool {

using DeviceMemory = std::shared_ptr<void>;
DeviceMemory allocate(size_t bytes);

// Device memory for every operand of a call; content as malloc leaves it.
class DeviceOperands {
 public:
  explicit DeviceOperands(const reference::Call& call);

  // The pointers of operands that the call does not have are null.
  const Buffers& buffers() const { return buffers_; }

  // All inputs from the host, and all outputs to it.
  void upload(const Buffers& host) const;
  void download(const Buffers& host) const;

 private:
  reference::Call call_;
  std::vector<DeviceMemory> memory_;
  Buffers buffers_;
};

// The call is one that make_call makes, without channels_last.
class InfiniopCall {
 public:
  explicit InfiniopCall(const reference::Call& call);

  void compute(const Buffers& device) const;

  // The median of a few runs in seconds, measured with infinirt's events.
  double time(const Buffers& device) const;

 private:
  std::function<int(const Buffers&)> compute_;
};

}  // namespace normgrad::tool
