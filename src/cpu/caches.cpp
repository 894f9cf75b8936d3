#include "cpu/caches.hpp"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace normgrad::cpu {
namespace {

// The third level as Linux describes it: the C library adds up those of other processors.
int64_t third_level_bytes() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  int64_t size = 0;
  char unit = 0;
  file >> size >> unit;
  return unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : 0;
}

// Whether the third level takes what the second evicts, at its speed. Elsewhere it is a mesh that
// all cores share.
bool has_near_third_level() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

}  // namespace

int64_t core_cache_bytes() {
  static const int64_t bytes = [] {
    const int64_t size = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return size > 0 ? size : int64_t{1} << 20;
  }();
  return bytes;
}

// A quarter of the third level's share, since others use it, too. With 2 cores and 32 MiB, four
// rows of x and dy take 0.75 to 0.93 of the time by one core that they take with their columns
// shared if they are 1.6 to 2 MiB (512x65536 f32: 8.0 ms and 10.7), 0.9 to 1.06 if 4 MiB, 1.0
// to 1.2 if 8.
int64_t near_cache_bytes() {
  static const int64_t bytes = [] {
    if (!has_near_third_level()) return core_cache_bytes();
    return std::max(core_cache_bytes(), third_level_bytes() / 4 / omp_get_num_procs());
  }();
  return bytes;
}

bool has_few_ways() {
  static const bool few = sysconf(_SC_LEVEL1_DCACHE_ASSOC) <= 8;
  return few;
}

// Measured with 2 cores, 2 reads and 1 write: behind a mesh, stores past the caches win from 5 MiB
// on, 1.25 times the second levels (6 MiB: 85 GB/s, through the caches 57); with a near third level
// of 32 MiB from 28 MiB on (24 MiB: 83 and 99 GB/s, 36 MiB: 82 and 68).
int64_t streaming_bytes() {
  static const int64_t bytes = [] {
    const int64_t second_levels = core_cache_bytes() * omp_get_num_procs() * 5 / 4;
    if (!has_near_third_level()) return second_levels;
    return std::max(second_levels, third_level_bytes() / 8 * 7);
  }();
  return bytes;
}

}  // namespace normgrad::cpu
