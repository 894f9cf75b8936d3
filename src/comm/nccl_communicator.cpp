#include "comm/nccl_communicator.hpp"

#include <cstdio>
#include <future>
#include <thread>

namespace normgrad::comm {
namespace {

using Clock = std::chrono::steady_clock;

// The first 10 ms only give way to other threads; what comes later is met by one look in 100 us.
class Patience {
 public:
  explicit Patience(Seconds deadline) : deadline_(deadline) {}
  bool over() const { return Clock::now() - start_ > deadline_; }
  void pause() const {
    if (Clock::now() - start_ < std::chrono::milliseconds(10)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

 private:
  const Clock::time_point start_ = Clock::now();
  const Seconds deadline_;
};

}  // namespace

// Asks until NCCL is no longer at it; kNcclInProgress if it still is when the deadline has passed.
NcclResult NcclCommunicator::settle() const noexcept {
  const Patience patience(deadline_);
  while (true) {
    const bool last = patience.over();
    NcclResult state = kNcclInProgress;
    const NcclResult asked = nccl_.comm_get_async_error(comm_, &state);
    if (asked != kNcclSuccess) return asked;
    if (state != kNcclInProgress || last) return state;
    patience.pause();
  }
}

Status NcclCommunicator::fail(const char* operation, NcclResult result) {
  if (result == kNcclInProgress) {
    char sentence[128];
    std::snprintf(sentence, sizeof sentence,
                  "not done within the deadline of %g s: a rank died, stalled or did not come",
                  deadline_.count());
    return fail(operation, sentence);
  }
  return fail(operation, explain(nccl_, result, comm_));
}

// NCCL frees memory of the device then, which waits for whatever else runs there. What takes more
// than a second is left to itself: the caller has a deadline.
void NcclCommunicator::abort() noexcept {
  const NcclComm comm = std::exchange(comm_, nullptr);
  if (!comm) return;
  try {
    auto done = std::make_shared<std::promise<void>>();
    const std::future<void> ended = done->get_future();
    std::thread([comm, done, &nccl = nccl_, device = device_] {
      static_cast<void>(cuda::set_device(device));
      static_cast<void>(nccl.comm_abort(comm));
      done->set_value();
    }).detach();
    static_cast<void>(ended.wait_for(std::chrono::seconds(1)));
  } catch (const std::exception&) {  // no thread to be had
    static_cast<void>(nccl_.comm_abort(comm));
  }
}

// In a group NCCL still holds the communicator: group_end aborts it.
Status NcclCommunicator::fail(const char* operation, const std::string& why) {
  broken_ = Status(Code::kCommunication, std::string(operation) + ": " + why);
  if (group_depth > 0) {
    join_group();
  } else {
    abort();
  }
  return broken_;
}

// One reduction per rank, to that rank, all at once.
Status NcclCommunicator::reduce_scatter_v(const void* from, void* to, const int64_t* counts,
                                          Element element, Reduction reduction,
                                          void* stream) noexcept {
  if (!counts) return {Code::kNullPointer, "reduce_scatter_v: counts is null"};
  int64_t total = 0;
  for (int root = 0; root < size_; ++root) {
    if (counts[root] < 0 || counts[root] > INT64_MAX / 8 - total) {
      return {Code::kBadArgument, "reduce_scatter_v: counts: expected 0 to 2^60 in all"};
    }
    total += counts[root];
  }
  const void* const written = counts[rank_] > 0 ? to : from;
  return call("reduce_scatter_v", {{"from", from}, {"to", written}}, total, [&] {
    const auto* part = static_cast<const std::byte*>(from);
    NcclResult result = nccl_.group_start();
    if (result != kNcclSuccess) return result;
    for (int root = 0; root < size_; ++root) {
      const auto count = static_cast<size_t>(counts[root]);
      if (count == 0) continue;
      const NcclResult issued = nccl_.reduce(part, to, count, type_of(element),
                                             reduction_of(reduction), root, comm_, stream);
      if (issued != kNcclSuccess && issued != kNcclInProgress) result = issued;
      part += count * size_of(element);
    }
    const NcclResult ended = nccl_.group_end();
    return result == kNcclSuccess ? ended : result;
  });
}

Status NcclCommunicator::group_start() noexcept try {
  if (!broken_.ok()) return refuse_broken("group_start");
  const NcclResult result = nccl_.group_start();
  if (result != kNcclSuccess) return fail("group_start", result);
  ++group_depth;
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// A communicator that broke in the group ends it as well: NCCL has it open for the thread.
Status NcclCommunicator::group_end() noexcept try {
  if (group_depth == 0) {
    return {Code::kBadArgument, "group_end: expected a group_start before it"};
  }
  const NcclResult result = nccl_.group_end();
  if (--group_depth > 0) return {};
  Status status;
  while (NcclCommunicator* each = grouped) {
    grouped = each->next_in_group_;
    each->in_group_ = false;
    const Status ended = each->end_in_group(result);
    if (status.ok()) status = ended;
  }
  return status;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// The group's answer is in progress while any of its communicators is.
Status NcclCommunicator::end_in_group(NcclResult result) {
  if (broken_.ok()) return end("group_end", result == kNcclSuccess ? kNcclInProgress : result);
  abort();
  return broken_;
}

Status NcclCommunicator::wait(void* stream) noexcept try {
  if (!broken_.ok()) return refuse_broken("wait");
  if (group_depth > 0) return {Code::kBadArgument, "wait: expected no group, got one"};
  const OnDevice on_device(device_);
  if (!on_device.status().ok()) return on_device.status();
  const Patience patience(deadline_);
  while (true) {
    const bool last = patience.over();
    bool complete = false;
    const Status status = cuda::query_stream(stream, complete);
    NcclResult state = kNcclInProgress;
    const NcclResult asked = nccl_.comm_get_async_error(comm_, &state);
    if (asked != kNcclSuccess) return fail("wait", asked);
    if (state != kNcclSuccess && state != kNcclInProgress) return fail("wait", state);
    if (!status.ok()) return fail("wait", status.message());
    if (complete) return {};
    if (last) return fail("wait", kNcclInProgress);
    patience.pause();
  }
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace normgrad::comm
