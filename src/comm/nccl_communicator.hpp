// The communicator of NCCL. It is non-blocking: what has to wait for other ranks is in progress
// when NCCL's call returns, and is asked for here until it is done or the deadline has passed.
#pragma once

#include <new>
#include <string>
#include <utility>

#include "comm/nccl_library.hpp"
#include "normgrad/cuda.hpp"
#include "normgrad/nccl.hpp"

namespace normgrad::comm {

using Seconds = std::chrono::duration<double>;

// Makes a GPU the calling thread's until the end of the block: NCCL takes the current device when a
// communicator is made, and the null stream is the current device's.
class OnDevice {
 public:
  explicit OnDevice(int id) : status_(cuda::get_device(before_)) {
    if (status_.ok() && id != before_) status_ = cuda::set_device(id);
  }
  ~OnDevice() {
    if (before_ >= 0) static_cast<void>(cuda::set_device(before_));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  const Status& status() const { return status_; }

 private:
  int before_ = -1;
  Status status_;
};

inline Status out_of_memory() { return {Code::kInternal, "out of memory"}; }

class NcclCommunicator;

// NCCL's groups are the thread's, not a communicator's: how deep it is in them, and a list of those
// that take part.
inline thread_local int group_depth = 0;
inline thread_local NcclCommunicator* grouped = nullptr;

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const Nccl& nccl, int rank, int size, int device, Seconds deadline)
      : nccl_(nccl), rank_(rank), size_(size), device_(device), deadline_(deadline) {}

  // Waits for what is queued, as NCCL's destruction does, but not beyond the deadline.
  ~NcclCommunicator() override {
    if (!comm_) return;
    NcclResult result = broken_.ok() ? nccl_.comm_finalize(comm_) : kNcclSystemError;
    if (result == kNcclInProgress) result = settle();
    if (result == kNcclSuccess) {
      static_cast<void>(nccl_.comm_destroy(comm_));
    } else {
      abort();
    }
  }

  // Creation is begun and ended apart, since several are begun in one group.
  NcclResult begin(const NcclUniqueId& id) {
    NcclConfig config;
    return nccl_.comm_init_rank_config(&comm_, size_, id, rank_, &config);
  }
  Status end(const char* operation, NcclResult result) {
    if (result == kNcclInProgress) result = settle();
    return result == kNcclSuccess ? Status() : fail(operation, result);
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  Device device() const noexcept override { return Device::kCuda; }

  Status all_gather(const void* mine, void* all, size_t bytes, void* stream) noexcept override {
    return call("all_gather", {{"mine", mine}, {"all", all}}, bytes,
                [&] { return nccl_.all_gather(mine, all, bytes, kNcclU8, comm_, stream); });
  }

  Status all_reduce(const void* from, void* to, int64_t count, Element element, Reduction reduction,
                    void* stream) noexcept override {
    return call("all_reduce", {{"from", from}, {"to", to}}, count, [&] {
      return nccl_.all_reduce(from, to, static_cast<size_t>(count), type_of(element),
                              reduction_of(reduction), comm_, stream);
    });
  }

  Status reduce_scatter(const void* from, void* to, int64_t count_each, Element element,
                        Reduction reduction, void* stream) noexcept override {
    return call("reduce_scatter", {{"from", from}, {"to", to}}, count_each, [&] {
      return nccl_.reduce_scatter(from, to, static_cast<size_t>(count_each), type_of(element),
                                  reduction_of(reduction), comm_, stream);
    });
  }

  Status reduce_scatter_v(const void* from, void* to, const int64_t* counts, Element element,
                          Reduction reduction, void* stream) noexcept override;

  Status broadcast(const void* from, void* to, size_t bytes, int root,
                   void* stream) noexcept override {
    const void* const read = rank_ == root ? from : to;
    return call_with("broadcast", "root", root, {{"from", read}, {"to", to}}, bytes, [&] {
      return nccl_.broadcast(from, to, bytes, kNcclU8, root, comm_, stream);
    });
  }

  Status send(const void* data, size_t bytes, int peer, void* stream) noexcept override {
    return call_with("send", "peer", peer, {{"data", data}}, bytes,
                     [&] { return nccl_.send(data, bytes, kNcclU8, peer, comm_, stream); });
  }

  Status recv(void* data, size_t bytes, int peer, void* stream) noexcept override {
    return call_with("recv", "peer", peer, {{"data", data}}, bytes,
                     [&] { return nccl_.recv(data, bytes, kNcclU8, peer, comm_, stream); });
  }

  Status group_start() noexcept override;
  Status group_end() noexcept override;
  Status wait(void* stream) noexcept override;

 private:
  struct Pointer {
    const char* name;
    const void* value;
  };

  template <class Count, class Issue>
  Status call(const char* operation, std::initializer_list<Pointer> pointers, Count count,
              const Issue& issue) noexcept;

  // The same for an operation with a root or a peer.
  template <class Issue>
  Status call_with(const char* operation, const char* name, int peer,
                   std::initializer_list<Pointer> pointers, size_t bytes,
                   const Issue& issue) noexcept try {
    if (peer < 0 || peer >= size_) {
      return {Code::kBadArgument, std::string(operation) + ": " + name +
                                      ": expected a rank below " + std::to_string(size_) +
                                      ", got " + std::to_string(peer)};
    }
    return call(operation, pointers, bytes, issue);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }

  Status refuse_broken(const char* operation) const {
    return {Code::kCommunication,
            std::string(operation) + ": the communicator is broken: " + broken_.message()};
  }
  NcclResult settle() const noexcept;
  Status fail(const char* operation, NcclResult result);
  Status fail(const char* operation, const std::string& why);
  Status end_in_group(NcclResult result);
  void join_group() {
    if (!in_group_) next_in_group_ = std::exchange(grouped, this);
    in_group_ = true;
  }
  void abort() noexcept;

  const Nccl& nccl_;
  const int rank_, size_, device_;
  const Seconds deadline_;
  NcclComm comm_ = nullptr;
  Status broken_;  // the first failure
  bool in_group_ = false;
  NcclCommunicator* next_in_group_ = nullptr;
};

// What every operation does. issue: NcclResult(). Nothing to move is nothing to do.
template <class Count, class Issue>
Status NcclCommunicator::call(const char* operation, std::initializer_list<Pointer> pointers,
                              Count count, const Issue& issue) noexcept try {
  if (!broken_.ok()) return refuse_broken(operation);
  if (count < Count{0}) {
    return {Code::kBadArgument,
            std::string(operation) + ": expected 0 or more elements, got " + std::to_string(count)};
  }
  if (count == 0) return {};
  for (const Pointer& pointer : pointers) {
    if (!pointer.value) {
      return {Code::kNullPointer, std::string(operation) + ": " + pointer.name + " is null"};
    }
  }
  const NcclResult result = issue();
  if (group_depth == 0) return end(operation, result);
  if (result != kNcclSuccess && result != kNcclInProgress) return fail(operation, result);
  join_group();
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace normgrad::comm
