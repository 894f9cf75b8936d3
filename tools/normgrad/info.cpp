// normgrad info: what this build can do on this machine, and which kernel a shape takes.
#include <fmt/format.h>

#include <thread>

#include "arguments.hpp"
#include "calls.hpp"
#include "commands.hpp"
#include "gpu_operands.hpp"
#include "machine.hpp"
#include "normgrad/cuda.hpp"
#include "normgrad/normgrad.hpp"
#include "table.hpp"

namespace normgrad::tool {
namespace {

// A transformer's hidden states and a ResNet's feature maps.
const std::vector<std::vector<int64_t>> kRowShapes = {{4096, 768}, {16384, 4096}, {8, 512, 4096}};
const std::vector<std::vector<int64_t>> kChannelShapes = {{32, 64, 3136}, {32, 2048, 49}};

void print_machine() {
  fmt::print("NormGrad {}\n\n", version());
  fmt::print("devices\n");
  fmt::print("  cpu   {}, {} threads\n", cpu_model(), std::thread::hardware_concurrency());
  const int gpus = cuda::device_count();
  if (gpus == 0) fmt::print("  cuda  none\n");
  for (int id = 0; id < gpus; ++id) {
    cuda::DeviceInfo gpu;
    require(cuda::describe(id, gpu));
    fmt::print("  cuda  {}, {} multiprocessors, {} MB, driver {}\n", gpu.name, gpu.multiprocessors,
               gpu.total_bytes >> 20, gpu.driver);
  }
  fmt::print("\nimplementations, best first (NORMGRAD_IMPL=name forces one)\n");
  for (const Implementation& each : implementations()) fmt::print("  {}\n", each.name);
  fmt::print("\n");
}

}  // namespace

int run_info(const InfoOptions& options) {
  Table table({"operator", "shape", "dtype", "kernel", "workspace"}, 4);
  bool refused = false;
  for (const Op op : options.ops) {
    auto shapes = op == Op::kBatchNorm ? kChannelShapes : kRowShapes;
    if (!options.shapes.empty()) {
      shapes.clear();
      for (const std::string& text : options.shapes) shapes.push_back(parse_shape(text));
    }
    for (const auto& shape : shapes) {
      for (const DType dtype : options.dtypes) {
        Plan plan;
        const Status status =
            std::visit([&](const auto& call) { return Plan::create(call, options.device, plan); },
                       make_call(op, shape, dtype));
        refused = refused || !status.ok();
        table.add({name_of(op), format_shape(shape), name_of(dtype),
                   status.ok() ? plan.kernel() : "refused: " + status.message(),
                   status.ok() ? fmt::format("{} B", plan.workspace_size()) : ""});
      }
    }
  }
  print_machine();
  table.print();
  return refused ? 1 : 0;
}

}  // namespace normgrad::tool
