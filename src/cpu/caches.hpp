// What the kernels need to know of the machine's caches. It decides how data moves, never what is
// computed.
#pragma once

#include <cstdint>

namespace normgrad::cpu {

// Bytes of second-level cache that one core has.
int64_t core_cache_bytes();

// Bytes that a core reads a second time about as fast as from its second-level cache: that cache,
// or its part of a third level that is near.
int64_t near_cache_bytes();

// Whether a core's first-level cache has so few places for lines a multiple of 4 KiB apart that two
// rows of x, dy and dx and the column sums do not fit.
bool has_few_ways();

// From this many bytes of x, dy and dx together on, the caches do not hold them.
int64_t streaming_bytes();

}  // namespace normgrad::cpu
