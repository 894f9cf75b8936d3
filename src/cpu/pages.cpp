#include "cpu/pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include "cpu/caches.hpp"

namespace normgrad::cpu {
namespace {

// Asks for huge pages if the last page of the last of them is not there yet.
bool claim_if_untouched(const Written& output) {
  constexpr uintptr_t kHuge = 2 << 20;
  const auto address = reinterpret_cast<uintptr_t>(output.data);
  const uintptr_t begin = (address + kHuge - 1) / kHuge * kHuge;
  const uintptr_t end = (address + static_cast<uintptr_t>(output.bytes)) / kHuge * kHuge;
  if (begin >= end) return false;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  unsigned char is_there = 1;
  if (mincore(reinterpret_cast<void*>(end - page), page, &is_there) != 0 || is_there & 1) {
    return false;
  }
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // it may decline
  return true;
}

}  // namespace

bool stored_past_caches(const Written& output, int64_t moved) {
  return !claim_if_untouched(output) && moved > streaming_bytes();
}

}  // namespace normgrad::cpu
