// Counts allocations, and lets them fail: operator new of the whole program. For one source file of
// a test. ThreadSanitizer's runtime has its own operator new; there this header is empty.
#pragma once

#if !defined(NORMGRAD_SANITIZE_THREAD)

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

thread_local int64_t allocations = 0;
thread_local int64_t allocations_left = -1;  // negative: no limit

void* allocate(size_t size) {
  ++allocations;
  if (allocations_left == 0) return nullptr;
  if (allocations_left > 0) --allocations_left;
  return std::malloc(size > 0 ? size : 1);
}

}  // namespace

// The libraries use these too; alignments beyond malloc's are not counted. Inlined, they look to
// the compiler like new paired with free.
[[gnu::noinline]] void* operator new(size_t size) {
  if (void* memory = allocate(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return allocate(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

#endif
