// BatchNorm in two steps: the sums and dx against the oracle, and a batch dealt out over several
// processes against the whole batch at once.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "reference/bound.hpp"
#include "reference/elements.hpp"
#include "reference/reference.hpp"

namespace normgrad::reference {
namespace {

// A tensor with its memory.
struct Held {
  Tensor tensor;
  std::vector<std::byte> memory;

  explicit Held(Tensor t = {}) : tensor(std::move(t)) {
    int64_t elements = 1;
    const std::vector<int64_t> strides = strides_of(tensor);
    for (size_t axis = 0; axis < strides.size(); ++axis) {
      elements += strides[axis] * std::max<int64_t>(tensor.shape[axis] - 1, 0);
    }
    memory.resize(static_cast<size_t>(elements) * size_of(tensor.dtype), std::byte{0xFF});
  }
  Held(Tensor t, const std::vector<double>& values) : Held(std::move(t)) {
    scatter(tensor, memory.data(), values);
  }
  void* data() { return memory.data(); }
  std::vector<double> values() const { return gather(tensor, memory.data()); }
};

template <class Call>
void run(const Call& call, const Buffers& buffers) {
  const Plan plan(call);
  std::vector<std::byte> workspace(plan.workspace_size(), std::byte{0xFF});
  plan.run(buffers, workspace.data(), workspace.size());
}

// Samples of a batch with their statistics.
struct Batch {
  Held x, dy, gamma, mean, rstd;
};

struct Kind {
  DType dtype;
  bool channels_last;
};

Tensor data_tensor(const Kind& kind, int64_t samples) {
  Tensor tensor{kind.dtype, {samples, 5, 4, 3}};
  if (kind.channels_last) tensor.strides = {60, 1, 15, 5};
  return tensor;
}

Batch make_batch(const Kind& kind, int64_t samples, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  const auto draw = [&](Tensor tensor, double offset) {
    std::vector<double> values(static_cast<size_t>(count(tensor)));
    for (double& value : values) value = offset + normal(random);
    return Held(std::move(tensor), values);
  };
  const Tensor vector{DType::kF32, {5}};
  Batch batch{draw(data_tensor(kind, samples), 3), draw(data_tensor(kind, samples), 0.5),
              draw(vector, 1), draw(vector, 3), draw(vector, 4)};
  return batch;
}

BatchNormReduceBackward reduce_call(const Batch& b, const Tensor& sums) {
  return {.x = b.x.tensor,
          .dy = b.dy.tensor,
          .mean = b.mean.tensor,
          .spread = b.rstd.tensor,
          .sum_dy = sums,
          .sum_dy_xmu = sums,
          .dgamma = sums,
          .dbeta = sums};
}

Buffers inputs_of(Batch& b) {
  return {.x = b.x.data(),
          .dy = b.dy.data(),
          .gamma = b.gamma.data(),
          .mean = b.mean.data(),
          .spread = b.rstd.data()};
}

void expect_close(const char* name, const Held& got, const std::vector<double>& expected,
                  const std::vector<double>& scale, double k, int64_t rows) {
  const Verdict verdict = compare(name, got.tensor, got.memory.data(), expected, scale, k, rows);
  EXPECT_EQ(verdict.failures, 0) << verdict.first_failure;
}

class Steps : public testing::TestWithParam<Kind> {};

TEST_P(Steps, SumsAreTheOracles) {
  for (const int64_t samples : {0, 1, 7, 40}) {
    Batch batch = make_batch(GetParam(), samples, 1);
    const Tensor vector{DType::kF32, {5}};
    Held sum_dy(vector), sum_dy_xmu(vector), dgamma(vector), dbeta(vector);
    Buffers buffers = inputs_of(batch);
    buffers.sum_dy = sum_dy.data();
    buffers.sum_dy_xmu = sum_dy_xmu.data();
    buffers.dgamma = dgamma.data();
    buffers.dbeta = dbeta.data();
    const BatchNormReduceBackward call = reduce_call(batch, vector);
    run(call, buffers);
    const ChannelSums sums = batch_norm_sums(call, buffers);
    const Gradients gradients = batch_norm_reduce_backward(call, buffers);
    const int64_t rows = samples * 12;
    expect_close("sum_dy", sum_dy, sums.dy, sums.dy_scale, 2, rows);
    expect_close("sum_dy_xmu", sum_dy_xmu, sums.dy_xmu, sums.dy_xmu_scale, 3, rows);
    expect_close("dgamma", dgamma, gradients.dgamma, gradients.dgamma_scale, 3, rows);
    expect_close("dbeta", dbeta, gradients.dbeta, gradients.dbeta_scale, 2, rows);
  }
}

// Each output alone, the others untouched.
TEST_P(Steps, AbsentSumsAreNotWritten) {
  for (int wanted = 0; wanted < 4; ++wanted) {
    Batch batch = make_batch(GetParam(), 3, 2);
    const Tensor vector{DType::kBF16, {5}, {2}};
    std::vector<Held> outputs(4, Held(vector));
    const std::vector<std::byte> before = outputs[0].memory;
    Buffers buffers = inputs_of(batch);
    buffers.sum_dy = outputs[0].data();
    buffers.sum_dy_xmu = outputs[1].data();
    buffers.dgamma = outputs[2].data();
    buffers.dbeta = outputs[3].data();
    BatchNormReduceBackward call = reduce_call(batch, vector);
    if (wanted != 0) call.sum_dy.reset();
    if (wanted != 1) call.sum_dy_xmu.reset();
    if (wanted != 2) call.dgamma.reset();
    if (wanted != 3) call.dbeta.reset();
    run(call, buffers);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(outputs[i].memory != before, i == wanted) << i;
  }
}

BatchNormElementwiseBackward elementwise_call(const Batch& b, const Held& sum, const Held& counts) {
  return {.x = b.x.tensor,
          .dy = b.dy.tensor,
          .gamma = b.gamma.tensor,
          .mean = b.mean.tensor,
          .spread = b.rstd.tensor,
          .sum_dy = sum.tensor,
          .sum_dy_xmu = sum.tensor,
          .count = counts.tensor,
          .dx = b.x.tensor};
}

TEST_P(Steps, DxFromAnySumsIsTheOracles) {
  const Tensor vector{DType::kF32, {5}};
  Held sum_dy(vector, {1, -2, 30, 0, 5}), sum_dy_xmu(vector, {-7, 0, 2, 100, 1});
  for (const DType counts : {DType::kI32, DType::kF32, DType::kF16}) {
    Batch batch = make_batch(GetParam(), 6, 3);
    Held count({counts, {2, 3}, {1, 2}}, {1, 20, 3, 100, 5, 60});
    Held dx(batch.x.tensor);
    Buffers buffers = inputs_of(batch);
    buffers.sum_dy = sum_dy.data();
    buffers.sum_dy_xmu = sum_dy_xmu.data();
    buffers.count = count.data();
    buffers.dx = dx.data();
    const BatchNormElementwiseBackward call = elementwise_call(batch, sum_dy, count);
    run(call, buffers);
    const Gradients expected = batch_norm_elementwise_backward(call, buffers);
    expect_close("dx", dx, expected.dx, expected.dx_scale, 12, 0);
  }
}

// Three processes, one of them without samples: each its sums, then their totals, then each its dx.
TEST_P(Steps, ABatchOverProcessesIsTheBatch) {
  Batch whole = make_batch(GetParam(), 10, 4);
  const Tensor vector{DType::kF32, {5}};
  Held all_dx(whole.x.tensor);
  BatchNormBackward at_once{.x = whole.x.tensor,
                            .dy = whole.dy.tensor,
                            .gamma = vector,
                            .statistics = Statistics::kMeanRstd,
                            .mean = vector,
                            .spread = vector,
                            .dx = whole.x.tensor};
  Buffers buffers = inputs_of(whole);
  buffers.dx = all_dx.data();
  run(at_once, buffers);
  const Gradients expected = batch_norm_backward(at_once, buffers);

  const int64_t parts[] = {3, 0, 7};
  const size_t sample = 60 * size_of(GetParam().dtype);
  std::vector<double> total_dy(5), total_dy_xmu(5);
  for (int step = 0; step < 2; ++step) {
    Held sum_dy(vector, total_dy), sum_dy_xmu(vector, total_dy_xmu);
    Held count({DType::kI32, {3}}, {36, 0, 84});
    Held dx(whole.x.tensor);
    for (int64_t part = 0, first = 0; part < 3; first += parts[part++]) {
      Batch mine = whole;
      mine.x.tensor.shape[0] = mine.dy.tensor.shape[0] = parts[part];
      Buffers b = inputs_of(whole);
      b.x = whole.x.memory.data() + first * sample;
      b.dy = whole.dy.memory.data() + first * sample;
      b.sum_dy = sum_dy.data();
      b.sum_dy_xmu = sum_dy_xmu.data();
      if (step == 0) {
        BatchNormReduceBackward call = reduce_call(mine, vector);
        call.dgamma.reset();
        call.dbeta.reset();
        run(call, b);
        for (size_t c = 0; c < 5; ++c) {
          total_dy[c] += sum_dy.values()[c];
          total_dy_xmu[c] += sum_dy_xmu.values()[c];
        }
      } else {
        b.count = count.data();
        b.dx = dx.memory.data() + first * sample;
        run(elementwise_call(mine, sum_dy, count), b);
      }
    }
    if (step == 1) expect_close("dx", dx, expected.dx, expected.dx_scale, 12, 0);
  }
}

// What processes send each other of 5 channels: a count and two vectors. The gathered messages of
// all are one buffer, and the operands of the second step are views of it.
struct Messages {
  static constexpr int64_t kWords = 1 + 2 * 5;
  std::vector<double> words;  // 8 bytes each; the counts are int64

