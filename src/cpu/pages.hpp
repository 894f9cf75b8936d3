// How an output is stored. It decides how data moves, never what is computed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/problem.hpp"

namespace normgrad::cpu {

// An output: where it begins, and how many bytes it has from there on.
struct Written {
  void* data = nullptr;
  int64_t bytes = 0;  // 0: absent, or not known, since it goes backwards
};
inline Written written(void* data, const RowsShape::LeadStrides& strides, int64_t bytes) {
  const bool backwards = std::any_of(strides.begin(), strides.end(), [](auto s) { return s < 0; });
  return {data, backwards ? 0 : bytes};
}
inline Written written(void* data, const ChannelsShape::Strides& strides, int64_t bytes) {
  const bool backwards = std::min({strides.sample, strides.channel, strides.position}) < 0;
  return {data, backwards ? 0 : bytes};
}

// Whether an output should be stored past the caches, in a call that moves `moved` bytes: beyond
// what the caches hold a plain store reads the line first, and evicts what somebody may still want.
//
// Not if nobody has touched it since it was allocated, as large results mostly are. The system then
// clears page by page as the stores come, which brings the lines into the caches. Such an output is
// also asked for in huge pages, where the system gives them to whoever asks. LayerNorm 8192x4096
// fp32, gradient: 250 ms with stores past the caches, 110 with plain ones, 50 with huge pages; 33
// where the pages are there (AMD, 2 threads).
bool stored_past_caches(const Written& output, int64_t moved);

}  // namespace normgrad::cpu
