#include "infiniop_call.hpp"

#include <fmt/format.h>
#include <infiniop.h>
#include <infiniop/normgrad.h>
#include <infinirt.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "calls.hpp"

namespace normgrad::tool {
namespace {

constexpr int kTimedRuns = 7;

void check(int status) {
  if (status == INFINI_STATUS_SUCCESS) return;
  throw std::runtime_error(fmt::format("InfiniOP status {}: {}", status, normgradGetLastError()));
}

template <auto destroy>
struct Destroy {
  void operator()(auto* object) const { static_cast<void>(destroy(object)); }
};
using Handle = std::unique_ptr<InfiniopHandle, Destroy<infiniopDestroyHandle>>;
using TensorDescriptor =
    std::unique_ptr<InfiniopTensorDescriptor, Destroy<infiniopDestroyTensorDescriptor>>;
using Event = std::unique_ptr<void, Destroy<infinirtEventDestroy>>;
using Memory = std::unique_ptr<void, Destroy<infinirtFree>>;
using LayerNorm =
    std::unique_ptr<InfiniopDescriptor, Destroy<infiniopDestroyLayerNormBackwardDescriptor>>;
using RmsNorm =
    std::unique_ptr<InfiniopDescriptor, Destroy<infiniopDestroyRMSNormBackwardDescriptor>>;
using BatchNorm =
    std::unique_ptr<InfiniopDescriptor, Destroy<infiniopDestroyBatchNormBackwardDescriptor>>;

// Calls create(..., &object, ...) and takes what it made.
template <class Owner, class Create>
Owner make(const Create& create) {
  typename Owner::pointer object = nullptr;
  check(create(&object));
  return Owner(object);
}

TensorDescriptor describe(const Tensor& tensor) {
  const std::vector<size_t> shape(tensor.shape.begin(), tensor.shape.end());
  const infiniDtype_t dtype = tensor.dtype == DType::kF32   ? INFINI_DTYPE_F32
                              : tensor.dtype == DType::kF16 ? INFINI_DTYPE_F16
                                                            : INFINI_DTYPE_BF16;
  return make<TensorDescriptor>([&](auto* object) {
    return infiniopCreateTensorDescriptor(object, shape.size(), shape.data(), nullptr, dtype);
  });
}

// What compute calls; copies share the descriptor and the workspace.
using Compute = std::function<int(const Buffers&)>;
using Descriptor = std::shared_ptr<InfiniopDescriptor>;

Compute prepare(infiniopHandle_t handle, const LayerNormBackward& call) {
  const TensorDescriptor data = describe(call.x), params = describe(*call.gamma);
  const TensorDescriptor statistics = describe(call.spread);
  const Descriptor op = make<LayerNorm>([&](auto* object) {
    return infiniopCreateLayerNormBackwardDescriptor(handle, object, data.get(), params.get(),
                                                     params.get(), data.get(), params.get(),
                                                     data.get(), statistics.get());
  });
  size_t size = 0;
  check(infiniopGetLayerNormBackwardWorkspaceSize(op.get(), &size));
  return [op, size, workspace = allocate(size)](const Buffers& b) {
    return infiniopLayerNormBackward(op.get(), workspace.get(), size, b.dx, b.dgamma, b.dbeta, b.dy,
                                     b.gamma, b.x, b.spread, nullptr);
  };
}

Compute prepare(infiniopHandle_t handle, const RmsNormBackward& call) {
  const TensorDescriptor data = describe(call.x), params = describe(*call.gamma);
  const Descriptor op = make<RmsNorm>([&](auto* object) {
    return infiniopCreateRMSNormBackwardDescriptor(handle, object, data.get(), params.get(),
                                                   data.get(), data.get(), params.get());
  });
  size_t size = 0;
  check(infiniopGetRMSNormBackwardWorkspaceSize(op.get(), &size));
  return [op, size, workspace = allocate(size)](const Buffers& b) {
    return infiniopRMSNormBackward(op.get(), workspace.get(), size, b.dx, b.dgamma, b.dy, b.x,
                                   b.gamma, nullptr);
  };
}

Compute prepare(infiniopHandle_t handle, const BatchNormBackward& call) {
  const TensorDescriptor data = describe(call.x), params = describe(*call.gamma);
  const Descriptor op = make<BatchNorm>([&](auto* object) {
    return infiniopCreateBatchNormBackwardDescriptor(handle, object, data.get(), params.get(),
                                                     params.get(), data.get(), data.get(),
                                                     params.get(), params.get(), params.get());
  });
  size_t size = 0;
  check(infiniopGetBatchNormBackwardWorkspaceSize(op.get(), &size));
  return [op, size, workspace = allocate(size)](const Buffers& b) {
    return infiniopBatchNormBackward(op.get(), workspace.get(), size, b.dx, b.dgamma, b.dbeta, b.x,
                                     b.dy, b.gamma, b.mean, b.spread, nullptr);
  };
}

}  // namespace

DeviceMemory allocate(size_t bytes) {
  return make<Memory>([&](void** object) { return infinirtMalloc(object, bytes); });
}

DeviceOperands::DeviceOperands(const reference::Call& call) : call_(call) {
  const Operands operands = operands_of(call);
  const auto place = [&](const std::optional<Tensor>& tensor) -> void* {
    if (!tensor) return nullptr;
    return memory_.emplace_back(allocate(static_cast<size_t>(bytes_of(tensor)))).get();
  };
  buffers_ = {.x = place(operands.x),
              .dy = place(operands.dy),
              .gamma = place(operands.gamma),
              .mean = place(operands.mean),
              .spread = place(operands.spread),
              .dx = place(operands.dx),
              .dgamma = place(operands.dgamma),
              .dbeta = place(operands.dbeta)};
}

void DeviceOperands::upload(const Buffers& host) const {
  const Operands operands = operands_of(call_);
  const auto copy = [](const std::optional<Tensor>& tensor, const void* to, const void* from) {
    check(infinirtMemcpy(const_cast<void*>(to), from, static_cast<size_t>(bytes_of(tensor)),
                         INFINIRT_MEMCPY_H2D));
  };
  copy(operands.x, buffers_.x, host.x);
  copy(operands.dy, buffers_.dy, host.dy);
  copy(operands.gamma, buffers_.gamma, host.gamma);
  copy(operands.mean, buffers_.mean, host.mean);
  copy(operands.spread, buffers_.spread, host.spread);
}

void DeviceOperands::download(const Buffers& host) const {
  const Operands operands = operands_of(call_);
  const auto copy = [](const std::optional<Tensor>& tensor, void* to, const void* from) {
    check(infinirtMemcpy(to, from, static_cast<size_t>(bytes_of(tensor)), INFINIRT_MEMCPY_D2H));
  };
  copy(operands.dx, host.dx, buffers_.dx);
  copy(operands.dgamma, host.dgamma, buffers_.dgamma);
  copy(operands.dbeta, host.dbeta, buffers_.dbeta);
}

InfiniopCall::InfiniopCall(const reference::Call& call) {
  check(infinirtSetDevice(INFINI_DEVICE_CPU, 0));
  const Handle handle = make<Handle>(infiniopCreateHandle);
  compute_ = std::visit([&](const auto& each) { return prepare(handle.get(), each); }, call);
}

void InfiniopCall::compute(const Buffers& device) const { check(compute_(device)); }

double InfiniopCall::time(const Buffers& device) const {
  const Event start = make<Event>(infinirtEventCreate), end = make<Event>(infinirtEventCreate);
  compute(device);  // warms up
  std::array<float, kTimedRuns> milliseconds;
  for (float& each : milliseconds) {
    check(infinirtEventRecord(start.get(), nullptr));
    compute(device);
    check(infinirtEventRecord(end.get(), nullptr));
    check(infinirtEventSynchronize(end.get()));
    check(infinirtEventElapsedTime(&each, start.get(), end.get()));
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + kTimedRuns / 2, milliseconds.end());
  return milliseconds[kTimedRuns / 2] / 1e3;
}

}  // namespace normgrad::tool
