// The set of live objects: a pointer that is not in it can be refused without being read. An
// address that a later object of the same kind got again passes for that object.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_set>

#include "base/objects.hpp"
#include "base/status.hpp"

namespace normgrad::acl {

struct Shard {
  std::mutex mutex;
  std::unordered_set<const Object*> objects;
};
Shard& shard_of(const Object* object);

// Holds the shard of one object, so that nobody can destroy it meanwhile. Some 20 ns.
class LiveLock {
 public:
  explicit LiveLock(const Object* object)
      : object_(object), shard_(shard_of(object)), lock_(shard_.mutex) {}
  bool live(Kind kind) const { return shard_.objects.count(object_) != 0 && object_->kind == kind; }
  void leave() { shard_.objects.erase(object_); }

 private:
  const Object* object_;
  Shard& shard_;
  std::lock_guard<std::mutex> lock_;
};

// Takes an object out of the set: from then on it is the caller's to delete.
template <class T>
int32_t take(const T* object, const char* name) noexcept {
  return guarded(kInner, [&]() -> int32_t {
    LiveLock lock(object);
    if (!lock.live(T::kKind)) return not_live(name, object);
    lock.leave();
    return kSuccess;
  });
}

template <class T>
int32_t destroy(const T* object, const char* name) noexcept {
  if (!object) return kSuccess;
  if (const int32_t status = take(object, name)) return status;
  delete object;
  return kSuccess;
}

// Hands a new object out; null when memory ran out.
template <class T>
T* publish(std::unique_ptr<T> object) noexcept {
  return normgradAclEnter(object.get()) ? object.release() : nullptr;
}

// What a getter or setter asks first: the object, and the place to write to.
template <class T>
int32_t check(const T* object, const char* name, const void* out, const char* out_name) noexcept {
  if (!object) return null_argument(name);
  if (!out) return null_argument(out_name);
  return normgradAclIsLive(object, T::kKind) ? kSuccess : not_live(name, object);
}

}  // namespace normgrad::acl