  explicit Messages(size_t parts) : words(parts * kWords, -1) {}
  int64_t parts() const { return static_cast<int64_t>(words.size()) / kWords; }
  double* at(int64_t part, int64_t word) { return words.data() + part * kWords + word; }
  int64_t& count(int64_t part) { return *reinterpret_cast<int64_t*>(at(part, 0)); }
  Tensor sums() const { return {DType::kF64, {parts(), 5}, {kWords, 1}}; }
  Tensor counts() const { return {DType::kI64, {parts()}, {kWords}}; }
};

// Several ways to deal out 10 samples.
const std::vector<std::vector<int64_t>> kDeals = {
    {10}, {3, 0, 7}, {0, 10}, {1, 2, 3, 4}, {9, 0, 1}};

// body(part, first sample, samples)
template <class Body>
void for_each_part(const std::vector<int64_t>& deal, const Body& body) {
  int64_t first = 0;
  for (size_t part = 0; part < deal.size(); first += deal[part++]) {
    body(static_cast<int64_t>(part), first, deal[part]);
  }
}

Tensor of_part(Tensor x, int64_t samples) {
  x.shape[0] = samples;
  return x;
}

// The layer's two steps. Every process has statistics of its own.
struct LayerOverProcesses {
  Held y;
  std::vector<Held> mean, rstd, running_mean, running_variance;
  Messages messages;

