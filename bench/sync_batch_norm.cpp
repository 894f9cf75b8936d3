// What synchronization adds to BatchNorm, and what a message costs, under mpirun:
//
//   mpirun -n 4 bench_sync_batch_norm [SECONDS]      per measurement; 1 unless given
//
// Every rank has the same amount of work and all run at the same time; a time is the median over
// the repetitions of the slowest rank.
#include "normgrad/sync_batch_norm.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "normgrad/mpi.hpp"
#include "normgrad/normgrad.hpp"

namespace {

using namespace normgrad;

double budget = 1;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Microseconds. The number of repetitions is the same on all ranks.
double measure(const std::function<void()>& call) {
  call();
  double best = 1e9;
  for (double spent = 0; spent < budget;) {
    MPI_Barrier(MPI_COMM_WORLD);
    double mine[2] = {-now(), 0}, all[2];
    call();
    mine[1] = now();
    MPI_Allreduce(mine, all, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    const double passed = all[1] + all[0];
    best = std::min(best, passed);
    spent += passed;
  }
  return best * 1e6;
}

void check(const Status& status) {
  if (!status.ok()) throw Error(status);
}

// Forward and backward, in one process and over all of them.
void layers(Communicator& comm, const std::vector<int64_t>& shape) {
  const Tensor x{DType::kF32, shape}, vector{DType::kF32, {shape[1]}};
  const BatchNorm forward{.x = x,
                          .gamma = vector,
                          .beta = vector,
                          .y = x,
                          .mean = vector,
                          .spread = vector,
                          .statistics = Statistics::kMeanRstd};
  const BatchNormBackward backward{.x = x,
                                   .dy = x,
                                   .gamma = vector,
                                   .statistics = Statistics::kMeanRstd,
                                   .mean = vector,
                                   .spread = vector,
                                   .dx = x,
                                   .dgamma = vector,
                                   .dbeta = vector};
  size_t elements = 1;
  for (const int64_t extent : shape) elements *= static_cast<size_t>(extent);
  const auto channels = static_cast<size_t>(shape[1]);
  std::vector<float> data(elements), dy(elements), y(elements), dx(elements);
  for (size_t i = 0; i < elements; ++i) {
    data[i] = static_cast<float>(i % 1013) * 0.01f;
    dy[i] = static_cast<float>(i % 509) * 0.001f;
  }
  std::vector<float> gamma(channels, 1), beta(channels, 0), mean(channels), rstd(channels);
  std::vector<float> dgamma(channels), dbeta(channels);
  const Buffers buffers{.x = data.data(),
                        .dy = dy.data(),
                        .gamma = gamma.data(),
                        .mean = mean.data(),
                        .spread = rstd.data(),
                        .dx = dx.data(),
                        .dgamma = dgamma.data(),
                        .dbeta = dbeta.data(),
                        .beta = beta.data(),
                        .y = y.data(),
                        .saved_mean = mean.data(),
                        .saved_spread = rstd.data()};
  std::vector<std::byte> workspace;
  const auto time = [&](const auto& plan) {
    workspace.resize(std::max(workspace.size(), plan.workspace_size()));
    return measure([&] { plan.run(buffers, workspace.data(), workspace.size()); });
  };
  const SyncBatchNorm layer(comm, forward);
  const double local[] = {time(Plan(forward)), time(Plan(backward))};
  const double synced[] = {time(layer.plan(forward)), time(layer.plan(backward))};
  const size_t bytes = 16 + 16 * channels;
  const std::vector<std::byte> mine(bytes);
  std::vector<std::byte> all(bytes * static_cast<size_t>(comm.size()));
  const double gather =
      measure([&] { check(comm.all_gather(mine.data(), all.data(), bytes, nullptr)); });
  if (comm.rank() != 0) return;
  std::string name;
  for (const int64_t extent : shape) name += (name.empty() ? "" : "x") + std::to_string(extent);
  std::printf("| %s | %zu | %.0f | %.0f | %+.0f | %.0f | %.0f | %+.0f | %.0f |\n", name.c_str(),
              bytes, local[0], synced[0], synced[0] - local[0], local[1], synced[1],
              synced[1] - local[1], gather);
  std::fflush(stdout);
}

void messages(Communicator& comm) {
  if (comm.rank() == 0)
    std::printf(
        "\n| bytes of each rank | all_gather us | all_reduce of as many bytes us "
        "|\n|---|---|---|\n");
  for (const size_t bytes : {size_t{16}, size_t{1} << 10, size_t{1} << 12, size_t{1} << 14,
                             size_t{1} << 16, size_t{1} << 18, size_t{1} << 20}) {
    const std::vector<std::byte> mine(bytes);
    std::vector<std::byte> all(bytes * static_cast<size_t>(comm.size()));
    const double gather =
        measure([&] { check(comm.all_gather(mine.data(), all.data(), bytes, nullptr)); });
    const double reduce = measure([&] {
      check(comm.all_reduce(mine.data(), all.data(), static_cast<int64_t>(bytes / 4), Element::kF32,
                            Reduction::kSum, nullptr));
    });
    if (comm.rank() == 0) std::printf("| %zu | %.1f | %.1f |\n", bytes, gather, reduce);
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc > 1) budget = std::atof(argv[1]);
  try {
    std::unique_ptr<Communicator> comm;
    check(mpi_communicator(MPI_COMM_WORLD, std::chrono::seconds(60), comm));
    if (comm->rank() == 0) {
      std::printf("%d ranks, float32; times in us\n\n", comm->size());
      std::printf(
          "| x of each rank | bytes sent | forward | synced | added | backward | synced | added | "
          "all_gather alone |\n|---|---|---|---|---|---|---|---|---|\n");
    }
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{8, 64, 56, 56},
                                              {8, 256, 28, 28},
                                              {8, 512, 14, 14},
                                              {8, 2048, 7, 7},
                                              {1, 64, 8, 8}}) {
      layers(*comm, shape);
    }
    messages(*comm);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
