#include "gpu_operands.hpp"

#include <stdexcept>

#include "normgrad/cuda.hpp"

namespace normgrad::tool {

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

GpuMemory::GpuMemory(int64_t bytes) {
  if (bytes > 0) require(cuda::allocate(static_cast<size_t>(bytes), data_));
}

GpuMemory::~GpuMemory() { (void)cuda::release(data_).ok(); }

GpuOperands::GpuOperands(const reference::Call& call, const Buffers& host) {
  const Operands all = operands_of(call);
  add_input(all.x, host.x, device_.x);
  add_input(all.dy, host.dy, device_.dy);
  add_input(all.gamma, host.gamma, device_.gamma);
  add_input(all.mean, host.mean, device_.mean);
  add_input(all.spread, host.spread, device_.spread);
  add_output(all.dx, host.dx, device_.dx);
  add_output(all.dgamma, host.dgamma, device_.dgamma);
  add_output(all.dbeta, host.dbeta, device_.dbeta);
}

void GpuOperands::add_input(const std::optional<Tensor>& tensor, const void* host,
                            const void*& device) {
  const int64_t bytes = bytes_of(tensor);
  void* memory = add(bytes);
  if (bytes > 0) require(cuda::copy(memory, host, static_cast<size_t>(bytes)));
  device = memory;
}

void GpuOperands::add_output(const std::optional<Tensor>& tensor, void* host, void*& device) {
  const int64_t bytes = bytes_of(tensor);
  device = add(bytes);
  if (bytes == 0) return;
  require(cuda::fill(device, 0xFF, static_cast<size_t>(bytes)));
  outputs_.push_back({bytes, host, device});
}

void GpuOperands::copy_out() {
  for (const Output& each : outputs_) {
    require(cuda::copy(each.host, each.device, static_cast<size_t>(each.bytes)));
  }
}

}  // namespace normgrad::tool
