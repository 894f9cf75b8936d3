// Memory of the device and of the host, and copies between them. Copies take no lock, but for
// looking up a stream that is not null.
#include <array>
#include <cstdint>
#include <unordered_set>

#include "device.hpp"
#include "stream.hpp"

using namespace normgrad::acl;
using normgrad::Status;

namespace {

// What aclrtMalloc, or aclrtMallocHost, gave out and nobody has given back. Freeing anything else
// would end the process.
class Allocations {
 public:
  void add(const void* memory) {
    const std::lock_guard lock(mutex_);
    addresses_.insert(memory);
  }
  bool remove(const void* memory) {
    const std::lock_guard lock(mutex_);
    return addresses_.erase(memory) != 0;
  }

 private:
  std::mutex mutex_;
  std::unordered_set<const void*> addresses_;
};

enum Place { kDevice, kHost };

// Never destroyed, because programs free while the process exits; in static storage, because making
// them must not fail.
Allocations& allocations(Place place) {
  using Sets = std::array<Allocations, 2>;
  alignas(Sets) static unsigned char storage[sizeof(Sets)];
  static Sets& sets = *new (storage) Sets;
  return sets[place];
}

Status give_back(const Device& device, Place place, void* memory) {
  return (place == kDevice ? device.release : device.release_host)(memory);
}

aclError allocate(const char* function, const char* argument, Place place, void** memory,
                  size_t size) {
  if (!memory) return null_pointer(function, argument);
  if (size == 0) {
    return fail(ACL_ERROR_INVALID_PARAM, "EE1001: %s: size is 0, expected 1 or more", function);
  }
  const Device* device = find_device(function);
  if (!device) return ACL_ERROR_RT_NO_DEVICE;
  void* allocated = nullptr;
  (void)guarded(function, [&] {
    // Programs count on room for whole blocks of 32 bytes.
    if (size > SIZE_MAX - 31) return ACL_SUCCESS;
    const auto allocate_there = place == kDevice ? device->allocate : device->allocate_host;
    return answer(function, allocate_there((size + 31) / 32 * 32, allocated));
  });
  if (!allocated) {
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EE9999: %s: no memory for size %zu", function,
                size);
  }
  const aclError status = guarded(function, [&] {
    allocations(place).add(allocated);
    return ACL_SUCCESS;
  });
  if (status != ACL_SUCCESS) {
    (void)give_back(*device, place, allocated);
    return status;
  }
  *memory = allocated;
  return ACL_SUCCESS;
}

aclError release(const char* function, const char* argument, Place place, void* memory) {
  if (!memory) return null_pointer(function, argument);
  const Device* device = find_device(function);
  if (!device) return ACL_ERROR_RT_NO_DEVICE;
  if (!allocations(place).remove(memory)) {
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                "EE1001: %s: %s is %p, which was not allocated for this or is free already",
                function, argument, memory);
  }
  return guarded(function, [&] {
    return answer(function, give_back(*device, place, memory), ACL_ERROR_RT_MEMORY_FREE);
  });
}

// The largest count allowed is the caller's word for the room behind a pointer.
aclError check_room(const char* function, const char* argument, size_t room, size_t count) {
  if (count <= room) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: %s: count is %zu, expected at most %s, %zu",
              function, count, argument, room);
}

// copy_it: Status(const Device&).
template <class Copy>
aclError copy(const char* function, void* dst, size_t destMax, const void* src, size_t count,
              aclrtMemcpyKind kind, aclrtStream stream, const Copy& copy_it) {
  if (count == 0) return ACL_SUCCESS;
  if (!dst || !src) return null_pointer(function, dst ? "src" : "dst");
  if (aclError status = check_room(function, "destMax", destMax, count)) return status;
  if (kind < ACL_MEMCPY_HOST_TO_HOST || kind > ACL_MEMCPY_INTER_DEVICE_TO_DEVICE) {
    return fail(ACL_ERROR_INVALID_PARAM, "EE1001: %s: kind is %d, expected 0 to %d", function,
                static_cast<int>(kind), static_cast<int>(ACL_MEMCPY_INTER_DEVICE_TO_DEVICE));
  }
  if (aclError status = check_stream(function, stream)) return status;
  return on_device(function, copy_it);
}

// fill_it: Status(const Device&).
template <class Fill>
aclError fill(const char* function, void* devPtr, size_t maxCount, size_t count, aclrtStream stream,
              const Fill& fill_it) {
  if (count == 0) return ACL_SUCCESS;
  if (!devPtr) return null_pointer(function, "devPtr");
  if (aclError status = check_room(function, "maxCount", maxCount, count)) return status;
  if (aclError status = check_stream(function, stream)) return status;
  return on_device(function, fill_it);
}

}  // namespace

extern "C" {

aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy) {
  return allocate(__func__, "devPtr", kDevice, devPtr, size);
}

aclError aclrtFree(void* devPtr) { return release(__func__, "devPtr", kDevice, devPtr); }

aclError aclrtMallocHost(void** hostPtr, size_t size) {
  return allocate(__func__, "hostPtr", kHost, hostPtr, size);
}

aclError aclrtFreeHost(void* hostPtr) { return release(__func__, "hostPtr", kHost, hostPtr); }

aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count,
                     aclrtMemcpyKind kind) {
  return copy(__func__, dst, destMax, src, count, kind, nullptr,
              [&](const Device& device) { return device.copy(dst, src, count); });
}

aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count,
                          aclrtMemcpyKind kind, aclrtStream stream) {
  return copy(__func__, dst, destMax, src, count, kind, stream,
              [&](const Device& device) { return device.copy_async(dst, src, count, stream); });
}

aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count) {
  return fill(__func__, devPtr, maxCount, count, nullptr,
              [&](const Device& device) { return device.fill(devPtr, value, count); });
}

aclError aclrtMemsetAsync(void* devPtr, size_t maxCount, int32_t value, size_t count,
                          aclrtStream stream) {
  return fill(__func__, devPtr, maxCount, count, stream, [&](const Device& device) {
    return device.fill_async(devPtr, value, count, stream);
  });
}

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t* free, size_t* total) {
  if (!free || !total) return null_pointer(__func__, free ? "total" : "free");
  if (attr < ACL_DDR_MEM || attr > ACL_HBM_MEM_P2P_NORMAL) {
    return fail(ACL_ERROR_INVALID_PARAM, "EE1001: %s: attr is %d, expected 0 to %d", __func__,
                static_cast<int>(attr), static_cast<int>(ACL_HBM_MEM_P2P_NORMAL));
  }
  return on_device(__func__,
                   [&](const Device& device) { return device.memory_info(*free, *total); });
}

}  // extern "C"