  LayerOverProcesses(Batch& whole, const std::vector<int64_t>& deal, int64_t times = 1)
      : y(whole.x.tensor), messages(deal.size()) {
    const Tensor vector{DType::kF32, {5}}, doubles{DType::kF64, {5}};
    const auto sample = static_cast<int64_t>(60 * size_of(whole.x.tensor.dtype));
    for_each_part(deal, [&](int64_t part, int64_t first, int64_t samples) {
      const BatchNormReduce call{.x = of_part(whole.x.tensor, samples),
                                 .mean = doubles,
                                 .squares = doubles,
                                 .count = Tensor{DType::kI64, {1}}};
      Buffers b{.x = whole.x.memory.data() + first * sample};
      b.saved_mean = messages.at(part, 1);
      b.squares = messages.at(part, 6);
      b.count = messages.at(part, 0);
      run(call, b);
      EXPECT_EQ(messages.count(part), samples * 12);
      // As if the part were so many times as large.
      messages.count(part) *= times;
      for (int64_t c = 0; c < 5; ++c) *messages.at(part, 6 + c) *= static_cast<double>(times);
    });
    for_each_part(deal, [&](int64_t, int64_t first, int64_t samples) {
      const BatchNormElementwise call{.x = of_part(whole.x.tensor, samples),
                                      .gamma = vector,
                                      .beta = vector,
                                      .mean = messages.sums(),
                                      .squares = messages.sums(),
                                      .count = messages.counts(),
                                      .running_mean = vector,
                                      .running_variance = vector,
                                      .y = of_part(whole.x.tensor, samples),
                                      .saved_mean = vector,
                                      .saved_spread = vector,
                                      .statistics = Statistics::kMeanRstd};
      mean.emplace_back(vector);
      rstd.emplace_back(vector);
      running_mean.emplace_back(vector, std::vector<double>{1, 2, 3, 4, 5});
      running_variance.emplace_back(vector, std::vector<double>{1, 2, 3, 4, 5});
      Buffers b{.x = whole.x.memory.data() + first * sample, .gamma = whole.gamma.data()};
      b.beta = whole.mean.data();
      b.mean = messages.at(0, 1);
      b.squares = messages.at(0, 6);
      b.count = messages.at(0, 0);
      b.y = y.memory.data() + first * sample;
      b.saved_mean = mean.back().data();
      b.saved_spread = rstd.back().data();
      b.running_mean = running_mean.back().data();
      b.running_variance = running_variance.back().data();
      run(call, b);
    });
  }
};

TEST_P(Steps, TheLayerOverProcessesIsTheLayer) {
  Batch whole = make_batch(GetParam(), 10, 6);
  const Tensor vector{DType::kF32, {5}};
  Held running_mean(vector, {1, 2, 3, 4, 5}), running_variance(vector, {1, 2, 3, 4, 5});
  const BatchNorm call{.x = whole.x.tensor,
                       .gamma = vector,
                       .beta = vector,
                       .running_mean = vector,
                       .running_variance = vector,
                       .y = whole.x.tensor,
                       .mean = vector,
                       .spread = vector,
                       .statistics = Statistics::kMeanRstd};
  Buffers buffers{.x = whole.x.data(), .gamma = whole.gamma.data()};
  buffers.beta = whole.mean.data();
  buffers.running_mean = running_mean.data();
  buffers.running_variance = running_variance.data();
  const Normalized expected = batch_norm(call, buffers);
  for (const std::vector<int64_t>& deal : kDeals) {
    const LayerOverProcesses layer(whole, deal), again(whole, deal);
    const auto expect = [&](const char* name, const Held& got, const Output& output, double k) {
      expect_close(name, got, output.values, output.scales, k, 0);
    };
    expect("y", layer.y, expected.y, kRandomForward.y);
    expect("mean", layer.mean[0], expected.mean, kRandomForward.mean);
    expect("rstd", layer.rstd[0], expected.spread, kRandomForward.spread);
    expect("running_mean", layer.running_mean[0], expected.running_mean, kRandomForward.mean);
    expect("running_variance", layer.running_variance[0], expected.running_variance,
           kRandomForward.spread);
    EXPECT_EQ(layer.y.memory, again.y.memory);
    for (size_t part = 1; part < deal.size(); ++part) {
      EXPECT_EQ(layer.mean[part].memory, layer.mean[0].memory);
      EXPECT_EQ(layer.rstd[part].memory, layer.rstd[0].memory);
      EXPECT_EQ(layer.running_mean[part].memory, layer.running_mean[0].memory);
      EXPECT_EQ(layer.running_variance[part].memory, layer.running_variance[0].memory);
    }
  }
}

// Beyond what float32 and int32 can count nothing is lost: the same batch many times over has the
// same mean and variance, bit by bit.
TEST_P(Steps, CountsBeyond32Bits) {
  Batch whole = make_batch(GetParam(), 10, 7);
  const std::vector<int64_t> deal = {1, 2, 3, 4};
  const LayerOverProcesses once(whole, deal), often(whole, deal, int64_t{1} << 36);
  EXPECT_EQ(once.y.memory, often.y.memory);
  EXPECT_EQ(once.mean[0].memory, often.mean[0].memory);
  EXPECT_EQ(once.rstd[0].memory, often.rstd[0].memory);
}

// All processes are empty: nothing is divided by, statistics are 0 and nothing moves.
TEST_P(Steps, NobodyHasAnything) {
  Batch nothing = make_batch(GetParam(), 0, 8);
  const LayerOverProcesses layer(nothing, {0, 0});
  for (const double moment : layer.messages.words) EXPECT_EQ(moment, 0);
  EXPECT_EQ(layer.mean[0].values(), std::vector<double>(5));
  EXPECT_EQ(layer.rstd[0].values(), std::vector<double>(5));
  EXPECT_EQ(layer.running_mean[0].values(), (std::vector<double>{1, 2, 3, 4, 5}));
  EXPECT_EQ(layer.running_variance[0].values(), (std::vector<double>{1, 2, 3, 4, 5}));
}

// The gradient's two steps over messages, counts included.
TEST_P(Steps, GatheredSumsAreTheBatch) {
  Batch whole = make_batch(GetParam(), 10, 9);
  const Tensor vector{DType::kF32, {5}}, doubles{DType::kF64, {5}};
  BatchNormBackward at_once{.x = whole.x.tensor,
                            .dy = whole.dy.tensor,
                            .gamma = vector,
                            .statistics = Statistics::kMeanRstd,
                            .mean = vector,
                            .spread = vector,
                            .dx = whole.x.tensor};
  const Gradients expected = batch_norm_backward(at_once, inputs_of(whole));
  const auto sample = static_cast<int64_t>(60 * size_of(GetParam().dtype));
  for (const std::vector<int64_t>& deal : kDeals) {
    Messages messages(deal.size());
    Held dx(whole.x.tensor);
    for (const bool reduce : {true, false}) {
      for_each_part(deal, [&](int64_t part, int64_t first, int64_t samples) {
        Batch mine = whole;
        mine.x.tensor = mine.dy.tensor = of_part(whole.x.tensor, samples);
        Buffers b = inputs_of(whole);
        b.x = whole.x.memory.data() + first * sample;
        b.dy = whole.dy.memory.data() + first * sample;
        b.count = messages.at(reduce ? part : 0, 0);
        b.sum_dy = messages.at(reduce ? part : 0, 1);
        b.sum_dy_xmu = messages.at(reduce ? part : 0, 6);
        b.dx = dx.memory.data() + first * sample;
        if (reduce) {
          BatchNormReduceBackward call = reduce_call(mine, doubles);
          call.dgamma.reset();
          call.dbeta.reset();
          call.count = Tensor{DType::kI64, {1}};
          run(call, b);
          EXPECT_EQ(messages.count(part), samples * 12);
        } else {
          BatchNormElementwiseBackward call = elementwise_call(mine, mine.gamma, mine.gamma);
          call.sum_dy = call.sum_dy_xmu = messages.sums();
          call.count = messages.counts();
          run(call, b);
        }
      });
    }
    expect_close("dx", dx, expected.dx, expected.dx_scale, 12, 0);
  }
}

// Counts that are no counts divide like any number; and channels that float32 does not serve.
TEST_P(Steps, HardValues) {
  Batch batch = make_batch(GetParam(), 2, 5);
  const Tensor vector{DType::kF32, {5}};
  batch.rstd = Held(vector, {0, 1e30, 1e-35, 1, 1});
  Held sum_dy(vector, {1, 1e-30, 1e30, 3e38, 0}), sum_dy_xmu(vector, {1, 1e-25, 1e30, 1, 0});
  for (const double elements : {24.0, 0.0, -5.0, static_cast<double>(NAN)}) {
    Held count({DType::kF32, {1}}, {elements});
    Held dx(batch.x.tensor);
    Buffers buffers = inputs_of(batch);
    buffers.sum_dy = sum_dy.data();
    buffers.sum_dy_xmu = sum_dy_xmu.data();
    buffers.count = count.data();
    buffers.dx = dx.data();
    BatchNormElementwiseBackward call = elementwise_call(batch, sum_dy, count);
    run(call, buffers);
    const Gradients expected = batch_norm_elementwise_backward(call, buffers);
    expect_close("dx", dx, expected.dx, expected.dx_scale, 12, 0);
  }
}

// More channels than are merged at a time, of three parts, one of them empty. Every value is exact.
TEST_P(Steps, EveryChannelGetsItsOwnParts) {
  constexpr int64_t kChannels = 37, kElements = 2 * kChannels * 3;
  Tensor x{GetParam().dtype, {2, kChannels, 3}};
  if (GetParam().channels_last) x.strides = {3 * kChannels, 1, kChannels};
  const Tensor vector{DType::kF32, {kChannels}}, parts{DType::kF64, {3, kChannels}};
  const Tensor counts{DType::kI64, {3}};
  std::vector<double> channel(kChannels), mean, squares, sum_dy, sum_dy_xmu;
  std::iota(channel.begin(), channel.end(), 0.0);
  for (const int weight : {1, 0, 3}) {
    for (const double c : channel) {
      mean.push_back(weight ? c : NAN);
      squares.push_back(weight ? weight * c : NAN);
      sum_dy.push_back(weight * c);
      sum_dy_xmu.push_back(weight * (36 - c));
    }
  }
  int64_t count[] = {1, 0, 3};

  Held saved_mean(vector), saved_variance(vector), ones(x, std::vector<double>(kElements, 1));
  const BatchNormElementwise forward{.x = x,
                                     .mean = parts,
                                     .squares = parts,
                                     .count = counts,
                                     .saved_mean = vector,
                                     .saved_spread = vector};
  Buffers buffers{.x = ones.data(), .mean = mean.data()};
  buffers.squares = squares.data();
  buffers.count = count;
  buffers.saved_mean = saved_mean.data();
  buffers.saved_spread = saved_variance.data();
  run(forward, buffers);
  EXPECT_EQ(saved_mean.values(), channel);
  EXPECT_EQ(saved_variance.values(), channel);

  // x_hat = 2, dx = -2 * (c + 2 * 2 * (36 - c)).
  Held zero(vector, std::vector<double>(kChannels, 0)),
      two(vector, std::vector<double>(kChannels, 2));
  Held dy(x, std::vector<double>(kElements, 0)), dx(x);
  const BatchNormElementwiseBackward backward{.x = x,
                                              .dy = x,
                                              .mean = vector,
                                              .spread = vector,
                                              .sum_dy = parts,
                                              .sum_dy_xmu = parts,
                                              .count = counts,
                                              .dx = x};
  buffers = {.x = ones.data(), .dy = dy.data(), .mean = zero.data(), .spread = two.data()};
  buffers.sum_dy = sum_dy.data();
  buffers.sum_dy_xmu = sum_dy_xmu.data();
  buffers.count = count;
  buffers.dx = dx.data();
  run(backward, buffers);
  const std::vector<double> got = dx.values();
  for (size_t i = 0; i < got.size(); ++i) {
    const double c = static_cast<double>(i / 3 % kChannels);
    EXPECT_EQ(got[i], -2 * (c + 4 * (36 - c))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Steps,
                         testing::Values(Kind{DType::kF32, false}, Kind{DType::kF32, true},
                                         Kind{DType::kF16, false}, Kind{DType::kF16, true},
                                         Kind{DType::kBF16, false}, Kind{DType::kBF16, true}));

}  // namespace
}  // namespace normgrad::reference
