// Whether the engine is initialized, and what all functions with options check.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "graph/ascend_string.h"

namespace normgrad::graph_mode {

using Options = std::map<::ge::AscendString, ::ge::AscendString>;

Options to_options(const std::map<std::string, std::string>& options);

// Throws for an empty key; warns of keys that have no meaning here.
void check_options(const char* function, const Options& options);

// The GPU that `options`, or else those of the initialization, name; -1 if none do.
int gpu_of(const Options& options);

// Which initialization of the process is in force; 0 if none is.
uint64_t current_epoch() noexcept;

}  // namespace normgrad::graph_mode
