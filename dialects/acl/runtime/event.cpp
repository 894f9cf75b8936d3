// Events: what the device has for one, and whether it was ever recorded, which not every device
// tells.
#include <atomic>
#include <cstdint>

#include "device.hpp"
#include "stream.hpp"

using namespace normgrad::acl;
using normgrad::Status;

namespace {

struct Event {
  explicit Event(const Device& d) : device(d) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    if (own) (void)device.destroy_event(own);
  }

  const Device& device;
  void* own = nullptr;  // the device's
  // Atomic: one thread may record what another one looks at.
  std::atomic<bool> recorded = false;
};

aclError create(const char* function, aclrtEvent* event) {
  if (!event) return null_pointer(function, "event");
  return on_device(function, [&](const Device& device) {
    auto made = std::make_shared<Event>(device);
    Status status = device.create_event(made->own);
    if (status.ok()) *event = live<Event>().add(std::move(made));
    return status;
  });
}

// Sets `event` to what `handle` stands for, or refuses.
aclError find(const char* function, const char* argument, aclrtEvent handle,
              std::shared_ptr<Event>& event) {
  if (!handle) return null_pointer(function, argument);
  event = live<Event>().find(handle);
  return event ? ACL_SUCCESS : stale(function, argument, handle);
}

// Whether its moment has come: it was recorded, and the work before it is complete.
Status query(const Event& event, bool& complete) {
  complete = false;
  return event.recorded ? event.device.query_event(event.own, complete) : Status();
}

aclError check_complete(const char* function, const char* argument, const Event& event) {
  bool complete = false;
  if (aclError status = answer(function, query(event, complete))) return status;
  if (complete) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "EE1001: %s: %s has not been %s", function,
              argument, event.recorded ? "reached by its stream" : "recorded");
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
  return on_device(__func__, [&](const Device& device) {
    Status status = device.record_event(found->own, stream);
    if (status.ok()) found->recorded = true;
    return status;
  });
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  std::shared_ptr<Event> found;
  if (aclError status = find(__func__, "event", event, found)) return status;
  return on_device(__func__,
                   [&](const Device& device) { return device.synchronize_event(found->own); });
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  std::shared_ptr<Event> found;
  if (aclError status = find(__func__, "event", event, found)) return status;
  if (aclError status = check_stream(__func__, stream)) return status;
  return on_device(__func__,
                   [&](const Device& device) { return device.wait_event(stream, found->own); });
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  if (!status) return null_pointer(__func__, "status");
  std::shared_ptr<Event> found;
  if (aclError refusal = find(__func__, "event", event, found)) return refusal;
  return on_device(__func__, [&](const Device&) {
    bool complete = false;
    Status queried = query(*found, complete);
    if (queried.ok()) {
      *status = complete ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    }
    return queried;
  });
}

aclError aclrtEventElapsedTime(float* ms, aclrtEvent startEvent, aclrtEvent endEvent) {
  if (!ms) return null_pointer(__func__, "ms");
  const char* function = __func__;
  std::shared_ptr<Event> start, end;
  if (aclError status = find(function, "startEvent", startEvent, start)) return status;
  if (aclError status = find(function, "endEvent", endEvent, end)) return status;
  return guarded(function, [&]() -> aclError {
    if (aclError status = check_complete(function, "startEvent", *start)) return status;
    if (aclError status = check_complete(function, "endEvent", *end)) return status;
    float elapsed = 0;
    const Status measured = start->device.elapsed_time(start->own, end->own, elapsed);
    if (aclError status = answer(function, measured)) return status;
    if (elapsed < 0) {
      return fail(ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL,
                  "EE1001: %s: endEvent was recorded %g ms before startEvent", function,
                  static_cast<double>(-elapsed));
    }
    *ms = elapsed;
    return ACL_SUCCESS;
  });
}

}  // extern "C"
