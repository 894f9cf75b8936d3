// A job whose rank 1 is killed or stopped while it runs synchronized BatchNorm, or (GONE) killed
// before the others send it something; tests/mpi_fault_test.sh starts it. Every other rank must get
// an error within the deadline and 2 s, with its outputs untouched, and then end in its own way.
//
//   mpi_fault KILL|STOP|GONE DEADLINE MILLISECONDS exit|abort
//
// Ranks that saw what they should print "rank R: as it should be"; mpirun's own status says nothing
// about them.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "normgrad/mpi.hpp"
#include "normgrad/sync_batch_norm.hpp"

namespace {

using namespace normgrad;
using Clock = std::chrono::steady_clock;

constexpr int64_t kSamples = 8, kChannels = 64, kLength = 16;
constexpr float kUntouched = -77;

struct Pass {
  SyncPlan plan;
  Buffers buffers;
  std::vector<std::vector<float>*> outputs;
};

// Until a pass fails; how long that pass took.
double run_until_failure(const std::vector<Pass>& passes, Status& failure, bool& untouched) {
  size_t most = 0;
  for (const Pass& pass : passes) most = std::max(most, pass.plan.workspace_size());
  std::vector<std::byte> workspace(most);
  for (;;) {
    for (const Pass& pass : passes) {
      for (std::vector<float>* output : pass.outputs) {
        std::fill(output->begin(), output->end(), kUntouched);
      }
      const auto start = Clock::now();
      failure = pass.plan.execute(pass.buffers, workspace.data(), workspace.size());
      if (failure.ok()) continue;
      untouched = true;
      for (const std::vector<float>* output : pass.outputs) {
        for (const float value : *output) untouched = untouched && value == kUntouched;
      }
      return std::chrono::duration<double>(Clock::now() - start).count();
    }
  }
}

// To a rank that died while nobody asked MPI: over TCP the first write is answered by a reset, the
// second raises SIGPIPE, and the third connects anew.
double send_all(Communicator& comm, int peer, Status& failure) {
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const char byte = 0;
  const auto start = Clock::now();
  failure = comm.group_start();
  for (int i = 0; i < 8 && failure.ok(); ++i) failure = comm.send(&byte, 1, peer, nullptr);
  if (failure.ok()) failure = comm.group_end();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int signal = std::strcmp(argv[1], "STOP") == 0 ? SIGSTOP : SIGKILL;
  const bool gone = std::strcmp(argv[1], "GONE") == 0;
  const double deadline = std::atof(argv[2]);
  const auto delay = std::chrono::microseconds(static_cast<int64_t>(std::atof(argv[3]) * 1000));
  MPI_Init(&argc, &argv);
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  // Processes start far apart on a busy machine: they meet before the deadline counts.
  std::vector<pid_t> pids(static_cast<size_t>(ranks));
  const pid_t pid = getpid();
  MPI_Allgather(&pid, sizeof pid, MPI_BYTE, pids.data(), sizeof pid, MPI_BYTE, MPI_COMM_WORLD);
  std::unique_ptr<Communicator> comm;
  if (!mpi_communicator(MPI_COMM_WORLD, std::chrono::duration<double>(deadline), comm).ok()) {
    return 2;
  }

  const Tensor x{DType::kF32, {kSamples, kChannels, kLength}}, vector{DType::kF32, {kChannels}};
  const BatchNorm forward{
      .x = x, .y = x, .mean = vector, .spread = vector, .statistics = Statistics::kMeanRstd};
  const BatchNormBackward backward{.x = x,
                                   .dy = x,
                                   .statistics = Statistics::kMeanRstd,
                                   .mean = vector,
                                   .spread = vector,
                                   .dx = x,
                                   .dgamma = vector,
                                   .dbeta = vector};
  std::vector<float> data(kSamples * kChannels * kLength), y(data.size()), dx(data.size());
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 101);
  std::vector<float> mean(kChannels), rstd(kChannels), dgamma(kChannels), dbeta(kChannels);
  const std::vector<float> given_mean(kChannels, 50), given_rstd(kChannels, 0.03f);
  const SyncBatchNorm layer(*comm, forward);
  const std::vector<Pass> passes = {
      {layer.plan(forward),
       {.x = data.data(), .y = y.data(), .saved_mean = mean.data(), .saved_spread = rstd.data()},
       {&y, &mean, &rstd}},
      {layer.plan(backward),
       {.x = data.data(),
        .dy = data.data(),
        .mean = given_mean.data(),
        .spread = given_rstd.data(),
        .dx = dx.data(),
        .dgamma = dgamma.data(),
        .dbeta = dbeta.data()},
       {&dx, &dgamma, &dbeta}}};

  if (comm->rank() == 1) {
    std::thread([=] {
      std::this_thread::sleep_for(delay);
      kill(pid, signal);
    }).detach();
  }
  if (comm->rank() == 1 && gone) pause();
  Status failure;
  bool untouched = gone;
  const double seconds =
      gone ? send_all(*comm, 1, failure) : run_until_failure(passes, failure, untouched);
  // A rank that was stopped for good does not get here; one that somebody continues has nothing to
  // say.
  if (comm->rank() == 1) std::_Exit(0);
  const auto asked = Clock::now();
  const Status refused = comm->all_gather(nullptr, nullptr, 0, nullptr);
  const bool at_once = Clock::now() - asked < std::chrono::milliseconds(500);
  const bool right = failure.code() == Code::kCommunication && seconds < deadline + 2 &&
                     untouched && refused.code() == Code::kCommunication && at_once;
  std::printf("rank %d: %s (%.3f s, outputs %s: %s)\n", comm->rank(),
              right ? "as it should be" : "WRONG", seconds, untouched ? "untouched" : "CHANGED",
              failure.message().c_str());
  std::fflush(stdout);
  // The stopped rank still is a process; only its end ends the job.
  if (signal == SIGSTOP && std::strcmp(argv[4], "exit") == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // for the others to find out
    if (comm->rank() == 0) kill(pids[1], SIGKILL);
  }
  if (std::strcmp(argv[4], "abort") == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
  std::_Exit(right ? 0 : 1);
}
