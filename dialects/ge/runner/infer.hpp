// What a graph amounts to before any memory is planned: an order of its nodes and descriptions of
// all values.
#pragma once

#include <span>
#include <vector>

#include "graph/snapshot.hpp"

namespace normgrad::graph_mode {

// The nodes, producers first. Throws what is wrong with the graph itself: a node that cannot be
// compiled, two of one name, an input that is missing, a cycle, no outputs.
std::vector<int> execution_order(const Snapshot& graph);

// The outputs of every node, in the order of its kind. Data are described by `feeds`; without them
// by what the program stated, and are unknown where it did not. Throws where a statement
// contradicts what comes out.
std::vector<Descs> infer(const Snapshot& graph, std::span<const int> order, const Descs* feeds);

}  // namespace normgrad::graph_mode
