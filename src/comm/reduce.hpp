// The arithmetic of all_reduce and reduce_scatter, where an engine leaves it to us.
#pragma once

#include "normgrad/communicator.hpp"

namespace normgrad::comm {

// to = the reduction of `parts` blocks of `count` elements, which lie `stride` bytes apart, in
// their order. Floating point is computed in float64 and rounded once; integers wrap around. NaN
// wins a maximum and a minimum. All blocks are aligned for their elements.
void reduce_parts(const std::byte* from, size_t stride, int parts, int64_t count, Element element,
                  Reduction reduction, std::byte* to);

}  // namespace normgrad::comm
