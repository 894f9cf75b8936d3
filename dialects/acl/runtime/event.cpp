// Events: moments in time. Whatever an event stands for is complete when it is recorded, so waiting
// for one is over before it begins.
#include <atomic>
#include <chrono>
#include <cstdint>

#include "device.hpp"
#include "stream.hpp"

using namespace normgrad::acl;

namespace {

// Nanoseconds, or kNever. Atomic: one thread may record what another one reads.
struct Event {
  static constexpr int64_t kNever = INT64_MIN;
  std::atomic<int64_t> time{kNever};
};

aclError create(const char* function, aclrtEvent* event) {
  if (!event) return null_pointer(function, "event");
  if (!find_device(function)) return ACL_ERROR_RT_NO_DEVICE;
  return guarded(function, [&] {
    *event = live<Event>().add(std::make_shared<Event>());
    return ACL_SUCCESS;
  });
}

// Sets `event` to what `handle` stands for, or refuses.
aclError find(const char* function, const char* argument, aclrtEvent handle,
              std::shared_ptr<Event>& event) {
  if (!handle) return null_pointer(function, argument);
  event = live<Event>().find(handle);
  return event ? ACL_SUCCESS : stale(function, argument, handle);
}

}  // namespace

extern "C" {

aclError aclrtCreateEvent(aclrtEvent* event) { return create(__func__, event); }

aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t) { return create(__func__, event); }

aclError aclrtDestroyEvent(aclrtEvent event) {
  if (!event) return null_pointer(__func__, "event");
  return live<Event>().remove(event) ? ACL_SUCCESS : stale(__func__, "event", event);
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  std::shared_ptr<Event> found;
  if (aclError status = find(__func__, "event", event, found)) return status;
  if (aclError status = check_stream(__func__, stream)) return status;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  found->time = std::chrono::nanoseconds(now).count();
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  std::shared_ptr<Event> found;
  return find(__func__, "event", event, found);
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  std::shared_ptr<Event> found;
  if (aclError status = find(__func__, "event", event, found)) return status;
  return check_stream(__func__, stream);
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  if (!status) return null_pointer(__func__, "status");
  std::shared_ptr<Event> found;
  if (aclError refusal = find(__func__, "event", event, found)) return refusal;
  *status = found->time == Event::kNever ? ACL_EVENT_RECORDED_STATUS_NOT_READY
                                         : ACL_EVENT_RECORDED_STATUS_COMPLETE;
  return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float* ms, aclrtEvent startEvent, aclrtEvent endEvent) {
  if (!ms) return null_pointer(__func__, "ms");
  std::shared_ptr<Event> start, end;
  if (aclError status = find(__func__, "startEvent", startEvent, start)) return status;
  if (aclError status = find(__func__, "endEvent", endEvent, end)) return status;
  const int64_t from = start->time, to = end->time;
  if (from == Event::kNever || to == Event::kNever) {
    return fail(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "EE1001: %s: %s has not been recorded",
                __func__, from == Event::kNever ? "startEvent" : "endEvent");
  }
  if (to < from) {
    return fail(ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL,
                "EE1001: %s: endEvent was recorded %lld ns before startEvent", __func__,
                static_cast<long long>(from - to));
  }
  *ms = static_cast<float>(static_cast<double>(to - from) * 1e-6);
  return ACL_SUCCESS;
}

}  // extern "C"
