// The CPU as a device: host memory, and work that is done at once.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.hpp"

namespace normgrad::acl {
namespace {

bool memory_info(size_t& free, size_t& total) {
  unsigned long long available_kb = 0, total_kb = 0;
  if (FILE* file = std::fopen("/proc/meminfo", "r")) {
    char line[128];
    while (std::fgets(line, sizeof(line), file)) {
      if (std::sscanf(line, "MemAvailable: %llu", &available_kb) != 1) {
        std::sscanf(line, "MemTotal: %llu", &total_kb);
      }
    }
    std::fclose(file);
  }
  if (total_kb == 0) return false;
  free = static_cast<size_t>(available_kb) * 1024;
  total = static_cast<size_t>(total_kb) * 1024;
  return true;
}

}  // namespace

const Device kCpu = {
    .soc_name = "NormGrad-CPU",
    .allocate =
        [](size_t size) {
          void* memory = nullptr;
          return posix_memalign(&memory, 64, size) == 0 ? memory : nullptr;
        },
    .release = [](void* memory) { std::free(memory); },
    // memmove: programs copy within a buffer.
    .copy = [](void* dst, const void* src, size_t count) { std::memmove(dst, src, count); },
    .fill = [](void* memory, int value, size_t count) { std::memset(memory, value, count); },
    .memory_info = memory_info,
};

}  // namespace normgrad::acl
