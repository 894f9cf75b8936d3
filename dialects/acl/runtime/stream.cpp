// Streams. Work is complete when the call that asked for it returns, so a stream is no more than a
// handle that is live.
#include "stream.hpp"

#include "context.hpp"
#include "device.hpp"

namespace normgrad::acl {
namespace {

struct Stream {
  const void* context;  // where it was created; null if the thread had none
};

aclError create(const char* function, aclrtStream* stream) {
  if (!stream) return null_pointer(function, "stream");
  if (!find_device(function)) return ACL_ERROR_RT_NO_DEVICE;
  return guarded(function, [&] {
    *stream = live<Stream>().add(std::make_shared<Stream>(Stream{current_context().get()}));
    return ACL_SUCCESS;
  });
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

aclError aclrtSynchronizeStream(aclrtStream stream) { return check_stream(__func__, stream); }

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
  if (timeout < -1) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "EE1001: %s: timeout is %d, expected -1 or more",
                __func__, static_cast<int>(timeout));
  }
  return check_stream(__func__, stream);
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  if (!status) return null_pointer(__func__, "status");
  if (aclError refusal = check_stream(__func__, stream)) return refusal;
  *status = ACL_STREAM_STATUS_COMPLETE;
  return ACL_SUCCESS;
}

}  // extern "C"
