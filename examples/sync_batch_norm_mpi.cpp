// Trains a BatchNorm layer on data that is spread over the ranks of an MPI job, and compares with
// the same training in one process:
//
//   mpirun -n 4 example_sync_batch_norm_mpi [STEPS]
//
// The model is y = BatchNorm(u + w v) per channel, with trained w, gamma and beta; the loss is the
// mean of (y - target)^2 / 2. Each rank has some of the samples: its statistics, and what flows
// back through them, come from all of them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <normgrad/all_reduce_gradients.hpp>
#include <normgrad/mpi.hpp>
#include <normgrad/normgrad.hpp>
#include <normgrad/sync_batch_norm.hpp>
#include <random>
#include <vector>

namespace {

using Floats = std::vector<float>;

constexpr int64_t kSamples = 50, kChannels = 8, kLength = 12;
constexpr int64_t kSample = kChannels * kLength;
constexpr float kRate = 0.5f;

// Elements [first, last) of the whole data set; every rank can make all of it.
struct Data {
  Floats u, v, target;

  Data(int64_t first, int64_t last) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < kSamples * kSample; ++i) {
      const float a = 3 + 2 * normal(random), b = normal(random), c = normal(random);
      if (i < first * kSample || i >= last * kSample) continue;
      u.push_back(a);
      v.push_back(b);
      target.push_back(0.5f * a + b + 0.1f * c);
    }
  }
};

struct Parameters {
  Floats w = Floats(kChannels, 0), gamma = Floats(kChannels, 1), beta = Floats(kChannels, 0);
  Floats running_mean = Floats(kChannels, 0), running_variance = Floats(kChannels, 1);
};

normgrad::BatchNorm forward_call(int64_t samples) {
  const normgrad::Tensor x{normgrad::DType::kF32, {samples, kChannels, kLength}};
  const normgrad::Tensor vector{normgrad::DType::kF32, {kChannels}};
  return {.x = x,
          .gamma = vector,
          .beta = vector,
          .running_mean = vector,
          .running_variance = vector,
          .y = x,
          .mean = vector,
          .spread = vector,
          .statistics = normgrad::Statistics::kMeanRstd};
}

normgrad::BatchNormBackward backward_call(int64_t samples) {
  const normgrad::Tensor x{normgrad::DType::kF32, {samples, kChannels, kLength}};
  const normgrad::Tensor vector{normgrad::DType::kF32, {kChannels}};
  return {.x = x,
          .dy = x,
          .gamma = vector,
          .statistics = normgrad::Statistics::kMeanRstd,
          .mean = vector,
          .spread = vector,
          .dx = x,
          .dgamma = vector,
          .dbeta = vector};
}

// Steps of gradient descent on some of the samples. Plan is normgrad::Plan or SyncPlan, and add_up
// makes the sums over all samples of the gradients of w, gamma and beta, and of the loss.
template <class Plan, class AddUp>
Parameters train(const Data& data, const Plan& forward, const Plan& backward, int steps,
                 const AddUp& add_up, Floats& losses) {
  Parameters p;
  Floats x(data.u.size()), y(x.size()), dy(x.size()), dx(x.size());
  Floats mean(kChannels), rstd(kChannels), dw(kChannels), dgamma(kChannels), dbeta(kChannels);
  std::vector<std::byte> workspace(std::max(forward.workspace_size(), backward.workspace_size()));
  normgrad::Buffers buffers{.x = x.data(),
                            .dy = dy.data(),
                            .gamma = p.gamma.data(),
                            .mean = mean.data(),
                            .spread = rstd.data(),
                            .dx = dx.data(),
                            .dgamma = dgamma.data(),
                            .dbeta = dbeta.data(),
                            .beta = p.beta.data(),
                            .y = y.data(),
                            .saved_mean = mean.data(),
                            .saved_spread = rstd.data(),
                            .running_mean = p.running_mean.data(),
                            .running_variance = p.running_variance.data()};
  for (int step = 0; step < steps; ++step) {
    const auto channel = [](size_t i) { return i / kLength % kChannels; };
    for (size_t i = 0; i < x.size(); ++i) x[i] = data.u[i] + p.w[channel(i)] * data.v[i];
    forward.run(buffers, workspace.data(), workspace.size());
    double loss = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const float error = y[i] - data.target[i];
      loss += 0.5 * error * error / (kSamples * kLength);
      dy[i] = error / (kSamples * kLength);
    }
    backward.run(buffers, workspace.data(), workspace.size());
    std::fill(dw.begin(), dw.end(), 0.0f);
    for (size_t i = 0; i < x.size(); ++i) dw[channel(i)] += dx[i] * data.v[i];
    Floats total{static_cast<float>(loss)};
    add_up(dw, dgamma, dbeta, total);
    for (size_t c = 0; c < kChannels; ++c) {
      p.w[c] -= kRate * dw[c];
      p.gamma[c] -= kRate * dgamma[c];
      p.beta[c] -= kRate * dbeta[c];
    }
    losses.push_back(total[0]);
  }
  return p;
}

