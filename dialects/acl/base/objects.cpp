// The set of live objects, in 64 parts so that threads rarely meet.
#include "base/objects.hpp"

#include <array>

#include "aclnn/aclnn_base.h"
#include "base/live.hpp"

namespace normgrad::acl {

// Never destroyed: programs keep tensors and executors in static caches and destroy them while the
// process exits, possibly after the destructors of this library's statics.
Shard& shard_of(const Object* object) {
  static auto& shards = *new std::array<Shard, 64>;
  // Allocators hand out multiples of 16 bytes; the multiplication spreads what is left.
  const uint64_t hash = (reinterpret_cast<uintptr_t>(object) >> 4) * 0x9e3779b97f4a7c15;
  return shards[hash >> 58];
}

}  // namespace normgrad::acl

using namespace normgrad::acl;  // NOLINT: the C functions below are this namespace's face

bool normgradAclIsLive(const void* object, Kind kind) noexcept {
  bool live = false;
  guarded(kInner, [&] {
    live = LiveLock(static_cast<const Object*>(object)).live(kind);
    return kSuccess;
  });
  return live;
}

bool normgradAclEnter(const Object* object) noexcept {
  return guarded(kInner, [&] {
           Shard& shard = shard_of(object);
           const std::lock_guard lock(shard.mutex);
           shard.objects.insert(object);
           return kSuccess;
         }) == kSuccess;
}

aclnnStatus aclnnInit(const char*) { return kSuccess; }

aclnnStatus aclnnFinalize() { return kSuccess; }
