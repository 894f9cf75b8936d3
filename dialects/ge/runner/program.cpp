// Runs a program.
#include "runner/program.hpp"

#include <cstring>

#include "error.hpp"

namespace normgrad::graph_mode {

void run(const Program& program, const Snapshot& graph, std::span<const uint8_t* const> feeds,
         std::span<uint8_t* const> outputs, uint8_t* arena) {
  const auto read = [&](const Location& location) -> const uint8_t* {
    switch (location.place) {
      case Location::kFeed:
        return feeds[location.at];
      case Location::kValue:
        return graph.nodes[location.at].constant.GetData();
      case Location::kOutput:
        return outputs[location.at];
      case Location::kArena:
        return arena + location.at;
      case Location::kNone:
        break;
    }
    return nullptr;
  };
  for (const Step& step : program.steps) {
    Buffers buffers;
    for (const auto& [member, location] : step.inputs) buffers.*member = read(location);
    for (const auto& [member, location] : step.outputs) {
      buffers.*member =
          location.place == Location::kOutput ? outputs[location.at] : arena + location.at;
    }
    const Status status =
        step.plan.execute(buffers, arena + step.workspace, step.plan.workspace_size());
    if (!status.ok()) refuse("node '" + graph.nodes[step.node].name + "': " + status.message());
  }
  for (const size_t output : program.zeros) {
    std::memset(outputs[output], 0, program.output_bytes[output]);
  }
  for (const auto& [location, output] : program.copies) {
    const size_t bytes = program.output_bytes[output];
    if (bytes > 0) std::memcpy(outputs[output], read(location), bytes);
  }
}

}  // namespace normgrad::graph_mode
