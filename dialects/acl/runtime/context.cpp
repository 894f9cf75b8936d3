// The device's default context, which aclrtSetDevice shares between threads by reference count, and
// the contexts that programs create.
#include "context.hpp"

#include "device.hpp"

namespace normgrad::acl {
namespace {

constinit thread_local const void* current = nullptr;

// Live while references > 0.
constinit Context default_context;
constinit uint64_t references = 0;
constinit std::mutex references_mutex;

// Null: not live.
std::shared_ptr<Context> find_context(const void* handle) {
  if (handle != &default_context) return live<Context>().find(handle);
  const std::lock_guard lock(references_mutex);
  if (references == 0) return nullptr;
  return {std::shared_ptr<void>(), &default_context};  // not owned: it is never freed
}

aclError check_device(const char* function, int32_t device_id) {
  if (!find_device(function)) return ACL_ERROR_RT_NO_DEVICE;
  if (device_id == 0) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_INVALID_DEVICEID, "EE1001: %s: deviceId is %d, expected 0", function,
              static_cast<int>(device_id));
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
  if (aclError status = check_device(__func__, deviceId)) return status;
  const std::lock_guard lock(references_mutex);
  ++references;
  current = &default_context;
  return ACL_SUCCESS;
}

aclError aclrtResetDevice(int32_t deviceId) {
  if (aclError status = check_device(__func__, deviceId)) return status;
  const std::lock_guard lock(references_mutex);
  if (references == 0) {
    return fail(ACL_ERROR_RT_CONTEXT_NULL,
                "EE1001: %s: device %d is not set, or was reset as often as it was set", __func__,
                static_cast<int>(deviceId));
  }
  if (--references > 0) return ACL_SUCCESS;
  if (current == &default_context) current = nullptr;
  remove_streams_of(&default_context);
  for (auto& value : default_context.options.values) value = Options::kUnset;
  return ACL_SUCCESS;
}

aclError aclrtGetDevice(int32_t* deviceId) {
  if (!deviceId) return null_pointer(__func__, "deviceId");
  if (!need_context(__func__)) return ACL_ERROR_RT_CONTEXT_NULL;
  *deviceId = 0;
  return ACL_SUCCESS;
}

aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId) {
  if (!context) return null_pointer(__func__, "context");
  if (aclError status = check_device(__func__, deviceId)) return status;
  return guarded(__func__, [&] {
    *context = live<Context>().add(std::make_shared<Context>());
    current = *context;
    return ACL_SUCCESS;
  });
}

aclError aclrtDestroyContext(aclrtContext context) {
  if (!context) return null_pointer(__func__, "context");
  if (context == &default_context) {
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
  if (!find_context(context)) return stale(__func__, "context", context);
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
