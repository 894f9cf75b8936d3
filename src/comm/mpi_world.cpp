// MPI_COMM_WORLD for programs that do not know MPI.
#include "comm/mpi_world.hpp"

#include <cstdlib>
#include <mutex>
#include <string>

#include "comm/mpi_communicator.hpp"
#include "normgrad/mpi.hpp"

namespace normgrad::comm {
namespace {

std::mutex mutex;
Seconds last_deadline{};  // the newest communicator's

// Without MPI_Finalize mpirun takes a process for failed; with it, a process waits for all others,
// also for those that never come. So they meet first, for as long as the deadline allows.
void finalize() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized || rank_lost) return;
  const NoSigpipe guard;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Request request = MPI_REQUEST_NULL;
  const int error = MPI_Ibarrier(MPI_COMM_WORLD, &request);
  if (poll("exit", error, {&request, 1}, Clock::now(), last_deadline).ok()) MPI_Finalize();
}

Status refusal(std::string sentence) { return {Code::kBadArgument, std::move(sentence)}; }

Status initialize(Seconds deadline) {
  const std::lock_guard lock(mutex);
  int initialized = 0, finalized = 0, provided = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized) return refusal("MPI: expected it before MPI_Finalize");
  if (!initialized) {
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
      return {Code::kCommunication, "MPI: MPI_Init_thread failed"};
    }
    std::atexit(finalize);
  }
  last_deadline = deadline;
  return {};
}

Status make_world(int size, int rank, Seconds deadline,
                  std::unique_ptr<Communicator>& communicator) {
  if (Status bad = initialize(deadline); !bad.ok()) return bad;
  int world_size = 1, world_rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  const bool alone = size == 1;
  if (!alone && size != world_size) {
    return refusal("size: expected " + std::to_string(world_size) +
                   ", as many as there are processes, or 1, got " + std::to_string(size));
  }
  if (const int expected = alone ? 0 : world_rank; rank != expected) {
    return refusal("rank: expected " + std::to_string(expected) + ", which this process is, got " +
                   std::to_string(rank));
  }
  Status status = mpi_communicator(alone ? MPI_COMM_SELF : MPI_COMM_WORLD, deadline, communicator);
  if (status.code() == Code::kCommunication) rank_lost = true;
  return status;
}

}  // namespace
}  // namespace normgrad::comm

extern "C" NORMGRAD_EXPORT void normgrad_mpi_world(
    int size, int rank, normgrad::comm::Seconds deadline,
    std::unique_ptr<normgrad::Communicator>& communicator, normgrad::Status& status) noexcept try {
  status = normgrad::comm::make_world(size, rank, deadline, communicator);
} catch (const std::bad_alloc&) {
  status = {normgrad::Code::kInternal, "out of memory"};
}
