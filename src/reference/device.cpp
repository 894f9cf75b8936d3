// Runs an instance on a GPU: on copies of its memory, red zones included, that come back after it.
#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "normgrad/cuda.hpp"
#include "reference/cases.hpp"
#include "reference/memory.hpp"

namespace normgrad::reference {
namespace {

// Device memory that frees itself.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { (void)cuda::release(data_).ok(); }

  Status allocate(size_t bytes) { return cuda::allocate(bytes, data_); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

// Where the copies lie: each as far from a multiple of kAlignment as the memory it copies.
constexpr size_t kAlignment = 256;
struct Mirror {
  std::span<std::byte> host;
  size_t offset;
};

std::vector<Mirror> lay_out(const std::vector<std::span<std::byte>>& memories, size_t& bytes) {
  std::vector<Mirror> mirrors;
  for (const auto& memory : memories) {
    const size_t phase = reinterpret_cast<uintptr_t>(memory.data()) % kAlignment;
    mirrors.push_back({memory, bytes + phase});
    bytes += (phase + memory.size() + kAlignment - 1) / kAlignment * kAlignment;
  }
  return mirrors;
}

Buffers translate(const Buffers& host, const std::vector<Mirror>& mirrors, std::byte* device) {
  const auto moved = [&](auto* pointer) -> decltype(pointer) {
    for (const Mirror& mirror : mirrors) {
      const auto* at = static_cast<const std::byte*>(static_cast<const void*>(pointer));
      const std::byte* begin = mirror.host.data();
      if (at >= begin && at < begin + mirror.host.size()) {
        return device + mirror.offset + (at - begin);
      }
    }
    return nullptr;
  };
  Buffers buffers;
  buffers.x = moved(host.x);
  buffers.dy = moved(host.dy);
  buffers.gamma = moved(host.gamma);
  buffers.mean = moved(host.mean);
  buffers.spread = moved(host.spread);
  buffers.dx = moved(host.dx);
  buffers.dgamma = moved(host.dgamma);
  buffers.dbeta = moved(host.dbeta);
  return buffers;
}

void require(const Status& status) {
  if (!status.ok()) throw Error(status);
}

// Captures what `queue` queues on a stream, then `prepare`s and replays it.
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

Status run_on_gpu(Instance& instance, bool in_graph) try {
  const Plan plan =
      std::visit([](const auto& call) { return Plan(call, Device::kCuda); }, instance.call());
  const size_t size = plan.workspace_size();
  const size_t start = kRedZone + 1;  // an odd address
  std::vector<std::byte> workspace(start + size + kRedZone, kPoison);
  std::vector<std::span<std::byte>> memories = instance.memories();
  memories.emplace_back(workspace);
  size_t bytes = 0;
  const std::vector<Mirror> mirrors = lay_out(memories, bytes);

  DeviceMemory device;
  require(device.allocate(bytes));
  const auto copy_in = [&] {
    for (const Mirror& mirror : mirrors) {
      require(cuda::copy(device.data() + mirror.offset, mirror.host.data(), mirror.host.size()));
    }
  };
  const Buffers buffers = translate(instance.buffers(), mirrors, device.data());
  const auto execute = [&](void* stream) {
    return plan.execute(buffers, device.data() + mirrors.back().offset + start, size, stream);
  };
  if (in_graph) {
    replay(execute, copy_in);
  } else {
    copy_in();
    const Status executed = execute(nullptr);
    const Status finished = cuda::synchronize();
    require(executed);
    require(finished);
  }
  for (const Mirror& mirror : mirrors) {
    require(cuda::copy(mirror.host.data(), device.data() + mirror.offset, mirror.host.size()));
  }
  const std::span<const std::byte> all = workspace;
  if (!poisoned(all.first(start)) || !poisoned(all.last(kRedZone))) {
    return {Code::kInternal, "workspace: written outside its size"};
  }
  return {};
} catch (const Error& error) {
  return {error.code(), error.what()};
}

}  // namespace

Status run_on(Instance& instance, Device device) {
  return device == Device::kCuda ? run_on_gpu(instance, /*in_graph=*/false)
                                 : run_native(instance.call(), instance.buffers());
}

Status run_in_graph(Instance& instance) { return run_on_gpu(instance, /*in_graph=*/true); }

}  // namespace normgrad::reference
