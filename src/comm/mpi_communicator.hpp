// Every operation is a nonblocking one of MPI, polled until it is done or the deadline has passed,
// on staging memory of ours: MPI may read and write the memory of an operation that never ends for
// as long as the process lives. What arrives is copied to the caller when all of it is there.
#pragma once

#include <signal.h>

#include <atomic>
#include <chrono>
#include <new>
#include <span>
#include <vector>

#include "comm/mpi_message.hpp"
#include "normgrad/mpi.hpp"
#include "ops/return_if_error.hpp"

namespace normgrad::comm {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using Memory = std::unique_ptr<std::byte[]>;

// Set by the first communicator that breaks: MPI_Finalize may then never return.
inline std::atomic<bool> rank_lost = false;

// A write to a rank that died raises SIGPIPE, which would end this process too: Open MPI's TCP
// leaves that to the program. It does not reach this thread while one of these is there. Three
// system calls, 0.8 us on a virtual machine.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  // Where it was blocked before, one that is pending may be somebody else's.
  ~NoSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec at_once{};
    sigtimedwait(&sigpipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t sigpipe_, before_;
};

// Sentences that begin with the operation.
inline Status failure(const char* operation, const std::string& sentence) {
  return {Code::kCommunication, std::string(operation) + ": " + sentence};
}
inline Status null(const char* operation, const char* argument) {
  return {Code::kNullPointer, std::string(operation) + ": " + argument + " is null"};
}
Status check_bytes(const char* operation, size_t bytes, int ranks);

// Until the requests are done: kCommunication when MPI reports an error, or the deadline passes.
Status poll(const char* operation, int error, std::span<MPI_Request> requests,
            Clock::time_point start, Seconds deadline);

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, Seconds deadline, Device device)
      : comm_(comm), deadline_(deadline), device_(device) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    MPI_Type_contiguous(static_cast<int>(Extent::kUnit), MPI_BYTE, &unit_);
    MPI_Type_commit(&unit_);
  }

  // What a broken communicator leaves behind belongs to operations that may still run.
  ~MpiCommunicator() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized || !broken_.ok()) return;
    MPI_Type_free(&unit_);
    MPI_Comm_free(&comm_);
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  Device device() const noexcept override { return device_; }

  Status all_gather(const void* mine, void* all, size_t bytes, void* stream) noexcept override;
  Status all_reduce(const void* from, void* to, int64_t count, Element element, Reduction reduction,
                    void* stream) noexcept override;
  Status reduce_scatter(const void* from, void* to, int64_t count_each, Element element,
                        Reduction reduction, void* stream) noexcept override;
  Status broadcast(const void* from, void* to, size_t bytes, int root,
                   void* stream) noexcept override;
  Status send(const void* data, size_t bytes, int peer, void* stream) noexcept override {
    return message(true, const_cast<void*>(data), bytes, peer, stream);
  }
  Status recv(void* data, size_t bytes, int peer, void* stream) noexcept override {
    return message(false, data, bytes, peer, stream);
  }
  Status group_start() noexcept override {
    ++depth_;
    return {};
  }
  Status group_end() noexcept override;
  Status wait(void*) noexcept override { return broken_; }

 private:
  // A send or a receive that waits for the end of its group.
  struct Message {
    bool outgoing;
    void* data;
    size_t bytes;
    int peer;
    void* stream;
    Memory memory;
  };

  template <class Function>
  Status collective(const char* operation, const Function& function) noexcept;
  Status check_reduction(const char* operation, const void* from, const void* to, int64_t count,
                         Element element, Reduction reduction) const;
  Status check_peer(const char* operation, const char* what, int peer) const;
  Status message(bool outgoing, void* data, size_t bytes, int peer, void* stream) noexcept;
  Status exchange(const char* name, std::vector<Message>& messages, Clock::time_point start);

  Status copy(void* to, const void* from, size_t bytes, void* stream) const;
  Status settle(void* stream) const;
  Status scatter_reduce(Header header, const void* from, int64_t each, int64_t count,
                        const Extent& extent, Clock::time_point start, void* stream);
  Status compare(const std::byte* messages, size_t stride, const Header& expected) const;
  std::byte* staging(size_t bytes);

  MPI_Comm comm_;
  MPI_Datatype unit_ = MPI_DATATYPE_NULL;
  Seconds deadline_;
  Device device_;
  int rank_ = 0, size_ = 1;
  Status broken_;
  uint32_t calls_ = 0;
  Memory staging_;
  size_t staging_bytes_ = 0;
  int depth_ = 0;
  std::vector<Message> group_;
};

// The message of a rank among those of all.
inline std::byte* message_of(std::byte* messages, const Extent& extent, int rank) {
  return messages + extent.stride * static_cast<size_t>(rank);
}

// What all collectives share. A failure of communication is for good, and keeps the memory.
template <class Function>
Status MpiCommunicator::collective(const char* operation, const Function& function) noexcept try {
  if (!broken_.ok()) return failure(operation, "the communicator is broken: " + broken_.message());
  if (depth_ > 0) {
    return {Code::kBadArgument, std::string(operation) + ": expected no group, got one of " +
                                    std::to_string(group_.size()) + " messages"};
  }
  const NoSigpipe guard;
  Status status = function(Clock::now());
  if (status.code() == Code::kCommunication) {
    broken_ = status;
    rank_lost = true;
    static_cast<void>(staging_.release());
  }
  return status;
} catch (const std::bad_alloc&) {
  return {Code::kInternal, "out of memory"};
}

}  // namespace normgrad::comm
