// Programs on a GPU: what they read is copied there, what they write is copied back. Tensors may
// lie on either side, for CUDA's copies know.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runner/program.hpp"

namespace normgrad::graph_mode {

// The places of a program in one block of the GPU's memory, behind its arena.
struct GpuLayout {
  struct Item {
    Location location;
    size_t bytes;
    size_t offset;
  };
  std::vector<Item> inputs;   // feeds and constants that a step reads
  std::vector<Item> outputs;  // that a step writes, or that are zeros
  size_t size = 0;
};
GpuLayout lay_out(const Program& program, const Snapshot& graph, const Descs& feeds);

using Memory = std::unique_ptr<uint8_t, void (*)(uint8_t*)>;
Memory allocate_on_gpu(size_t bytes);

// As `run`, and complete on return. The outputs are written when all steps have been accepted.
void run_on_gpu(const Program& program, const GpuLayout& layout, const Snapshot& graph,
                std::span<const uint8_t* const> feeds, std::span<uint8_t* const> outputs,
                uint8_t* block);

// The GPU of the option ge.exec.deviceId, `text`; throws if there is none. Without graphs on GPUs
// it is -1, whatever the text.
int parse_gpu(const char* text);
// The calling thread's.
int current_gpu();

// Makes a GPU the calling thread's for as long as it lives; -1 is none.
class SelectGpu {
 public:
  explicit SelectGpu(int gpu);
  SelectGpu(const SelectGpu&) = delete;
  SelectGpu& operator=(const SelectGpu&) = delete;
  ~SelectGpu();

 private:
  int before_ = -1;  // if it was another
};

}  // namespace normgrad::graph_mode
