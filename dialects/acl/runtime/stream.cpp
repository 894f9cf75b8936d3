// Streams: handles that are live, and what the device has behind them.
#include "stream.hpp"

#include <chrono>
#include <thread>

#include "context.hpp"
#include "device.hpp"

namespace normgrad::acl {
namespace {

struct Stream {
  explicit Stream(const Device& d) : device(d), context(current_context().get()) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    if (own) (void)device.destroy_stream(own);
  }

  const Device& device;
  const void* const context;  // where it was created; null if the thread had none
  void* own = nullptr;        // the device's
};

aclError create(const char* function, aclrtStream* stream) {
  if (!stream) return null_pointer(function, "stream");
  return on_device(function, [&](const Device& device) {
    auto made = std::make_shared<Stream>(device);
    Status status = device.create_stream(made->own);
    if (!status.ok()) return status;
    void* handle = made->own ? made->own : made.get();
    *stream = live<Stream>().add(handle, std::move(made));
    return status;
  });
}

// Devices know no end of waiting but that of the work: so it is asked for, again and again.
aclError wait_for(const char* function, aclrtStream stream, std::chrono::milliseconds timeout) {
  const Device* device = find_device(function);
  if (!device) return ACL_ERROR_RT_NO_DEVICE;
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    bool complete = false;
    if (aclError status = answer(function, device->query_stream(stream, complete))) return status;
    if (complete) return ACL_SUCCESS;
    if (std::chrono::steady_clock::now() >= end) {
      return fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "EE9999: %s: not complete after %lld ms",
                  function, static_cast<long long>(timeout.count()));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace

void remove_streams_of(const void* context) {
  live<Stream>().remove_if([&](const Stream& stream) { return stream.context == context; });
}

aclError check_stream(const char* function, const void* stream) {
  return normgradAclIsStream(stream) ? ACL_SUCCESS : stale(function, "stream", stream);
}

}  // namespace normgrad::acl

using namespace normgrad::acl;
using normgrad::Status;

extern "C" {

bool normgradAclIsStream(const void* stream) noexcept {
  return !stream || live<Stream>().has(stream);
}

aclError aclrtCreateStream(aclrtStream* stream) { return create(__func__, stream); }

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
  return create(__func__, stream);
}

aclError aclrtDestroyStream(aclrtStream stream) {
  if (!stream) return null_pointer(__func__, "stream");
  return live<Stream>().remove(stream) ? ACL_SUCCESS : stale(__func__, "stream", stream);
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  if (aclError status = check_stream(__func__, stream)) return status;
  return on_device(__func__,
                   [&](const Device& device) { return device.synchronize_stream(stream); });
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
  if (timeout < -1) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: %s: timeout is %d, expected -1 or more",
                __func__, static_cast<int>(timeout));
  }
  if (aclError status = check_stream(__func__, stream)) return status;
  const char* function = __func__;
  if (timeout == -1) {
    return on_device(function,
                     [&](const Device& device) { return device.synchronize_stream(stream); });
  }
  return guarded(function,
                 [&] { return wait_for(function, stream, std::chrono::milliseconds(timeout)); });
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  if (!status) return null_pointer(__func__, "status");
  if (aclError refusal = check_stream(__func__, stream)) return refusal;
  return on_device(__func__, [&](const Device& device) {
    bool complete = false;
    Status queried = device.query_stream(stream, complete);
    if (queried.ok()) {
      *status = complete ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    }
    return queried;
  });
}

}  // extern "C"
