// What memory allows: dx = x + dy, two reads and one write of every byte, and nothing else.
#pragma once

#include <cstdint>

namespace normgrad::bench {

// Non-temporal stores do not read a line before they write it: faster where dx does not fit the
// cache, slower where it does.
enum class Stores { kPlain, kNonTemporal };

// Moves the three arrays, `bytes` long each and aligned to 64, `times` times. OpenMP's threads have
// a fixed part each and start once for all the times: the limit has no cost of a call in it. The
// words of 32 bits are added as integers, so that no pattern is a slow subnormal; bytes that do not
// fill a word are left out.
void add_arrays(const void* x, const void* dy, void* dx, int64_t bytes, Stores stores,
                int64_t times);

}  // namespace normgrad::bench
