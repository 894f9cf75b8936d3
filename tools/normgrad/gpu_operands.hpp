// The operands of a call on a GPU: copies of those on the host, and outputs that come back.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "calls.hpp"
#include "normgrad/plan.hpp"
#include "normgrad/status.hpp"

namespace normgrad::tool {

// Throws std::runtime_error with the status's sentence if it is not ok.
void require(const Status& status);

class GpuMemory {
 public:
  explicit GpuMemory(int64_t bytes);
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  ~GpuMemory();
  void* get() const { return data_; }

 private:
  void* data_ = nullptr;  // of nothing
};

class GpuOperands {
 public:
  // All tensors are contiguous. Outputs are filled with NaN.
  GpuOperands(const reference::Call& call, const Buffers& host);

  const Buffers& buffers() const { return device_; }
  void copy_out();

 private:
  struct Output {
    int64_t bytes;
    void* host;
    void* device;
  };
  void* add(int64_t bytes) { return memory_.emplace_back(new GpuMemory(bytes))->get(); }
  void add_input(const std::optional<Tensor>& tensor, const void* host, const void*& device);
  void add_output(const std::optional<Tensor>& tensor, void* host, void*& device);

  Buffers device_;
  std::vector<Output> outputs_;
  std::vector<std::unique_ptr<GpuMemory>> memory_;
};

}  // namespace normgrad::tool
