// What the kernels need to know of the machine's caches. It decides how data moves, never what is
// computed.
#pragma once

#include <cstdint>

namespace normgrad::cpu {

// Bytes of second-level cache that one core has.
int64_t core_cache_bytes();

// From this many bytes of x, dy and dx together on, dx is stored past the caches: a plain store
// reads the line first, and evicts what somebody may still want.
int64_t streaming_bytes();

}  // namespace normgrad::cpu
