// Program: a graph compiled for one set of input shapes. Running it is a loop over native calls.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "graph/snapshot.hpp"
#include "normgrad/plan.hpp"

namespace normgrad::graph_mode {

// Where a value lives during a run.
struct Location {
  enum Place { kNone, kFeed, kValue, kOutput, kArena };
  Place place = kNone;
  size_t at = 0;  // number of the feed, of the Const node, of the output; offset in the arena
};

struct Step {
  int node;
  Plan plan;
  std::vector<std::pair<const void * Buffers::*, Location>> inputs;
  std::vector<std::pair<void * Buffers::*, Location>> outputs;
  size_t workspace = 0;  // offset in the arena
};

struct Program {
  std::vector<Step> steps;
  size_t arena_size = 0;
  Descs outputs;
  std::vector<size_t> output_bytes;
  // Outputs that no step writes: masked ones are zeros, others repeat a value.
  std::vector<size_t> zeros;
  std::vector<std::pair<Location, size_t>> copies;
};

// Compiles the graph for feeds of these descriptions, whose shapes are known. Outputs that nobody
// wants are not computed, nor nodes that only make such. Throws what is wrong.
Program compile(const Snapshot& graph, std::span<const int> order, const Descs& feeds);

// The memory is that of the program: all pointers valid, aligned and apart from each other.
void run(const Program& program, const Snapshot& graph, std::span<const uint8_t* const> feeds,
         std::span<uint8_t* const> outputs, uint8_t* arena);

}  // namespace normgrad::graph_mode
