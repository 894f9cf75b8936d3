#include "demo_infiniop.hpp"

#include <fmt/format.h>
#include <infiniop.h>
#include <infiniop/normgrad.h>
#include <infinirt.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace normgrad::tool {
namespace {

constexpr int kTimedRuns = 7;

void check(infiniStatus_t status) {
  if (status == INFINI_STATUS_SUCCESS) return;
  throw std::runtime_error(
      fmt::format("InfiniOP status {}: {}", static_cast<int>(status), normgradGetLastError()));
}

template <auto destroy>
struct Destroy {
  void operator()(auto* object) const { static_cast<void>(destroy(object)); }
};
using Handle = std::unique_ptr<InfiniopHandle, Destroy<infiniopDestroyHandle>>;
using Descriptor =
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

Descriptor describe(const Tensor& tensor) {
  const std::vector<size_t> shape(tensor.shape.begin(), tensor.shape.end());
  const infiniDtype_t dtype = tensor.dtype == DType::kF32   ? INFINI_DTYPE_F32
                              : tensor.dtype == DType::kF16 ? INFINI_DTYPE_F16
                                                            : INFINI_DTYPE_BF16;
  return make<Descriptor>([&](auto* object) {
    return infiniopCreateTensorDescriptor(object, shape.size(), shape.data(), nullptr, dtype);
  });
}

Memory allocate(size_t size) {
  return make<Memory>([&](void** object) { return infinirtMalloc(object, size); });
}

size_t bytes(const Tensor& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), size_of(tensor.dtype),
                         [](size_t product, int64_t extent) { return product * extent; });
}

Memory upload(const Tensor& tensor, const void* host) {
  Memory memory = allocate(bytes(tensor));
  check(infinirtMemcpy(memory.get(), host, bytes(tensor), INFINIRT_MEMCPY_H2D));
  return memory;
}

void download(const Tensor& tensor, const Memory& memory, void* host) {
  check(infinirtMemcpy(host, memory.get(), bytes(tensor), INFINIRT_MEMCPY_D2H));
}

// compute(workspace, size) once to warm up, then the median of its timed runs.
template <class Compute>
double time_runs(size_t workspace_size, const Compute& compute) {
  const Memory workspace = allocate(workspace_size);
  const Event start = make<Event>(infinirtEventCreate), end = make<Event>(infinirtEventCreate);
  check(compute(workspace.get(), workspace_size));
  std::array<float, kTimedRuns> milliseconds;
  for (float& each : milliseconds) {
    check(infinirtEventRecord(start.get(), nullptr));
    check(compute(workspace.get(), workspace_size));
    check(infinirtEventRecord(end.get(), nullptr));
    check(infinirtEventSynchronize(end.get()));
    check(infinirtEventElapsedTime(&each, start.get(), end.get()));
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + kTimedRuns / 2, milliseconds.end());
  return milliseconds[kTimedRuns / 2] / 1e3;
}

double run(infiniopHandle_t handle, const LayerNormBackward& call, const Buffers& host) {
  const Descriptor data = describe(call.x), params = describe(*call.gamma);
  const Descriptor statistics = describe(call.spread);
  const auto op = make<LayerNorm>([&](auto* object) {
    return infiniopCreateLayerNormBackwardDescriptor(handle, object, data.get(), params.get(),
                                                     params.get(), data.get(), params.get(),
                                                     data.get(), statistics.get());
  });
  size_t workspace_size = 0;
  check(infiniopGetLayerNormBackwardWorkspaceSize(op.get(), &workspace_size));

  const Memory dy = upload(call.dy, host.dy), gamma = upload(*call.gamma, host.gamma);
  const Memory x_hat = upload(call.x, host.x), std = upload(call.spread, host.spread);
  const Memory dx = allocate(bytes(*call.dx)), dgamma = allocate(bytes(*call.dgamma));
  const Memory dbeta = allocate(bytes(*call.dbeta));
  const double seconds = time_runs(workspace_size, [&](void* workspace, size_t size) {
    return infiniopLayerNormBackward(op.get(), workspace, size, dx.get(), dgamma.get(), dbeta.get(),
                                     dy.get(), gamma.get(), x_hat.get(), std.get(), nullptr);
  });
  download(*call.dx, dx, host.dx);
  download(*call.dgamma, dgamma, host.dgamma);
  download(*call.dbeta, dbeta, host.dbeta);
  return seconds;
}

double run(infiniopHandle_t handle, const RmsNormBackward& call, const Buffers& host) {
  const Descriptor data = describe(call.x), params = describe(*call.gamma);
  const auto op = make<RmsNorm>([&](auto* object) {
    return infiniopCreateRMSNormBackwardDescriptor(handle, object, data.get(), params.get(),
                                                   data.get(), data.get(), params.get());
  });
  size_t workspace_size = 0;
  check(infiniopGetRMSNormBackwardWorkspaceSize(op.get(), &workspace_size));

  const Memory dy = upload(call.dy, host.dy), gamma = upload(*call.gamma, host.gamma);
  const Memory x = upload(call.x, host.x);
  const Memory dx = allocate(bytes(*call.dx)), dgamma = allocate(bytes(*call.dgamma));
  const double seconds = time_runs(workspace_size, [&](void* workspace, size_t size) {
    return infiniopRMSNormBackward(op.get(), workspace, size, dx.get(), dgamma.get(), dy.get(),
                                   x.get(), gamma.get(), nullptr);
  });
  download(*call.dx, dx, host.dx);
  download(*call.dgamma, dgamma, host.dgamma);
  return seconds;
}

double run(infiniopHandle_t handle, const BatchNormBackward& call, const Buffers& host) {
  const Descriptor data = describe(call.x), params = describe(*call.gamma);
  const auto op = make<BatchNorm>([&](auto* object) {
    return infiniopCreateBatchNormBackwardDescriptor(handle, object, data.get(), params.get(),
                                                     params.get(), data.get(), data.get(),
                                                     params.get(), params.get(), params.get());
  });
  size_t workspace_size = 0;
  check(infiniopGetBatchNormBackwardWorkspaceSize(op.get(), &workspace_size));

  const Memory x = upload(call.x, host.x), dy = upload(call.dy, host.dy);
  const Memory gamma = upload(*call.gamma, host.gamma);
  const Memory mean = upload(call.mean, host.mean), variance = upload(call.spread, host.spread);
  const Memory dx = allocate(bytes(*call.dx)), dgamma = allocate(bytes(*call.dgamma));
  const Memory dbeta = allocate(bytes(*call.dbeta));
  const double seconds = time_runs(workspace_size, [&](void* workspace, size_t size) {
    return infiniopBatchNormBackward(op.get(), workspace, size, dx.get(), dgamma.get(), dbeta.get(),
                                     x.get(), dy.get(), gamma.get(), mean.get(), variance.get(),
                                     nullptr);
  });
  download(*call.dx, dx, host.dx);
  download(*call.dgamma, dgamma, host.dgamma);
  download(*call.dbeta, dbeta, host.dbeta);
  return seconds;
}

}  // namespace

double run_infiniop(const reference::Call& call, const Buffers& buffers) {
  check(infinirtSetDevice(INFINI_DEVICE_CPU, 0));
  const Handle handle = make<Handle>(infiniopCreateHandle);
  return std::visit([&](const auto& each) { return run(handle.get(), each, buffers); }, call);
}

}  // namespace normgrad::tool
