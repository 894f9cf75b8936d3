// LoadedGraph: a graph of a session, its programs and its arena.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "graph/snapshot.hpp"
#include "graph/tensor.h"
#include "runner/gpu.hpp"

namespace normgrad::graph_mode {

using Tensors = std::vector<::ge::Tensor>;

// All functions throw what is wrong, and then nothing has changed. They may be called from several
// threads: runs follow each other, because they share the arena.
class LoadedGraph {
 public:
  // gpu: where it runs and has its memory; -1 for the CPU.
  LoadedGraph(Snapshot graph, int gpu) : graph_(std::move(graph)), gpu_(gpu) {}
  ~LoadedGraph();

  // For the shapes that the program stated; where they are not known only the graph is checked.
  void compile();
  void compile_for(const Tensors& inputs);
  bool is_compiled();

  // Makes tensors for `outputs`; with `in_place` it writes to the memory of those that have some.
  void run(const Tensors& inputs, Tensors& outputs, bool in_place);

  // Runs that are queued.
  void begin_pending();
  void end_pending() noexcept;
  void wait_for_pending();

 private:
  using Key = std::vector<int64_t>;
  struct Compiled {
    Program program;
    GpuLayout layout;  // empty on the CPU
  };

  void check_graph();
  Compiled& program_for(const Tensors& inputs);
  void check_inputs(const Tensors& inputs);
  Compiled& remember(const Descs& feeds);
  [[noreturn]] void refuse_output(size_t i, const std::string& reason) const;
  ::ge::Tensor output_tensor(const Program& program, size_t i, const Tensors& given) const;
  void check_apart(const Tensors& inputs, const Tensors& outputs) const;

  const Snapshot graph_;
  const int gpu_;
  std::mutex mutex_;
  std::optional<std::vector<int>> order_;  // once the graph is checked
  std::map<Key, Compiled> programs_;       // by the types, formats and shapes of the feeds
  Memory arena_{nullptr, nullptr};
  size_t arena_size_ = 0;
  // Kept from run to run, so that running allocates nothing but the tensors of outputs.
  Key key_;
  std::vector<const uint8_t*> feed_pointers_;
  std::vector<uint8_t*> output_pointers_;

  std::mutex pending_mutex_;
  std::condition_variable none_pending_;
  int pending_ = 0;
};

}  // namespace normgrad::graph_mode
