// The devices' default contexts, which aclrtSetDevice shares between threads by reference count,
// and the contexts that programs create.
#include "context.hpp"

#include <algorithm>
#include <utility>

#include "device.hpp"

namespace normgrad::acl {
namespace {

constinit thread_local const void* current = nullptr;

// Live while references > 0.
struct DefaultContext {
  constexpr explicit DefaultContext(int32_t id) : context(id) {}
  Context context;
  uint64_t references = 0;
};

template <int32_t... kIds>
constexpr std::array<DefaultContext, sizeof...(kIds)> make_defaults(
    std::integer_sequence<int32_t, kIds...>) {
  return {DefaultContext(kIds)...};
}
// As many as a machine has GPUs, and more; never freed.
constexpr int32_t kMostDevices = 64;
constinit std::array<DefaultContext, kMostDevices> defaults =
    make_defaults(std::make_integer_sequence<int32_t, kMostDevices>());
constinit std::mutex defaults_mutex;

// Null: `handle` is none of them.
DefaultContext* find_default(const void* handle) {
  const auto found = std::find_if(defaults.begin(), defaults.end(),
                                  [&](const auto& each) { return &each.context == handle; });
  return found == defaults.end() ? nullptr : &*found;
}

// Null: not live.
std::shared_ptr<Context> find_context(const void* handle) {
  DefaultContext* found = find_default(handle);
  if (!found) return live<Context>().find(handle);
  const std::lock_guard lock(defaults_mutex);
  if (found->references == 0) return nullptr;
  return {std::shared_ptr<void>(), &found->context};  // not owned
}

// Sets `device` to what has the id, or refuses.
aclError check_device(const char* function, int32_t device_id, const Device*& device) {
  device = find_device(function);
  if (!device) return ACL_ERROR_RT_NO_DEVICE;
  const int32_t count = std::min(device->count(), kMostDevices);
  if (device_id >= 0 && device_id < count) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_INVALID_DEVICEID, "EE1001: %s: deviceId is %d, expected 0 to %d",
              function, static_cast<int>(device_id), static_cast<int>(count - 1));
}

// Makes it the calling thread's.
aclError select_device(const char* function, int32_t device_id) {
  return guarded(function, [&]() -> aclError {
    const Device* device = nullptr;
    if (aclError status = check_device(function, device_id, device)) return status;
    return answer(function, device->select(device_id));
  });
}

}  // namespace

std::shared_ptr<Context> current_context() { return current ? find_context(current) : nullptr; }

std::shared_ptr<Context> need_context(const char* function) {
  std::shared_ptr<Context> context = current_context();
  if (!context) {
    fail(ACL_ERROR_RT_CONTEXT_NULL,
         "EE1001: %s: the thread has no current context, expected aclrtSetDevice or "
         "aclrtSetCurrentContext before",
         function);
  }
  return context;
}

}  // namespace normgrad::acl

using namespace normgrad::acl;

extern "C" {

aclError aclrtSetDevice(int32_t deviceId) {
  if (aclError status = select_device(__func__, deviceId)) return status;
  const std::lock_guard lock(defaults_mutex);
  DefaultContext& its = defaults[static_cast<size_t>(deviceId)];
  ++its.references;
  current = &its.context;
  return ACL_SUCCESS;
}

aclError aclrtResetDevice(int32_t deviceId) {
  const Device* device = nullptr;
  if (aclError status = check_device(__func__, deviceId, device)) return status;
  const std::lock_guard lock(defaults_mutex);
  DefaultContext& its = defaults[static_cast<size_t>(deviceId)];
  if (its.references == 0) {
    return fail(ACL_ERROR_RT_CONTEXT_NULL,
                "EE1001: %s: device %d is not set, or was reset as often as it was set", __func__,
                static_cast<int>(deviceId));
  }
  if (--its.references > 0) return ACL_SUCCESS;
  // Work that is still queued ends first; it is this thread's device that can be waited for.
  aclError status = ACL_SUCCESS;
  if (current == &its.context) {
    status = on_device(__func__, [](const Device& each) { return each.synchronize(); });
    current = nullptr;
  }
  remove_streams_of(&its.context);
  for (auto& value : its.context.options.values) value = Options::kUnset;
  return status;
}

aclError aclrtGetDevice(int32_t* deviceId) {
  if (!deviceId) return null_pointer(__func__, "deviceId");
  const std::shared_ptr<Context> context = need_context(__func__);
  if (!context) return ACL_ERROR_RT_CONTEXT_NULL;
  *deviceId = context->device_id;
  return ACL_SUCCESS;
}

aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId) {
  if (!context) return null_pointer(__func__, "context");
  if (aclError status = select_device(__func__, deviceId)) return status;
  return guarded(__func__, [&] {
    *context = live<Context>().add(std::make_shared<Context>(deviceId));
    current = *context;
    return ACL_SUCCESS;
  });
}

aclError aclrtDestroyContext(aclrtContext context) {
  if (!context) return null_pointer(__func__, "context");
  if (find_default(context)) {
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                "EE1001: %s: context is the default one, which ends with aclrtResetDevice",
                __func__);
  }
  if (!live<Context>().remove(context)) return stale(__func__, "context", context);
  if (current == context) current = nullptr;
  remove_streams_of(context);
  return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  if (!context) return null_pointer(__func__, "context");
  const std::shared_ptr<Context> found = find_context(context);
  if (!found) return stale(__func__, "context", context);
  if (aclError status = select_device(__func__, found->device_id)) return status;
  current = context;
  return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  if (!context) return null_pointer(__func__, "context");
  const std::shared_ptr<Context> found = need_context(__func__);
  if (!found) return ACL_ERROR_RT_CONTEXT_NULL;
  *context = found.get();
  return ACL_SUCCESS;
}

}  // extern "C"
