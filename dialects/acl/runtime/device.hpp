// Device: the seam between the runtime's API and the device behind it. The CPU is in cpu.cpp;
// another device is another table.
#pragma once

#include <cstddef>

#include "runtime.hpp"

namespace normgrad::acl {

// Copies and fills are complete when they return, so that streams and events are bookkeeping.
struct Device {
  const char* soc_name;
  void* (*allocate)(size_t size);  // a multiple of 64; null: out of memory
  void (*release)(void* memory);
  void (*copy)(void* dst, const void* src, size_t count);
  void (*fill)(void* memory, int value, size_t count);
  bool (*memory_info)(size_t& free, size_t& total);
};

extern const Device kCpu;

// The device that NORMGRAD_ACL_DEVICE asks for. Where there is none: null, with the refusal,
// ACL_ERROR_RT_NO_DEVICE, told on behalf of `function`.
const Device* find_device(const char* function);

}  // namespace normgrad::acl
