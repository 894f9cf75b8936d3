#include "runner/gpu.hpp"

#include <charconv>
#include <cstring>
#include <new>
#include <string>

#include "error.hpp"
#include "kinds/check.hpp"
#include "kinds/device.hpp"
#include "normgrad/cuda.hpp"

namespace normgrad::graph_mode {
namespace {

constexpr size_t kAlignment = 256;

void check(const Status& status) {
  if (!status.ok()) refuse(status.message());
}

bool same(const Location& a, const Location& b) { return a.place == b.place && a.at == b.at; }

const GpuLayout::Item* find(const std::vector<GpuLayout::Item>& items, const Location& location) {
  for (const GpuLayout::Item& item : items) {
    if (same(item.location, location)) return &item;
  }
  return nullptr;
}

void add(std::vector<GpuLayout::Item>& items, const Location& location, size_t bytes,
         size_t& size) {
  if (find(items, location)) return;
  items.push_back({location, bytes, size});
  size += (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

GpuLayout lay_out(const Program& program, const Snapshot& graph, const Descs& feeds) {
  GpuLayout layout;
  layout.size = (program.arena_size + kAlignment - 1) / kAlignment * kAlignment;
  for (const Step& step : program.steps) {
    for (const auto& [member, from] : step.inputs) {
      if (from.place == Location::kFeed) {
        add(layout.inputs, from, static_cast<size_t>(count_bytes(feeds[from.at])), layout.size);
      } else if (from.place == Location::kValue) {
        add(layout.inputs, from, graph.nodes[from.at].constant.GetSize(), layout.size);
      }
    }
    for (const auto& [member, to] : step.outputs) {
      if (to.place != Location::kOutput) continue;
      add(layout.outputs, to, program.output_bytes[to.at], layout.size);
    }
  }
  for (const size_t output : program.zeros) {
    add(layout.outputs, {Location::kOutput, output}, program.output_bytes[output], layout.size);
  }
  return layout;
}

Memory allocate_on_gpu(size_t bytes) {
  void* memory = nullptr;
  if (bytes > 0) check(cuda::allocate(bytes, memory));
  return {static_cast<uint8_t*>(memory), [](uint8_t* m) { (void)cuda::release(m); }};
}

void run_on_gpu(const Program& program, const GpuLayout& layout, const Snapshot& graph,
                std::span<const uint8_t* const> feeds, std::span<uint8_t* const> outputs,
                uint8_t* block) {
  const auto source = [&](const Location& location) -> const uint8_t* {
    return location.place == Location::kFeed     ? feeds[location.at]
           : location.place == Location::kOutput ? outputs[location.at]
                                                 : graph.nodes[location.at].constant.GetData();
  };
  const auto on_gpu = [&](const Location& location) -> uint8_t* {
    if (location.place == Location::kArena) return block + location.at;
    const auto& items = location.place == Location::kOutput ? layout.outputs : layout.inputs;
    const GpuLayout::Item* item = find(items, location);
    return item ? block + item->offset : nullptr;
  };
  for (const GpuLayout::Item& item : layout.inputs) {
    if (item.bytes > 0) check(cuda::copy(block + item.offset, source(item.location), item.bytes));
  }
  for (const size_t output : program.zeros) {
    const size_t bytes = program.output_bytes[output];
    if (bytes > 0) check(cuda::fill(on_gpu({Location::kOutput, output}), 0, bytes));
  }
  for (const Step& step : program.steps) {
    Buffers buffers;
    for (const auto& [member, location] : step.inputs) buffers.*member = on_gpu(location);
    for (const auto& [member, location] : step.outputs) buffers.*member = on_gpu(location);
    const Status status =
        step.plan.execute(buffers, block + step.workspace, step.plan.workspace_size());
    if (!status.ok()) refuse("node '" + graph.nodes[step.node].name + "': " + status.message());
  }
  check(cuda::synchronize_stream(nullptr));
  for (const GpuLayout::Item& item : layout.outputs) {
    if (item.bytes > 0) {
      check(cuda::copy(outputs[item.location.at], block + item.offset, item.bytes));
    }
  }
  for (const auto& [location, output] : program.copies) {
    const size_t bytes = program.output_bytes[output];
    if (bytes > 0) check(cuda::copy(outputs[output], source(location), bytes));
  }
  check(cuda::synchronize_stream(nullptr));
}

int parse_gpu(const char* text) {
  if (device() != Device::kCuda) return -1;
  int id = -1;
  const char* end = text + std::strlen(text);
  const auto [stopped, error] = std::from_chars(text, end, id);
  const int count = cuda::device_count();
  if (error != std::errc() || stopped != end || id < 0 || id >= count) {
    refuse(std::string("ge.exec.deviceId: expected 0 to ") + std::to_string(count - 1) + ", got '" +
           text + "'");
  }
  return id;
}

int current_gpu() {
  int id = 0;
  check(cuda::get_device(id));
  return id;
}

SelectGpu::SelectGpu(int gpu) {
  if (gpu < 0) return;
  const int current = current_gpu();
  if (current == gpu) return;
  check(cuda::set_device(gpu));
  before_ = current;
}

SelectGpu::~SelectGpu() {
  if (before_ >= 0) (void)cuda::set_device(before_);
}

}  // namespace normgrad::graph_mode
