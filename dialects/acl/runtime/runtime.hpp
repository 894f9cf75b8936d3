// What the files of libascendcl share: refusals, and the sets of handles that are live.
#pragma once

#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <unordered_map>

#include "acl/acl.h"
#include "error.hpp"

namespace normgrad::acl {

// Sentences begin with an id, as programs expect it: EE1001 for a wrong argument, EE9999 for the
// rest.
inline aclError null_pointer(const char* function, const char* argument) {
  return fail(ACL_ERROR_INVALID_PARAM, "EE1001: %s: %s is null", function, argument);
}

inline aclError stale(const char* function, const char* argument, const void* handle) {
  return fail(
      ACL_ERROR_RT_INVALID_HANDLE,
      "EE1001: %s: expected %s to be live, got %p, which was destroyed or is something else",
      function, argument, handle);
}

// Runs `body`, where running out of memory is all that can be thrown: no exception may cross a C
// boundary.
template <class Body>
aclError guarded(const char* function, const Body& body) noexcept {
  try {
    return body();
  } catch (...) {
    return fail(ACL_ERROR_BAD_ALLOC, "EE9999: %s: out of memory", function);
  }
}

// The live objects of one kind, by their handles. A handle is looked up before it is followed, so
// that one that was destroyed is refused; only an address that a new object has taken since goes
// unnoticed. What is found stays whole while it is used, even if it is destroyed meanwhile.
template <class Object>
class Live {
 public:
  void* add(std::shared_ptr<Object> object) {
    void* handle = object.get();
    return add(handle, std::move(object));
  }
  void* add(void* handle, std::shared_ptr<Object> object) {
    const std::unique_lock lock(mutex_);
    objects_.emplace(handle, std::move(object));
    return handle;
  }

  // Null: not live.
  std::shared_ptr<Object> find(const void* handle) const {
    const std::shared_lock lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  bool has(const void* handle) const {
    const std::shared_lock lock(mutex_);
    return objects_.count(handle) != 0;
  }

  bool remove(const void* handle) {
    const std::unique_lock lock(mutex_);
    return objects_.erase(handle) != 0;
  }

  template <class Condition>
  void remove_if(const Condition& condition) {
    const std::unique_lock lock(mutex_);
    std::erase_if(objects_, [&](const auto& entry) { return condition(*entry.second); });
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<Object>> objects_;
};

// Never destroyed, because programs destroy streams while the process exits; in static storage,
// because making it must not fail.
template <class Object>
Live<Object>& live() {
  alignas(Live<Object>) static unsigned char storage[sizeof(Live<Object>)];
  static Live<Object>& objects = *new (storage) Live<Object>;
  return objects;
}

}  // namespace normgrad::acl
