// A job whose rank 1 is killed or stopped while it communicates through infiniccl, as mpi_fault.cpp
// does with synchronized BatchNorm; tests/mpi_fault_test.sh starts both.
//
//   infiniccl_fault KILL|STOP DEADLINE MILLISECONDS exit|abort
//
// `exit` ends through exit(), where infiniccl must not wait for the lost rank; `abort` at once.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "infiniccl/normgrad.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kEach = 1000;
constexpr int32_t kUntouched = -77;
constexpr infiniDtype_t kType = INFINI_DTYPE_I32;

struct Operation {
  const char* name;
  std::function<infiniStatus_t()> call;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Until an operation fails; how long that one took. `then` comes after the first round, when all
// ranks are at it.
double run_until_failure(const std::vector<Operation>& operations, std::vector<int32_t>& to,
                         const std::function<void()>& then, const Operation*& failed,
                         infiniStatus_t& status) {
  for (int round = 0;; ++round) {
    if (round == 1) then();
    for (const Operation& operation : operations) {
      std::fill(to.begin(), to.end(), kUntouched);
      failed = &operation;
      const auto start = Clock::now();
      status = operation.call();
      if (status != INFINI_STATUS_SUCCESS) return seconds_since(start);
    }
  }
}

// The ring closes a group however its calls went: nothing is open when the next begins.
infiniStatus_t pass_on(infinicclComm_t comm, int next, int previous, const int32_t* from,
                       int32_t* to) {
  infiniStatus_t status = infinicclGroupStart(comm);
  if (status == 0) status = infinicclSend(from, kEach, kType, next, comm, nullptr);
  if (status == 0) status = infinicclRecv(to, kEach, kType, previous, comm, nullptr);
  const infiniStatus_t ended = infinicclGroupEnd(comm);
  return status == 0 ? ended : status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int signal = std::strcmp(argv[1], "KILL") == 0 ? SIGKILL : SIGSTOP;
  const double deadline = std::atof(argv[2]);
  const auto delay = std::chrono::microseconds(static_cast<int64_t>(std::atof(argv[3]) * 1000));
  const int rank = std::atoi(std::getenv("OMPI_COMM_WORLD_RANK"));
  const int ranks = std::atoi(std::getenv("OMPI_COMM_WORLD_SIZE"));
  // Processes start seconds apart on a busy machine: they meet before the deadline is short.
  infinicclUniqueId_t id;
  infinicclComm_t meeting = nullptr, comm = nullptr;
  std::vector<int32_t> pids(static_cast<size_t>(ranks));
  const int32_t pid = getpid();
  setenv("NORMGRAD_COMM_DEADLINE", "15", 1);
  if (infinicclGetUniqueId(&id) || infinicclCommInitRank(&meeting, ranks, id, rank)) return 2;
  if (infinicclAllGather(&pid, pids.data(), 1, kType, meeting, nullptr)) return 2;
  setenv("NORMGRAD_COMM_DEADLINE", argv[2], 1);
  if (infinicclCommInitRank(&comm, ranks, id, rank)) {
    std::printf("rank %d: WRONG: %s\n", rank, normgradGetLastError());
    return 2;
  }

  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  std::vector<int32_t> data(kEach * static_cast<size_t>(ranks)), output(data.size());
  std::iota(data.begin(), data.end(), rank);
  std::vector<size_t> counts(static_cast<size_t>(ranks), kEach / 2);
  const int32_t* const from = data.data();
  int32_t* const to = output.data();
  const std::vector<Operation> operations = {
      {"AllReduce",
       [=] { return infinicclAllReduce(from, to, kEach, kType, INFINICCL_SUM, comm, nullptr); }},
      {"AllGather", [=] { return infinicclAllGather(from, to, kEach, kType, comm, nullptr); }},
      {"AllGatherV",
       [=, c = counts.data()] {
         return infinicclAllGatherV(from, to, c, ranks, kType, comm, nullptr);
       }},
      {"ReduceScatter",
       [=] {
         return infinicclReduceScatter(from, to, kEach, kType, INFINICCL_MAX, comm, nullptr);
       }},
      {"ReduceScatterV",
       [=, c = counts.data()] {
         return infinicclReduceScatterV(from, to, c, ranks, kType, INFINICCL_SUM, comm, nullptr);
       }},
      {"Broadcast", [=] { return infinicclBroadcast(from, to, kEach, kType, 1, comm, nullptr); }},
      {"Send and Recv", [=] { return pass_on(comm, next, previous, from, to); }}};

  const auto end_rank_1 = [=] {
    if (rank != 1) return;
    std::thread([=] {
      std::this_thread::sleep_for(delay);
      kill(pid, signal);
    }).detach();
  };
  const Operation* failed = nullptr;
  infiniStatus_t status = INFINI_STATUS_SUCCESS;
  const double seconds = run_until_failure(operations, output, end_rank_1, failed, status);
  if (rank == 1) std::_Exit(0);
  const std::string sentence = normgradGetLastError();
  const bool untouched =
      std::all_of(output.begin(), output.end(), [](int32_t value) { return value == kUntouched; });

  bool refused = true;
  const auto asked = Clock::now();
  for (const Operation& operation : operations) {
    refused = operation.call() == INFINI_STATUS_INTERNAL_ERROR && refused;
  }
  const bool at_once = seconds_since(asked) < 0.5;
  const bool destroyed = infinicclCommDestroy(comm) == INFINI_STATUS_SUCCESS;
  const bool right = status == INFINI_STATUS_INTERNAL_ERROR && seconds < deadline + 2 &&
                     untouched && refused && at_once && destroyed;
  std::printf("rank %d: %s (%s, %.3f s, outputs %s, later calls %s: %s)\n", rank,
              right ? "as it should be" : "WRONG", failed->name, seconds,
              untouched ? "untouched" : "CHANGED",
              !refused   ? "NOT REFUSED"
              : !at_once ? "REFUSED LATE"
                         : "refused",
              sentence.c_str());
  std::fflush(stdout);
  // The stopped rank still is a process; only its end ends the job.
  if (signal == SIGSTOP) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // for the others to find out
    if (rank == 0) kill(pids[1], SIGKILL);
  }
  if (std::strcmp(argv[4], "abort") == 0) std::_Exit(right ? 0 : 1);
  return right ? 0 : 1;
}
