// Synchronized BatchNorm under mpirun, with any number of ranks: against the oracle on the whole
// batch, and the same bits on every rank; ranks that do not fit together; gradients summed.
#include "normgrad/sync_batch_norm.hpp"

#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

#include "mpi_test.hpp"
#include "normgrad/all_reduce_gradients.hpp"
#include "reference/bound.hpp"
#include "reference/elements.hpp"
#include "reference/reference.hpp"

namespace normgrad {
namespace {

using reference::compare;
using Bytes = std::vector<std::byte>;

constexpr int64_t kChannels = 6, kLength = 4;
constexpr std::byte kUntouched{0xA5};

Bytes make(const Tensor& tensor, const std::vector<double>& values) {
  Bytes data(values.size() * size_of(tensor.dtype));
  if (!data.empty()) reference::scatter(tensor, data.data(), values);
  return data;
}

Bytes untouched(size_t elements, DType dtype) {
  return Bytes(elements * size_of(dtype), kUntouched);
}

struct Kind {
  DType dtype = DType::kF32;
  bool channels_last = false;
  double offset = 3;
};

Tensor samples_of(const Kind& kind, int64_t samples) {
  Tensor tensor{kind.dtype, {samples, kChannels, kLength}};
  if (kind.channels_last) tensor.strides = {kChannels * kLength, 1, kChannels};
  return tensor;
}

const Tensor kVector{DType::kF32, {kChannels}};

// The whole batch, which every rank makes for itself, and the part of a rank in it.
struct Batch {
  Kind kind;
  Tensor tensor;
  Bytes x, dy, gamma, beta, running_mean, running_variance;

