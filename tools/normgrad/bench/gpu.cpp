#include "bench/gpu.hpp"

#include <fmt/format.h>

#include <stdexcept>
#include <variant>

#include "gpu_operands.hpp"
#include "normgrad/cuda.hpp"

namespace normgrad::tool {
namespace {

constexpr int kSamples = 31;
constexpr int64_t kFlushRows = 32768, kFlushCols = 4096;  // 256 MiB of bf16: more than any L2 cache
constexpr int64_t kPage = 2 << 20;  // of the GPU; large copies of other sizes are a third slower

Plan plan_of(const reference::Call& call) {
  return std::visit([](const auto& each) { return Plan(each, Device::kCuda); }, call);
}

}  // namespace

// Reads 256 MiB: what is in the cache then is clean, and nothing of the case's.
struct Gpu::Flush {
  Plan plan;
  GpuMemory data{kFlushRows * kFlushCols * 2}, rstd{4}, dgamma{kFlushCols * 4};
  GpuMemory workspace;

  static RmsNormBackward call() {
    const Tensor bf16 = {DType::kBF16, {kFlushRows, kFlushCols}};
    RmsNormBackward reading;
    reading.x = reading.dy = bf16;
    reading.spread = Tensor{DType::kF32, {kFlushRows}, {0}};
    reading.dgamma = Tensor{DType::kF32, {kFlushCols}};
    return reading;
  }
  Flush() : plan(call(), Device::kCuda), workspace(static_cast<int64_t>(plan.workspace_size())) {
    require(cuda::fill(data.get(), 0x3C, kFlushRows * kFlushCols * 2));
    require(cuda::fill(rstd.get(), 0x3C, 4));
  }
};

Gpu::Gpu() {
  if (cuda::device_count() == 0) throw std::runtime_error("--device: there is no GPU here");
  int id = 0;
  cuda::DeviceInfo info;
  require(cuda::get_device(id));
  require(cuda::describe(id, info));
  name_ = fmt::format("{}, driver {}", info.name, info.driver);
  flush_ = std::make_unique<Flush>();
  require(cuda::create_stream(stream_));
  require(cuda::create_event({}, start_));
  require(cuda::create_event({}, end_));
}

Gpu::~Gpu() {
  (void)cuda::destroy_event(start_).ok();
  (void)cuda::destroy_event(end_).ok();
  (void)cuda::destroy_stream(stream_).ok();
}

void Gpu::empty_cache() {
  Buffers buffers;
  buffers.x = buffers.dy = flush_->data.get();
  buffers.spread = flush_->rstd.get();
  buffers.dgamma = flush_->dgamma.get();
  require(flush_->plan.execute(buffers, flush_->workspace.get(), flush_->plan.workspace_size(),
                               stream_));
}

template <class Queue>
std::vector<double> Gpu::replay(int samples, const Queue& queue) {
  void *graph = nullptr, *executable = nullptr;
  require(cuda::begin_capture(stream_, cuda::CaptureMode::kGlobal));
  const Status queued = queue(stream_);
  require(cuda::end_capture(stream_, graph));
  require(queued);
  require(cuda::instantiate(graph, executable));
  require(cuda::launch(executable, stream_));
  std::vector<double> seconds;
  for (int i = 0; i < samples; ++i) {
    empty_cache();
    require(cuda::record_event(start_, stream_));
    require(cuda::launch(executable, stream_));
    require(cuda::record_event(end_, stream_));
    require(cuda::synchronize_event(end_));
    float milliseconds = 0;
    require(cuda::elapsed_time(start_, end_, milliseconds));
    seconds.push_back(milliseconds * 1e-3);
  }
  require(cuda::destroy_executable(executable));
  require(cuda::destroy_graph(graph));
  return seconds;
}

BenchResult Gpu::run(const BenchCase& description) {
  const Trial trial(description, /*saved_rstd=*/true);
  BenchResult result;
  result.description = description;
  result.minimal_bytes = trial.minimal_bytes();
  const Plan plan = plan_of(trial.call());
  const GpuMemory workspace(static_cast<int64_t>(plan.workspace_size()));
  GpuOperands operands(trial.call(), trial.buffers());
  const auto execute = [&](void* stream) {
    return plan.execute(operands.buffers(), workspace.get(), plan.workspace_size(), stream);
  };
  require(execute(stream_));
  require(cuda::synchronize_stream(stream_));
  operands.copy_out();
  result.wrong = trial.what_is_wrong();
  if (!result.wrong.empty()) return result;

  int64_t half = (result.minimal_bytes / 2 + 4095) / 4096 * 4096;
  if (half >= 25 * kPage) half = (half + kPage - 1) / kPage * kPage;
  const GpuMemory from(half), to(half);
  require(cuda::fill(from.get(), 0x3C, static_cast<size_t>(half)));
  const Spread copy = spread_of(replay(kSamples, [&](void* stream) {
    return cuda::copy(to.get(), from.get(), static_cast<size_t>(half), stream);
  }));
  result.limit_plain = 2 * static_cast<double>(half) / copy.median;
  result.entries.push_back({"normgrad", {spread_of(replay(kSamples, execute)), kSamples}});
  return result;
}

}  // namespace normgrad::tool
