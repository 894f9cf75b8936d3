#include <algorithm>
#include <cmath>
#include <cstdio>
#include <thread>

#include "comm/mpi_communicator.hpp"
#include "normgrad/cuda.hpp"

namespace normgrad {
namespace comm {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 48;

std::string sentence_of(int error) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(error, text, &length);
  return "MPI says '" + std::string(text, static_cast<size_t>(length)) + "'";
}

// Errors of a communicator are returned while one of these is there.
class Returning {
 public:
  explicit Returning(MPI_Comm comm) : comm_(comm) {
    MPI_Comm_get_errhandler(comm_, &handler_);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  ~Returning() {
    MPI_Comm_set_errhandler(comm_, handler_);
    MPI_Errhandler_free(&handler_);
  }
  Returning(const Returning&) = delete;
  Returning& operator=(const Returning&) = delete;

 private:
  MPI_Comm comm_;
  MPI_Errhandler handler_;
};

}  // namespace

// Open MPI 4 raises the errors of nonblocking collectives on MPI_COMM_WORLD. The first 10 ms only
// give way to other processes; a rank that comes later is met by one poll in 100 us.
Status poll(const char* operation, int error, std::span<MPI_Request> requests,
            Clock::time_point start, Seconds deadline) {
  const Returning world(MPI_COMM_WORLD);
  while (error == MPI_SUCCESS) {
    int done = 0;
    error =
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    if (error != MPI_SUCCESS) break;
    if (done) return {};
    const Seconds passed = Clock::now() - start;
    if (passed > deadline) {
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, "%g", deadline.count());
      return failure(operation, std::string("not done within the deadline of ") + seconds +
                                    " s: a rank died, stalled or did not come");
    }
    if (passed < Seconds(0.01)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  return failure(operation, sentence_of(error));
}

Status check_bytes(const char* operation, size_t bytes, int ranks) {
  if (bytes <= kMaxBytes / static_cast<size_t>(ranks)) return {};
  return {Code::kBadShape, std::string(operation) +
                               ": expected at most 2^48 bytes over all ranks, " + "got " +
                               std::to_string(bytes) + " of each"};
}

Status MpiCommunicator::check_peer(const char* operation, const char* what, int peer) const {
  if (peer >= 0 && peer < size_) return {};
  return {Code::kBadArgument, std::string(operation) + ": " + what + ": expected a rank below " +
                                  std::to_string(size_) + ", got " + std::to_string(peer)};
}

Status MpiCommunicator::check_reduction(const char* operation, const void* from, const void* to,
                                        int64_t count, Element element, Reduction reduction) const {
  if (element > Element::kU64 || reduction > Reduction::kAverage) {
    return {Code::kBadArgument, std::string(operation) + ": an element or reduction that is none"};
  }
  if (count < 0 || static_cast<uint64_t>(count) > kMaxBytes / size_of(element)) {
    return {Code::kBadShape, std::string(operation) + ": expected 0 to 2^48 bytes, got " +
                                 std::to_string(count) + " elements"};
  }
  if (count > 0 && !from) return null(operation, "from");
  if (count > 0 && !to) return null(operation, "to");
  return check_bytes(operation, static_cast<size_t>(count) * size_of(element), size_);
}

std::byte* MpiCommunicator::staging(size_t bytes) {
  if (bytes > staging_bytes_) {
    staging_.reset();
    staging_bytes_ = 0;
    staging_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    staging_bytes_ = bytes;
  }
  return staging_.get();
}

Status MpiCommunicator::copy(void* to, const void* from, size_t bytes, void* stream) const {
  if (bytes == 0) return {};
  if (device_ == Device::kCuda) return cuda::copy(to, from, bytes, stream);
  std::memcpy(to, from, bytes);
  return {};
}

Status MpiCommunicator::settle(void* stream) const {
  return device_ == Device::kCuda ? cuda::synchronize_stream(stream) : Status();
}

Status MpiCommunicator::compare(const std::byte* messages, size_t stride,
                                const Header& expected) const {
  for (int rank = 0; rank < size_; ++rank) {
    const Header header = header_of(messages + static_cast<size_t>(rank) * stride);
    if (header == expected) continue;
    const bool another = describe(header) == describe(expected);
    return failure(name_of(expected.operation),
                   "rank " + std::to_string(rank) + " is at " + describe(header) +
                       (another ? ", call " + std::to_string(header.call) : "") + "; rank " +
                       std::to_string(rank_) + " is at " + describe(expected) +
                       (another ? ", call " + std::to_string(expected.call) : ""));
  }
  return {};
}

}  // namespace comm

namespace {

using namespace comm;

// A duplicate of `mpi` on which errors are returned, also while it is being made.
Status duplicate(MPI_Comm mpi, Seconds deadline, MPI_Comm& copy) {
  const Returning parent(mpi);
  const NoSigpipe guard;
  MPI_Request request;
  // MPI writes the handle when the request is done, which may be never.
  auto made = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  const int error = MPI_Comm_idup(mpi, made.get(), &request);
  Status status = poll("mpi_communicator", error, {&request, 1}, Clock::now(), deadline);
  if (!status.ok()) {
    static_cast<void>(made.release());
    return status;
  }
  MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN);
  copy = *made;
  return {};
}

Status refusal(std::string sentence) {
  return {Code::kBadArgument, "mpi_communicator: " + std::move(sentence)};
}

}  // namespace

Status mpi_communicator(MPI_Comm mpi, Seconds deadline, std::unique_ptr<Communicator>& communicator,
                        Device device) noexcept try {
  int initialized = 0, finalized = 0, between = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (!initialized || finalized) return refusal("expected MPI between MPI_Init and MPI_Finalize");
  if (mpi == MPI_COMM_NULL) return refusal("mpi: expected a communicator, got MPI_COMM_NULL");
  MPI_Comm_test_inter(mpi, &between);
  if (between) return refusal("mpi: expected an intracommunicator, got an intercommunicator");
  if (!(deadline.count() > 0) || !std::isfinite(deadline.count())) {
    return refusal("deadline: expected seconds above 0, got " + std::to_string(deadline.count()));
  }
  if (device == Device::kCuda && cuda::device_count() == 0) {
    return {Code::kUnsupportedDevice, "mpi_communicator: expected a CUDA device, found none"};
  }
  MPI_Comm copy = MPI_COMM_NULL;
  NORMGRAD_RETURN_IF_ERROR(duplicate(mpi, deadline, copy));
  communicator = std::make_unique<MpiCommunicator>(copy, deadline, device);
  return {};
} catch (const std::bad_alloc&) {
  return {Code::kInternal, "out of memory"};
}

}  // namespace normgrad
