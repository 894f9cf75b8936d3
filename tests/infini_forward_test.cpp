// The layers of InfiniOP: the table of the layers through its functions, within the bounds and bit
// for bit what the native API gives; then each layer and its gradient, one after the other.
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <string>

#include "infini_table_call.hpp"
#include "reference/bound.hpp"
#include "reference/elements.hpp"

namespace infini_test {
namespace {

using normgrad::DType;
using normgrad::reference::Case;
using normgrad::reference::ForwardInstance;
using Reference = normgrad::reference::Op;

void expect_native_bits(const Case& c, int& expressible) {
  SCOPED_TRACE(c.name);
  ForwardInstance infini(c);
  const Translated translated = translate(infini.call(), infini.buffers());
  if (!translated.expressible) return;
  ++expressible;
  const Status status = run(translated);
  ASSERT_TRUE(status.ok()) << status.message();
  const normgrad::reference::Report report = infini.check();
  EXPECT_TRUE(report.ok) << report.why;

  ForwardInstance native(c);
  normgrad::Plan plan;
  ASSERT_TRUE(native.plan(normgrad::Device::kCpu, plan).ok());
  ASSERT_TRUE(normgrad::reference::run_native(plan, native.buffers()).ok());
  EXPECT_EQ(infini.hash(), native.hash());
}

class InfiniForward : public testing::TestWithParam<Reference> {};

TEST_P(InfiniForward, EqualsTheNativeApi) {
  int expressible = 0, extended = 0;
  for (const Case& c : normgrad::reference::forward_cases(GetParam())) {
    expect_native_bits(spoken(c), expressible);
    if (GetParam() == Reference::kBatchNorm) expect_native_bits(spoken_extended(c), extended);
    if (HasFatalFailure()) return;
  }
  RecordProperty("expressible", expressible);
  EXPECT_GT(expressible, 100);
  if (GetParam() == Reference::kBatchNorm) {
    EXPECT_GT(extended, 100);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, InfiniForward,
                         testing::Values(Reference::kLayerNorm, Reference::kRmsNorm,
                                         Reference::kBatchNorm),
                         [](const auto& test) {
                           std::string name = normgrad::reference::name_of(test.param);
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

// A contiguous tensor with its memory.
struct Data {
  Data(DType dtype, std::vector<int64_t> shape, const std::vector<double>& values = {})
      : tensor{dtype, std::move(shape)},
        bytes(static_cast<size_t>(normgrad::reference::count(tensor)) * size_of(dtype)) {
    if (!values.empty()) normgrad::reference::scatter(tensor, bytes.data(), values);
  }
  std::vector<double> values() const { return normgrad::reference::gather(tensor, bytes.data()); }

  normgrad::Tensor tensor;
  std::vector<std::byte> bytes;
};

Status call(Op op, std::initializer_list<Data*> operands, float epsilon,
            std::optional<Extension> extension = {}) {
  Translated t = {.op = op, .tensors = {}, .pointers = {}, .extension = extension};
  t.numbers.epsilon = epsilon;
  for (Data* data : operands) {
    t.tensors.push_back(data ? &data->tensor : nullptr);
    t.pointers.push_back(data ? data->bytes.data() : nullptr);
  }
  return run(t);
}

// Waves around a mean of half their size.
std::vector<double> waves(DType dtype, int64_t size, double step, double mean) {
  std::vector<double> values(static_cast<size_t>(size));
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = mean + std::sin(step * static_cast<double>(i * i + 3 * i + 1));
    values[i] = normgrad::reference::round_to(dtype, value);
  }
  return values;
}

// What the roundings of two saved tensors to their type add to K: each of the three terms of dx
// has at most four of them.
double saved(DType dtype) {
  const double unit = dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
  return 4 * unit / 0x1p-24;
}

void expect_near(const char* name, const Data& data, const std::vector<double>& values,
                 const std::vector<double>& scale, double k, int64_t summed = 0) {
  const auto verdict =
      normgrad::reference::compare(name, data.tensor, data.bytes.data(), values, scale, k, summed);
  EXPECT_EQ(verdict.failures, 0) << verdict.first_failure;
}

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
using normgrad::reference::Gradients;
using normgrad::reference::kProven;

void expect_gradients(const Gradients& ref, const Data& dx, const Data& dgamma, const Data* dbeta,
                      double more, int64_t summed) {
  expect_near("dx", dx, ref.dx, ref.dx_scale, kProven.dx + more);
  expect_near("dgamma", dgamma, ref.dgamma, ref.dgamma_scale, kProven.dgamma + more, summed);
  if (dbeta) expect_near("dbeta", *dbeta, ref.dbeta, ref.dbeta_scale, kProven.dbeta, summed);
}

// The oracle has x and nothing that was rounded on the way.
TEST(InfiniChain, LayerNorm) {
  constexpr int64_t kRows = 12, kCols = 100;
  const float eps = 1e-3f;
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(name_of(dtype));
    const auto make = [&](std::vector<int64_t> shape) { return Data(dtype, std::move(shape)); };
    Data x(dtype, {3, 4, kCols}, waves(dtype, kRows * kCols, 0.7, 0.5));
    Data dy(dtype, {3, 4, kCols}, waves(dtype, kRows * kCols, 0.3, 0.1));
    Data gamma(dtype, {kCols}, waves(dtype, kCols, 0.2, 1)), beta = gamma;
    Data y = make({3, 4, kCols}), x_hat = y, dx = y, std = make({3, 4});
    Data dgamma = make({kCols}), dbeta = dgamma;
    ASSERT_TRUE(call(Op::kForwardLayerNorm, {&y, &x_hat, &std, &x, &gamma, &beta}, eps).ok());
    ASSERT_TRUE(call(Op::kLayerNorm, {&dx, &dgamma, &dbeta, &dy, &gamma, &x_hat, &std}, 0).ok());

    const normgrad::LayerNorm layer = {.x = x.tensor, .eps = eps};
    const auto exact = normgrad::reference::layer_norm(layer, {.x = x.bytes.data()});
    const normgrad::reference::Rows rows = {.rows = kRows,
                                            .cols = kCols,
                                            .x = x.values(),
                                            .dy = dy.values(),
                                            .gamma = gamma.values(),
                                            .mean = exact.mean.values,
                                            .spread = exact.spread.values};
    expect_gradients(rows_backward(rows), dx, dgamma, &dbeta, saved(dtype), kRows);
  }
}

// The gradient looks at x again, or at the sum that was left, and takes the same epsilon.
TEST(InfiniChain, RmsNormAndAddRmsNorm) {
  constexpr int64_t kRows = 12, kCols = 100;
  const float eps = 1e-3f;
  for (const DType dtype : kDTypes) {
    for (const bool add : {false, true}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + (add ? " with a sum" : ""));
      Data a(dtype, {kRows, kCols}, waves(dtype, kRows * kCols, 0.7, 0.5));
      Data b(dtype, {kRows, kCols}, waves(dtype, kRows * kCols, 0.9, -0.2));
      Data dy(dtype, {kRows, kCols}, waves(dtype, kRows * kCols, 0.3, 0.1));
      Data w(dtype, {kCols}, waves(dtype, kCols, 0.2, 1));
      Data y(dtype, {kRows, kCols}), sum = y, dx = y, dw(dtype, {kCols});
      const Status status = add ? call(Op::kAddRmsNorm, {&y, &sum, &a, &b, &w}, eps)
                                : call(Op::kForwardRmsNorm, {&y, &a, &w}, eps);
      ASSERT_TRUE(status.ok()) << status.message();
      Data& x = add ? sum : a;
      ASSERT_TRUE(call(Op::kRmsNorm, {&dx, &dw, &dy, &x, &w}, 0, Extension{eps}).ok());

      normgrad::reference::Rows rows = {.rows = kRows,
                                        .cols = kCols,
                                        .rms = true,
                                        .x = a.values(),
                                        .dy = dy.values(),
                                        .gamma = w.values(),
                                        .mean = {},
                                        .spread = {},
                                        .eps = eps};
      for (size_t i = 0; i < rows.x.size() && add; ++i) {
        rows.x[i] = normgrad::reference::round_to(dtype, rows.x[i] + b.values()[i]);
      }
      EXPECT_EQ(x.values(), rows.x);
      expect_gradients(rows_backward(rows), dx, dw, nullptr, 0, kRows);
    }
  }
}

// The extension leaves the statistics that the gradient takes.
TEST(InfiniChain, BatchNorm) {
  constexpr int64_t kSamples = 6, kChannels = 5, kLength = 30, kElements = kSamples * kLength;
  const float eps = 1e-3f;
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(name_of(dtype));
    const std::vector<int64_t> shape = {kSamples, kChannels, kLength};
    Data x(dtype, shape, waves(dtype, kElements * kChannels, 0.7, 0.5));
    Data dy(dtype, shape, waves(dtype, kElements * kChannels, 0.3, 0.1));
    Data gamma(dtype, {kChannels}, waves(dtype, kChannels, 0.2, 1)), beta = gamma;
    Data y(dtype, shape), dx = y, dgamma(dtype, {kChannels}), dbeta = dgamma;
    Data mean(DType::kF32, {kChannels}), variance = mean;
    const Extension extension = {eps};
    ASSERT_TRUE(
        call(Op::kForwardBatchNorm, {&y, &mean, &variance, &x, &gamma, &beta}, 0, extension).ok());
    ASSERT_TRUE(call(Op::kBatchNorm, {&dx, &dgamma, &dbeta, &x, &dy, &gamma, &mean, &variance}, 0,
                     extension)
                    .ok());

    const normgrad::BatchNorm layer = {.x = x.tensor, .eps = eps};
    const auto exact = normgrad::reference::batch_norm(layer, {.x = x.bytes.data()});
    const normgrad::reference::Channels channels = {.samples = kSamples,
                                                    .channels = kChannels,
                                                    .length = kLength,
                                                    .x = x.values(),
                                                    .dy = dy.values(),
                                                    .gamma = gamma.values(),
                                                    .mean = exact.mean.values,
                                                    .spread = exact.spread.values,
                                                    .eps = eps};
    // The rounding of a mean of half the standard deviation weighs as much as one of x_hat.
    expect_gradients(channels_backward(channels), dx, dgamma, &dbeta, 2 * saved(DType::kF32),
                     kElements);
  }
}

// A momentum of 1 leaves mean and unbiased variance; one of 0 leaves everything.
TEST(InfiniForward, BatchNormMovesByItsMomentum) {
  for (const float momentum : {0.0f, 1.0f}) {
    Data x(DType::kF32, {2, 1, 2}, {1, 2, 3, 6});
    Data one(DType::kF32, {1}, {1}), mean(DType::kF32, {1}, {10}), variance(DType::kF32, {1}, {20});
    Data y(DType::kF32, {2, 1, 2});
    Translated t = {.op = Op::kForwardBatchNorm, .tensors = {}, .pointers = {}};
    t.numbers = {0, momentum};
    for (Data* data : {&y, &mean, &variance, &x, &one, &one}) {
      t.tensors.push_back(&data->tensor);
      t.pointers.push_back(data->bytes.data());
    }
    ASSERT_TRUE(run(t).ok());
    EXPECT_EQ(mean.values()[0], momentum == 0 ? 10 : 3);
    EXPECT_FLOAT_EQ(static_cast<float>(variance.values()[0]), momentum == 0 ? 20 : 14.0f / 3);
  }
}

}  // namespace
}  // namespace infini_test