  Batch(const Kind& k, int64_t samples) : kind(k), tensor(samples_of(k, samples)) {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    const auto draw = [&](const Tensor& t, double offset) {
      std::vector<double> values(static_cast<size_t>(reference::count(t)));
      for (double& value : values) value = offset + normal(random);
      return make(t, values);
    };
    x = draw(tensor, kind.offset);
    dy = draw(tensor, 0.5);
    gamma = draw(kVector, 1);
    beta = draw(kVector, 0);
    running_mean = draw(kVector, 1);
    running_variance = draw(kVector, 10);
  }
};

BatchNorm forward_call(const Tensor& x) {
  return {.x = x,
          .gamma = kVector,
          .beta = kVector,
          .running_mean = kVector,
          .running_variance = kVector,
          .y = x,
          .mean = kVector,
          .spread = kVector,
          .statistics = Statistics::kMeanRstd};
}

BatchNormBackward backward_call(const Tensor& x) {
  return {.x = x,
          .dy = x,
          .gamma = kVector,
          .statistics = Statistics::kMeanRstd,
          .mean = kVector,
          .spread = kVector,
          .dx = x,
          .dgamma = kVector,
          .dbeta = kVector};
}

Status execute(const SyncPlan& plan, const Buffers& buffers) {
  Bytes workspace(plan.workspace_size() + 3, std::byte{0xFF});
  return plan.execute(buffers, workspace.data() + 3, workspace.size() - 3);
}

// This rank's outputs; those that all ranks have in common first.
struct Outputs {
  Bytes mean, rstd, running_mean, running_variance;
  Bytes y, dx, dgamma, dbeta;
};

struct Part {
  int64_t first = 0, samples = 0;
};

Part part_of(const std::vector<int64_t>& sizes, int rank) {
  const auto end = sizes.begin() + rank;
  return {std::accumulate(sizes.begin(), end, int64_t{0}), *end};
}

Buffers buffers_of(const Batch& batch, int64_t first, Outputs& out) {
  const size_t skipped =
      static_cast<size_t>(first * kChannels * kLength) * size_of(batch.kind.dtype);
  return {.x = batch.x.data() + skipped,
          .dy = batch.dy.data() + skipped,
          .gamma = batch.gamma.data(),
          .mean = out.mean.data(),
          .spread = out.rstd.data(),
          .dx = out.dx.data(),
          .dgamma = out.dgamma.data(),
          .dbeta = out.dbeta.data(),
          .beta = batch.beta.data(),
          .y = out.y.data(),
          .saved_mean = out.mean.data(),
          .saved_spread = out.rstd.data(),
          .running_mean = out.running_mean.data(),
          .running_variance = out.running_variance.data()};
}

Outputs outputs_of(const Batch& batch, int64_t samples) {
  const auto elements = static_cast<size_t>(samples * kChannels * kLength);
  const Bytes vector = untouched(kChannels, DType::kF32);
  return {.mean = vector,
          .rstd = vector,
          .running_mean = batch.running_mean,
          .running_variance = batch.running_variance,
          .y = untouched(elements, batch.kind.dtype),
          .dx = untouched(elements, batch.kind.dtype),
          .dgamma = vector,
          .dbeta = vector};
}

// Forward and backward on this rank's part.
Outputs run(Communicator& comm, const Batch& batch, const std::vector<int64_t>& sizes) {
  const Part part = part_of(sizes, comm.rank());
  const Tensor x = samples_of(batch.kind, part.samples);
  Outputs out = outputs_of(batch, part.samples);
  const Buffers buffers = buffers_of(batch, part.first, out);
  const SyncBatchNorm layer(comm, forward_call(x));
  EXPECT_EQ(execute(layer.plan(forward_call(x)), buffers).message(), "");
  EXPECT_EQ(execute(layer.plan(backward_call(x)), buffers).message(), "");
  return out;
}

void expect_close(const char* name, const Tensor& tensor, const Bytes& got,
                  const std::vector<double>& expected, const std::vector<double>& scale,
                  int64_t first, double k, int64_t rows) {
  const auto elements = static_cast<size_t>(reference::count(tensor));
  const auto begin = static_cast<size_t>(first);
  const reference::Verdict verdict =
      compare(name, tensor, got.data(), std::span(expected).subspan(begin, elements),
              std::span(scale).subspan(begin, elements), k, rows);
  EXPECT_EQ(verdict.failures, 0) << verdict.first_failure;
}

void expect_oracle(const Batch& batch, const Part& part, Outputs& out) {
  const int64_t rows = batch.tensor.shape[0] * kLength;
  const int64_t first = part.first * kChannels * kLength;
  const Tensor x = samples_of(batch.kind, part.samples);
  Outputs whole = outputs_of(batch, batch.tensor.shape[0]);
  const Buffers given = buffers_of(batch, 0, whole);
  const auto layer = reference::batch_norm(forward_call(batch.tensor), given);
  constexpr auto kForward = reference::kRandomForward;
  expect_close("mean", kVector, out.mean, layer.mean.values, layer.mean.scales, 0, kForward.mean,
               rows);
  expect_close("rstd", kVector, out.rstd, layer.spread.values, layer.spread.scales, 0,
               kForward.spread, rows);
  expect_close("running_mean", kVector, out.running_mean, layer.running_mean.values,
               layer.running_mean.scales, 0, kForward.mean, rows);
  expect_close("running_variance", kVector, out.running_variance, layer.running_variance.values,
               layer.running_variance.scales, 0, kForward.spread, rows);
  expect_close("y", x, out.y, layer.y.values, layer.y.scales, first, kForward.y, 0);

  // The gradient takes the statistics as they were saved.
  whole.mean = out.mean;
  whole.rstd = out.rstd;
  constexpr auto kBackward = reference::kRandomBatchNorm;
  const auto all = reference::batch_norm_backward(backward_call(batch.tensor), given);
  expect_close("dx", x, out.dx, all.dx, all.dx_scale, first, kBackward.dx, 0);
  const auto mine =
      reference::batch_norm_backward(backward_call(x), buffers_of(batch, part.first, whole));
  expect_close("dgamma", kVector, out.dgamma, mine.dgamma, mine.dgamma_scale, 0, kBackward.dgamma,
               rows);
  expect_close("dbeta", kVector, out.dbeta, mine.dbeta, mine.dbeta_scale, 0, kBackward.dbeta, rows);
}

Bytes gathered(Communicator& comm, const Bytes& mine) {
  Bytes all(mine.size() * static_cast<size_t>(comm.size()));
  EXPECT_EQ(comm.all_gather(mine.data(), all.data(), mine.size(), nullptr).message(), "");
  return all;
}

void expect_equal_bits(Communicator& comm, const Bytes& mine, const char* name) {
  const Bytes all = gathered(comm, mine);
  for (size_t i = 0; i < all.size(); i += mine.size()) {
    EXPECT_EQ(std::memcmp(all.data() + i, mine.data(), mine.size()), 0) << name;
  }
}

// Rank sizes of one case: `pattern`, again and again.
std::vector<int64_t> repeat(const std::vector<int64_t>& pattern, int ranks) {
  std::vector<int64_t> sizes;
  for (int rank = 0; rank < ranks; ++rank) {
    sizes.push_back(pattern[static_cast<size_t>(rank) % pattern.size()]);
  }
  return sizes;
}

const std::vector<std::vector<int64_t>> kPatterns = {
    {0, 1, 7, 1000}, {1000, 7, 1, 0}, {7}, {1, 0, 0, 0, 0, 0, 0, 0}, {0, 3}, {33, 1}};

const Kind kKinds[] = {{DType::kF32, false},       {DType::kF32, true},
                       {DType::kF16, false},       {DType::kF16, true},
                       {DType::kBF16, false},      {DType::kBF16, true},
                       {DType::kF32, false, 1e4},  {DType::kF32, true, -1e5},
                       {DType::kBF16, false, 100}, {DType::kF16, true, 0}};

TEST(SyncBatchNorm, IsTheWholeBatch) {
  const auto comm = world();
  for (const Kind& kind : kKinds) {
    for (const auto& pattern : kPatterns) {
      const std::vector<int64_t> sizes = repeat(pattern, comm->size());
      const int64_t samples = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
      SCOPED_TRACE(std::string(name_of(kind.dtype)) + (kind.channels_last ? " last" : " first") +
                   ", samples " + std::to_string(samples));
      const Batch batch(kind, samples);
      Outputs out = run(*comm, batch, sizes);
      expect_oracle(batch, part_of(sizes, comm->rank()), out);
      expect_equal_bits(*comm, out.mean, "mean");
      expect_equal_bits(*comm, out.rstd, "rstd");
      expect_equal_bits(*comm, out.running_mean, "running_mean");
      expect_equal_bits(*comm, out.running_variance, "running_variance");
    }
  }
}

TEST(SyncBatchNorm, ABatchOfNothing) {
  const auto comm = world();
  const Batch batch({}, 0);
  const Outputs out = run(*comm, batch, repeat({0}, comm->size()));
  const Bytes zeros(kChannels * 4);
  EXPECT_EQ(out.mean, zeros);
  EXPECT_EQ(out.rstd, zeros);
  EXPECT_EQ(out.running_mean, batch.running_mean);
  EXPECT_EQ(out.running_variance, batch.running_variance);
  EXPECT_EQ(out.dgamma, zeros);
  EXPECT_EQ(out.dbeta, zeros);
}

bool same(const void* data, const Bytes& expected) {
  return expected.empty() || std::memcmp(data, expected.data(), expected.size()) == 0;
}

TEST(SyncBatchNorm, InPlace) {
  const auto comm = world();
  const std::vector<int64_t> sizes = repeat({5, 0, 9}, comm->size());
  const Batch batch({}, std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
  const Outputs expected = run(*comm, batch, sizes);
  const Part part = part_of(sizes, comm->rank());
  const Tensor x = samples_of({}, part.samples);
  Batch changed = batch;
  Outputs out = outputs_of(batch, part.samples);
  Buffers buffers = buffers_of(changed, part.first, out);
  const SyncBatchNorm layer(*comm, forward_call(x));
  buffers.y = const_cast<void*>(buffers.x);
  ASSERT_EQ(execute(layer.plan(forward_call(x)), buffers).message(), "");
  EXPECT_TRUE(same(buffers.y, expected.y));
  changed.x = batch.x;
  buffers.dx = const_cast<void*>(buffers.dy);
  ASSERT_EQ(execute(layer.plan(backward_call(x)), buffers).message(), "");
  EXPECT_TRUE(same(buffers.dx, expected.dx));
}

// Prints a hash of all ranks' outputs, which mpi_topologies_test.sh compares.
TEST(SyncBatchNorm, Digest) {
  const auto comm = world();
  uint64_t hash = 0xCBF29CE484222325;
  for (const Kind& kind : {Kind{DType::kF32, false, 1e3}, Kind{DType::kBF16, true, 3}}) {
    const std::vector<int64_t> sizes = repeat({17, 0, 300, 5}, comm->size());
    const Batch batch(kind, std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
    const Outputs out = run(*comm, batch, sizes);
    Bytes mine;
    for (const Bytes* output : {&out.mean, &out.rstd, &out.running_mean, &out.running_variance,
                                &out.y, &out.dx, &out.dgamma, &out.dbeta}) {
      mine.insert(mine.end(), output->begin(), output->end());
    }
    mine.resize(size_t{1} << 16);  // ranks of different sizes; zeros
    for (const std::byte byte : gathered(*comm, mine)) {
      hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001B3;
    }
  }
  if (comm->rank() == 0) std::printf("digest %016llx\n", static_cast<unsigned long long>(hash));
}

// Every rank hears that one differs; the communicator stays whole.
TEST(SyncBatchNorm, RanksThatDiffer) {
  const auto comm = world();
  if (comm->size() < 2) GTEST_SKIP() << "one rank";
  const bool odd = comm->rank() == 1;
  const auto expect = [&](const char* what, const auto& change) {
    BatchNorm call = forward_call(samples_of({}, 3 + comm->rank()));
    if (odd) change(call);
    SyncBatchNorm layer;
    const Status status = SyncBatchNorm::create(*comm, call, layer);
    EXPECT_EQ(status.code(), Code::kCommunication);
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
    SyncPlan plan;
    EXPECT_EQ(layer.plan(call, plan).code(), Code::kBadArgument);  // no layer was made
  };
  expect("channels: rank", [](BatchNorm& call) { call = {.x = {DType::kF32, {3, 7, 4}}}; });
  expect("dtype of x: rank", [](BatchNorm& call) { call.x.dtype = call.y->dtype = DType::kBF16; });
  expect("statistics: rank", [](BatchNorm& call) { call.statistics = Statistics::kMeanVariance; });
  expect("gamma: rank", [](BatchNorm& call) { call.gamma.reset(); });
  expect("beta: rank", [](BatchNorm& call) { call.beta.reset(); });
  expect("running statistics: rank", [](BatchNorm& call) {
    call.running_mean.reset();
    call.running_variance.reset();
  });
  expect("eps: rank", [](BatchNorm& call) { call.eps = 1e-6; });
  expect("momentum: rank", [](BatchNorm& call) { call.momentum = 0.2; });

  BatchNorm wrong = forward_call(samples_of({}, 3));
  if (odd) wrong.channel_axis = 9;
  SyncBatchNorm layer;
  const Status status = SyncBatchNorm::create(*comm, wrong, layer);
  EXPECT_EQ(status.code(), odd ? Code::kBadArgument : Code::kCommunication);
  if (!odd) {
    EXPECT_EQ(status.message(), "sync_batch_norm: the call of rank 1 was refused");
  }
  EXPECT_EQ(comm->wait(nullptr).message(), "");
}

// One rank runs the gradient, or another layer, while the others run the layer.
void expect_refused(const SyncPlan& plan, const char* sentence) {
  const Batch batch({}, 3);
  Outputs out = outputs_of(batch, 3);
  const Outputs before = out;
  const Status status = execute(plan, buffers_of(batch, 0, out));
  EXPECT_EQ(status.code(), Code::kCommunication);
  EXPECT_NE(status.message().find(sentence), std::string::npos) << status.message();
  for (const auto member :
       {&Outputs::mean, &Outputs::rstd, &Outputs::running_mean, &Outputs::running_variance,
        &Outputs::y, &Outputs::dx, &Outputs::dgamma, &Outputs::dbeta}) {
    EXPECT_EQ(out.*member, before.*member);
  }
}

TEST(SyncBatchNorm, RanksInDifferentPasses) {
  const auto comm = world();
  if (comm->size() < 2) GTEST_SKIP() << "one rank";
  const Tensor x = samples_of({}, 3);
  const SyncBatchNorm layer(*comm, forward_call(x));
  BatchNorm other_call = forward_call(x);
  other_call.eps = 1e-3;
  const SyncBatchNorm other(*comm, other_call);
  const bool odd = comm->rank() == 1;

  expect_refused(
      odd ? layer.plan(backward_call(x)) : layer.plan(forward_call(x)),
      odd ? "rank 0 runs the layer, rank 1 runs the gradient" : "rank 1 runs the gradient");
  expect_refused(odd ? other.plan(other_call) : layer.plan(forward_call(x)), "runs another layer");
  // The ranks are still in step.
  const Batch batch({}, 3 * comm->size());
  run(*comm, batch, repeat({3}, comm->size()));

  // Messages of different sizes break the communicator.
  const auto breaking = world(1);
  const SyncBatchNorm narrow(*breaking, forward_call(x));
  const Tensor wide_x{DType::kF32, {3, 50, 4}};
  const SyncBatchNorm wide(*breaking, {.x = wide_x});
  if (odd) {
    Bytes data(600 * 4, std::byte{1});
    const SyncPlan plan = wide.plan(BatchNorm{.x = wide_x});
    EXPECT_EQ(execute(plan, {.x = data.data()}).code(), Code::kCommunication);
  } else {
    expect_refused(narrow.plan(forward_call(x)), "all_gather: ");
  }
  EXPECT_EQ(breaking->wait(nullptr).code(), Code::kCommunication);
  MPI_Barrier(MPI_COMM_WORLD);
}

// What a rank refuses by itself.
TEST(SyncBatchNorm, Refusals) {
  const auto comm = world();
  const Tensor x = samples_of({}, 3);
  const SyncBatchNorm layer(*comm, forward_call(x));
  SyncPlan plan;
  const auto refused = [&](auto call, const auto& change) {
    change(call);
    return layer.plan(call, plan).message();
  };
  EXPECT_EQ(refused(forward_call(x), [](BatchNorm& call) { call.eps = 1; }),
            "eps: the part has 1, the layer has 1.0000000000000001e-05");
  EXPECT_EQ(refused(forward_call(x),
                    [](BatchNorm& call) {
                      call.frozen = true;
                      call.mean.reset();
                      call.spread.reset();
                    }),
            "frozen: expected false: frozen statistics need no other rank");
  EXPECT_EQ(refused(backward_call(x), [](BatchNormBackward& call) { call.gamma.reset(); }),
            "gamma: the part has none, the layer has one");
  EXPECT_EQ(refused(backward_call(x), [](BatchNormBackward& call) { call.dx.reset(); }),
            "dx: expected an output");
  EXPECT_EQ(refused(backward_call(x), [](BatchNormBackward& call) { call.accumulate = true; }),
            "accumulate: expected false, got true");
  EXPECT_EQ(refused(backward_call(x), [](BatchNormBackward& call) { call.dgamma->strides = {2}; }),
            "dgamma: expected a tensor without gaps");
  EXPECT_NE(refused(backward_call(x),
                    [](BatchNormBackward& call) { call.statistics = Statistics::kMeanVariance; })
                .find("kMeanRstd"),
            std::string::npos);
  EXPECT_EQ(plan.workspace_size(), 0u);
  EXPECT_EQ(plan.execute({}, nullptr, 0).message(), "plan: is empty");
  EXPECT_EQ(SyncBatchNorm().plan(forward_call(x), plan).message(), "layer: is empty");
  ASSERT_EQ(layer.plan(backward_call(x), plan).message(), "");
  EXPECT_EQ(plan.execute({}, nullptr, 0).code(), Code::kInsufficientWorkspace);
  EXPECT_EQ(plan.execute({}, nullptr, plan.workspace_size()).code(), Code::kNullPointer);
  EXPECT_EQ(execute(plan, {}).message(), "dgamma: is null");
}

// Each rank's dgamma is rounded to f32 once more than the sum over the whole batch.
TEST(AllReduceGradients, AreThoseOfTheWholeBatch) {
  const auto comm = world();
  const std::vector<int64_t> sizes = repeat({0, 1, 7, 100}, comm->size());
  const Batch batch({}, std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
  Outputs out = run(*comm, batch, sizes);
  const Gradient gradients[] = {{out.dgamma.data(), kChannels}, {out.dbeta.data(), kChannels}};
  Bytes workspace(all_reduce_gradients_workspace(gradients));
  ASSERT_EQ(all_reduce_gradients(*comm, gradients, workspace.data(), workspace.size()).message(),
            "");
  Outputs whole = outputs_of(batch, batch.tensor.shape[0]);
  whole.mean = out.mean;
  whole.rstd = out.rstd;
  const auto all =
      reference::batch_norm_backward(backward_call(batch.tensor), buffers_of(batch, 0, whole));
  constexpr auto kGates = reference::kRandomBatchNorm;
  const int64_t rows = batch.tensor.shape[0] * kLength;
  expect_close("dgamma", kVector, out.dgamma, all.dgamma, all.dgamma_scale, 0, kGates.dgamma + 1,
               rows);
  expect_close("dbeta", kVector, out.dbeta, all.dbeta, all.dbeta_scale, 0, kGates.dbeta + 1, rows);
  expect_equal_bits(*comm, out.dgamma, "dgamma");
}

TEST(AllReduceGradients, OfSeveralTypes) {
  const auto comm = world();
  const double sum = comm->size() * (comm->size() + 1) / 2;
  const auto filled = [&](DType dtype, int64_t count, double value) {
    return make({dtype, {count}}, std::vector<double>(static_cast<size_t>(count), value));
  };
  for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
    const double expected = reduction == Reduction::kSum ? sum : sum / comm->size();
    std::vector<Bytes> data, results;
    std::vector<Gradient> gradients;
    const std::pair<DType, int64_t> kinds[] = {{DType::kBF16, 3}, {DType::kF32, 1000},
                                               {DType::kF16, 0},  {DType::kF16, 5},
                                               {DType::kBF16, 8}, {DType::kF32, 1}};
    for (const auto& [dtype, count] : kinds) {
      data.push_back(filled(dtype, count, comm->rank() + 1));
      results.push_back(filled(dtype, count, expected));
    }
    for (size_t i = 0; i < data.size(); ++i) {
      gradients.push_back({data[i].data(), kinds[i].second, kinds[i].first});
    }
    Bytes workspace(all_reduce_gradients_workspace(gradients) + 1);
    ASSERT_EQ(all_reduce_gradients(*comm, gradients, workspace.data() + 1, workspace.size() - 1,
                                   nullptr, reduction)
                  .message(),
              "");
    EXPECT_EQ(data, results);
  }
}

TEST(AllReduceGradients, Refusals) {
  const auto comm = world();
  float value = 1;
  Bytes workspace(1000);
  const auto refused = [&](const Gradient& gradient, size_t size, Reduction reduction) {
    const Status status =
        all_reduce_gradients(*comm, {&gradient, 1}, workspace.data(), size, nullptr, reduction);
    return status.code();
  };
  EXPECT_EQ(refused({&value, 1, DType::kI32}, 1000, Reduction::kSum), Code::kBadDType);
  EXPECT_EQ(refused({&value, -1}, 1000, Reduction::kSum), Code::kBadShape);
  EXPECT_EQ(refused({nullptr, 1}, 1000, Reduction::kSum), Code::kNullPointer);
  EXPECT_EQ(refused({&value, 1}, 3, Reduction::kSum), Code::kInsufficientWorkspace);
  EXPECT_EQ(refused({&value, 1}, 1000, Reduction::kMax), Code::kBadArgument);
  EXPECT_EQ(value, 1);
}

}  // namespace
}  // namespace normgrad
