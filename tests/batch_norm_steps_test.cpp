// BatchNorm in two steps: the sums and dx against the oracle, and a batch dealt out over several
// processes against the whole batch at once.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
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
    if (tensor.dtype == DType::kI32) {
      const std::vector<int32_t> integers(values.begin(), values.end());
      std::memcpy(memory.data(), integers.data(), memory.size());
    } else {
      scatter(tensor, memory.data(), values);
    }
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

INSTANTIATE_TEST_SUITE_P(Kinds, Steps,
                         testing::Values(Kind{DType::kF32, false}, Kind{DType::kF32, true},
                                         Kind{DType::kF16, false}, Kind{DType::kF16, true},
                                         Kind{DType::kBF16, false}, Kind{DType::kBF16, true}));

}  // namespace
}  // namespace normgrad::reference
