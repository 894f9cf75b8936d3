#include "reference/device.hpp"

#include <cstdint>

#include "normgrad/cuda.hpp"
#include "reference/memory.hpp"

namespace normgrad::reference {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kStart = kRedZone + 1;  // of a workspace: an odd address

void require(const Status& status) {
  if (!status.ok()) throw Error(status);
}

// Captures what `queue` queues on a stream, then `prepare`s and replays it. Other threads may go on
// allocating meanwhile.
template <class Queue, class Prepare>
void replay(const Queue& queue, const Prepare& prepare) {
  void *stream = nullptr, *graph = nullptr, *executable = nullptr;
  require(cuda::create_stream(stream));
  require(cuda::begin_capture(stream, cuda::CaptureMode::kThreadLocal));
  const Status queued = queue(stream);
  require(cuda::end_capture(stream, graph));
  require(queued);
  require(cuda::instantiate(graph, executable));
  prepare();
  require(cuda::launch(executable, stream));
  require(cuda::synchronize_stream(stream));
  require(cuda::destroy_executable(executable));
  require(cuda::destroy_graph(graph));
  require(cuda::destroy_stream(stream));
}

Status run_on_gpu(AnyInstance& instance, bool in_graph) try {
  Plan plan;
  require(instance.plan(Device::kCuda, plan));
  const size_t size = plan.workspace_size();
  const DeviceWorkspace workspace(size);
  DeviceMirror mirror(instance);
  const auto execute = [&](void* stream) {
    return plan.execute(mirror.buffers(), workspace.data(), size, stream);
  };
  if (in_graph) {
    replay(execute, [&] { mirror.upload(); });
  } else {
    require(execute(nullptr));
  }
  mirror.download();
  if (!workspace.intact()) return {Code::kInternal, "workspace: written outside its size"};
  return {};
} catch (const Error& error) {
  return {error.code(), error.what()};
}

}  // namespace

DeviceMemory::DeviceMemory(size_t bytes) { require(cuda::allocate(bytes, data_)); }

DeviceMemory::~DeviceMemory() { (void)cuda::release(data_).ok(); }

DeviceMirror::DeviceMirror(AnyInstance& instance) : host_(instance.memories()) {
  for (const auto& memory : host_) {
    memory_.emplace_back(memory.size() + kAlignment);
    const size_t phase = reinterpret_cast<uintptr_t>(memory.data()) % kAlignment;
    device_.push_back(memory_.back().data() + phase);
  }
  const Buffers& host = instance.buffers();
  for (const void* Buffers::*input :
       {&Buffers::x, &Buffers::dy, &Buffers::gamma, &Buffers::mean, &Buffers::spread, &Buffers::dh,
        &Buffers::residual, &Buffers::beta}) {
    buffers_.*input = device_of(host.*input);
  }
  for (void* Buffers::*output :
       {&Buffers::dx, &Buffers::dgamma, &Buffers::dbeta, &Buffers::y, &Buffers::h, &Buffers::x_hat,
        &Buffers::saved_mean, &Buffers::saved_spread, &Buffers::running_mean,
        &Buffers::running_variance, &Buffers::sum_dy, &Buffers::sum_dy_xmu, &Buffers::count,
        &Buffers::squares}) {
    buffers_.*output = device_of(host.*output);
  }
  upload();
}

void DeviceMirror::upload() {
  for (size_t i = 0; i < host_.size(); ++i) {
    require(cuda::copy(device_[i], host_[i].data(), host_[i].size()));
  }
}

void DeviceMirror::download() {
  require(cuda::synchronize());
  for (size_t i = 0; i < host_.size(); ++i) {
    require(cuda::copy(host_[i].data(), device_[i], host_[i].size()));
  }
}

void* DeviceMirror::device_of(const void* host) const {
  const auto* address = static_cast<const std::byte*>(host);
  for (size_t i = 0; i < host_.size(); ++i) {
    if (address >= host_[i].data() && address < host_[i].data() + host_[i].size()) {
      return device_[i] + (address - host_[i].data());
    }
  }
  return nullptr;
}

DeviceWorkspace::DeviceWorkspace(size_t size) : size_(size), memory_(kStart + size + kRedZone) {
  require(cuda::fill(memory_.data(), static_cast<int>(kPoison), kStart + size + kRedZone));
}

void* DeviceWorkspace::data() const { return size_ > 0 ? memory_.data() + kStart : nullptr; }

bool DeviceWorkspace::intact() const {
  std::vector<std::byte> host(kStart + size_ + kRedZone);
  require(cuda::synchronize());
  require(cuda::copy(host.data(), memory_.data(), host.size()));
  const std::span<const std::byte> all = host;
  return poisoned(all.first(kStart)) && poisoned(all.last(kRedZone));
}

Status run_on(AnyInstance& instance, Device device) {
  if (device == Device::kCuda) return run_on_gpu(instance, /*in_graph=*/false);
  Plan plan;
  const Status planned = instance.plan(device, plan);
  return planned.ok() ? run_native(plan, instance.buffers()) : planned;
}

Status run_in_graph(AnyInstance& instance) { return run_on_gpu(instance, /*in_graph=*/true); }

}  // namespace normgrad::reference