double difference(const Floats& a, const Floats& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::fabs(static_cast<double>(a[i]) - b[i]) / (1 + std::fabs(b[i])));
  }
  return most;
}

unsigned long long hash(const Floats& values) {
  unsigned long long hash = 0xCBF29CE484222325;
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(float); ++i)
    hash = (hash ^ bytes[i]) * 0x100000001B3;
  return hash;
}

bool run(int steps) {
  std::unique_ptr<normgrad::Communicator> comm;
  const normgrad::Status made =
      normgrad::mpi_communicator(MPI_COMM_WORLD, std::chrono::seconds(30), comm);
  if (!made.ok()) throw normgrad::Error(made);
  const int64_t first = kSamples * comm->rank() / comm->size();
  const int64_t last = kSamples * (comm->rank() + 1) / comm->size();

  const normgrad::SyncBatchNorm layer(*comm, forward_call(last - first));
  const auto over_all_ranks = [&](Floats& dw, Floats& dgamma, Floats& dbeta, Floats& loss) {
    const normgrad::Gradient gradients[] = {{dw.data(), kChannels},
                                            {dgamma.data(), kChannels},
                                            {dbeta.data(), kChannels},
                                            {loss.data(), 1}};
    std::vector<std::byte> workspace(normgrad::all_reduce_gradients_workspace(gradients));
    const normgrad::Status status =
        normgrad::all_reduce_gradients(*comm, gradients, workspace.data(), workspace.size());
    if (!status.ok()) throw normgrad::Error(status);
  };
  Floats losses;
  const Parameters trained =
      train(Data(first, last), layer.plan(forward_call(last - first)),
            layer.plan(backward_call(last - first)), steps, over_all_ranks, losses);
  if (comm->rank() != 0) return true;

  Floats expected_losses;
  const Parameters expected = train(
      Data(0, kSamples), normgrad::Plan(forward_call(kSamples)),
      normgrad::Plan(backward_call(kSamples)), steps, [](auto&...) {}, expected_losses);
  for (int step = 0; step < steps; step += std::max(1, steps / 5)) {
    std::printf("step %3d: loss %.6f, in one process %.6f\n", step,
                losses[static_cast<size_t>(step)], expected_losses[static_cast<size_t>(step)]);
  }
  const double worst =
      std::max({difference(losses, expected_losses), difference(trained.w, expected.w),
                difference(trained.gamma, expected.gamma), difference(trained.beta, expected.beta),
                difference(trained.running_mean, expected.running_mean),
                difference(trained.running_variance, expected.running_variance)});
  Floats all = trained.w;
  for (const Floats* more : {&trained.gamma, &trained.beta}) {
    all.insert(all.end(), more->begin(), more->end());
  }
  std::printf("%d ranks: differs from one process by %.1e; parameters %016llx\n", comm->size(),
              worst, hash(all));
  return worst < 1e-5 && losses.back() < losses.front();
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int steps = argc > 1 ? std::atoi(argv[1]) : 30;
  try {
    if (!run(std::max(2, steps))) {
      std::fprintf(stderr, "this is not the training of one process\n");
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  } catch (const normgrad::Error& error) {
    // A rank is lost, and MPI_Finalize might wait for it: end the job.
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
