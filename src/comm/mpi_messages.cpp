// Messages between two ranks, and groups of them.
#include <utility>

#include "comm/mpi_communicator.hpp"

namespace normgrad::comm {
namespace {

constexpr int kTag = 0x4E47;

}  // namespace

Status MpiCommunicator::message(bool outgoing, void* data, size_t bytes, int peer,
                                void* stream) noexcept try {
  const char* name = outgoing ? "send" : "recv";
  if (!broken_.ok()) return failure(name, "the communicator is broken: " + broken_.message());
  NORMGRAD_RETURN_IF_ERROR(check_peer(name, "peer", peer));
  if (bytes > 0 && !data) return null(name, "data");
  NORMGRAD_RETURN_IF_ERROR(check_bytes(name, bytes, 1));
  group_.push_back({outgoing, data, bytes, peer, stream, {}});
  if (depth_ > 0) return {};
  depth_ = 1;
  return group_end();
} catch (const std::bad_alloc&) {
  return {Code::kInternal, "out of memory"};
}

Status MpiCommunicator::group_end() noexcept {
  if (depth_ == 0) return {Code::kBadArgument, "group_end: expected a group_start before it"};
  if (--depth_ > 0) return {};
  std::vector<Message> messages = std::exchange(group_, {});
  if (messages.empty()) return broken_;
  const bool single = messages.size() == 1;
  const char* name = !single ? "group_end" : messages[0].outgoing ? "send" : "recv";
  Status status =
      collective(name, [&](Clock::time_point start) { return exchange(name, messages, start); });
  if (status.code() == Code::kCommunication) {
    for (Message& message : messages) static_cast<void>(message.memory.release());
  }
  return status;
}

// A send is done when the peer has begun to receive: MPI's own buffering would let a rank send to
// one that is dead, and Open MPI ends a process whose connection breaks while sends queue up on it.
Status MpiCommunicator::exchange(const char* name, std::vector<Message>& messages,
                                 Clock::time_point start) {
  for (Message& m : messages) {
    m.memory = std::make_unique_for_overwrite<std::byte[]>(Extent(m.bytes, unit_).stride);
    if (!m.outgoing) continue;
    put_header(m.memory.get(), {.size = m.bytes, .operation = Operation::kMessage});
    NORMGRAD_RETURN_IF_ERROR(copy(data_of(m.memory.get()), m.data, m.bytes, m.stream));
    NORMGRAD_RETURN_IF_ERROR(settle(m.stream));
  }
  std::vector<MPI_Request> requests(messages.size(), MPI_REQUEST_NULL);
  int error = MPI_SUCCESS;
  for (size_t i = 0; i < messages.size() && error == MPI_SUCCESS; ++i) {
    Message& m = messages[i];
    const Extent extent(m.bytes, unit_);
    error = m.outgoing ? MPI_Issend(m.memory.get(), extent.count, extent.type, m.peer, kTag, comm_,
                                    &requests[i])
                       : MPI_Irecv(m.memory.get(), extent.count, extent.type, m.peer, kTag, comm_,
                                   &requests[i]);
  }
  NORMGRAD_RETURN_IF_ERROR(poll(name, error, requests, start, deadline_));
  for (const Message& m : messages) {
    const Header header = header_of(m.memory.get());
    if (header.size == m.bytes && header.operation == Operation::kMessage) continue;
    return failure(name, "rank " + std::to_string(m.peer) + " sent a " + describe(header) +
                             ", expected " + std::to_string(m.bytes) + " bytes");
  }
  for (const Message& m : messages) {
    if (m.outgoing) continue;
    NORMGRAD_RETURN_IF_ERROR(copy(m.data, data_of(m.memory.get()), m.bytes, m.stream));
    NORMGRAD_RETURN_IF_ERROR(settle(m.stream));
  }
  return {};
}

}  // namespace normgrad::comm
