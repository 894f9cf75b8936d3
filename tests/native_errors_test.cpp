// What the native API refuses beyond what the dialects can express, and its two ways of saying so.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "normgrad/cuda.hpp"
#include "normgrad/normgrad.hpp"

namespace normgrad {
namespace {

LayerNormBackward layer_norm() {
  const Tensor data{DType::kF32, {4, 8}}, vector{DType::kF32, {8}}, rows{DType::kF32, {4}};
  return {.x = data,
          .dy = data,
          .gamma = vector,
          .mean = rows,
          .spread = rows,
          .dx = data,
          .dgamma = vector,
          .dbeta = vector};
}

BatchNormBackward batch_norm() {
  const Tensor data{DType::kF32, {4, 3, 5}}, vector{DType::kF32, {3}};
  return {.x = data, .dy = data, .gamma = vector, .mean = vector, .spread = vector, .dx = data};
}

template <class Call>
void expect_refusal(const Call& call, Code code, const std::string& words) {
  Plan plan;
  const Status status = Plan::create(call, Device::kCpu, plan);
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  EXPECT_EQ(plan.workspace_size(), 0u);
  try {
    const Plan thrown(call);
    ADD_FAILURE() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(error.what(), status.message());
  }
}

TEST(NativeErrors, Statistics) {
  LayerNormBackward call = layer_norm();
  call.mean.reset();
  expect_refusal(call, Code::kBadArgument, "mean: required");
  call = layer_norm();
  call.statistics = Statistics::kXHatStd;
  expect_refusal(call, Code::kBadArgument, "mean: expected none");
  BatchNormBackward bn = batch_norm();
  bn.statistics = Statistics::kXHatStd;
  expect_refusal(bn, Code::kBadArgument, "statistics");
}

TEST(NativeErrors, Eps) {
  for (const double eps : {-1e-5, static_cast<double>(NAN), HUGE_VAL}) {
    LayerNormBackward call = layer_norm();
    call.statistics = Statistics::kMeanVariance;
    call.eps = eps;
    expect_refusal(call, Code::kBadArgument, "eps");
  }
  LayerNormBackward call = layer_norm();
  call.eps = 1e-5;  // beside rstd it would be ignored
  expect_refusal(call, Code::kBadArgument, "eps: expected 0");
}

TEST(NativeErrors, TypesShapesStrides) {
  LayerNormBackward call = layer_norm();
  call.dy.dtype = DType::kF16;
  expect_refusal(call, Code::kBadDType, "dy: expected f32 like x, got f16");
  call = layer_norm();
  call.dgamma->shape = {7};
  expect_refusal(call, Code::kBadShape, "dgamma: expected 8 elements, one per column, got shape");
  call = layer_norm();
  call.mean->shape = {4, 2};
  expect_refusal(call, Code::kBadShape, "mean: expected 4 elements, one per row, got shape (4, 2)");
  call = layer_norm();
  call.dx->strides = {7, 1};
  expect_refusal(call, Code::kBadStrides, "dx: elements of an output overlap");
  BatchNormBackward bn = batch_norm();
  bn.mean.shape = {4};
  expect_refusal(bn, Code::kBadShape, "mean: expected 3 elements, one per channel, got shape (4)");
  bn = batch_norm();
  bn.x.shape = bn.dy.shape = {12};
  bn.dx->shape = {12};
  expect_refusal(bn, Code::kBadShape, "x: expected 2 to 8 axes, got 1");
  bn = batch_norm();
  bn.gamma->dtype = DType::kI32;
  expect_refusal(bn, Code::kBadDType, "gamma: expected f32, f16 or bf16, got i32");
}

LayerNorm layer() {
  const Tensor data{DType::kF32, {4, 8}}, vector{DType::kF32, {8}}, rows{DType::kF32, {4}};
  return {.x = data, .gamma = vector, .beta = vector, .y = data, .mean = rows, .spread = rows};
}

BatchNorm channels() {
  const Tensor data{DType::kF32, {4, 3, 5}}, vector{DType::kF32, {3}};
  return {.x = data, .running_mean = vector, .running_variance = vector, .y = data, .mean = vector};
}

TEST(NativeErrors, Layers) {
  LayerNorm call = layer();
  call.eps = -1;
  expect_refusal(call, Code::kBadArgument, "eps: expected a finite value >= 0, got -1");
  call = layer();
  call.gamma_offset = NAN;
  expect_refusal(call, Code::kBadArgument, "gamma_offset: expected a finite value, got nan");
  call = layer();
  call.y->dtype = DType::kF16;
  expect_refusal(call, Code::kBadDType, "y: expected f32 like x, got f16");
  call = layer();
  call.residual = Tensor{DType::kF32, {4, 7}};
  expect_refusal(call, Code::kBadShape, "residual: expected shape (4, 8) like x, got (4, 7)");
  call = layer();
  call.beta->shape = {7};
  expect_refusal(call, Code::kBadShape, "beta: expected 8 elements, one per column");
  call = layer();
  call.spread->shape = {5};
  expect_refusal(call, Code::kBadShape, "spread: expected 4 elements, one per row");
  call = layer();
  call.y->strides = {0, 1};
  expect_refusal(call, Code::kBadStrides, "y: an output must not have stride 0");
}

TEST(NativeErrors, RunningStatistics) {
  BatchNorm call = channels();
  call.running_variance.reset();
  expect_refusal(call, Code::kBadArgument, "running_variance: required beside the running mean");
  call = channels();
  call.running_mean.reset();
  expect_refusal(call, Code::kBadArgument, "running_mean: required beside the running variance");
  call = channels();
  call.frozen = true;
  expect_refusal(call, Code::kBadArgument, "mean: expected none");
  call.mean.reset();
  call.running_variance.reset();
  expect_refusal(call, Code::kBadArgument, "running_variance: required with frozen statistics");
  call = channels();
  call.momentum = HUGE_VAL;
  expect_refusal(call, Code::kBadArgument, "momentum: expected a finite value");
  call = channels();
  call.statistics = Statistics::kXHatStd;
  expect_refusal(call, Code::kBadArgument, "statistics");
  call = channels();
  call.running_mean->shape = {4};
  expect_refusal(call, Code::kBadShape, "running_mean: expected 3 elements, one per channel");
}

TEST(NativeErrors, ResidualGradient) {
  LayerNormBackward call = layer_norm();
  call.dh = Tensor{DType::kF16, {4, 8}};
  expect_refusal(call, Code::kBadDType, "dh: expected f32 like x, got f16");
  call.dh = Tensor{DType::kF32, {4, 8}};
  call.dx.reset();
  expect_refusal(call, Code::kBadArgument, "dh: expected none without dx");
  call = layer_norm();
  call.gamma_offset = HUGE_VAL;
  expect_refusal(call, Code::kBadArgument, "gamma_offset: expected a finite value, got inf");
}

// What passes between the steps of a BatchNorm: its types and shapes.
TEST(NativeErrors, Steps) {
  const Tensor data{DType::kF32, {4, 3, 5}}, vector{DType::kF64, {3}}, parts{DType::kF64, {2, 3}};
  const BatchNormReduce reduce{
      .x = data, .mean = vector, .squares = vector, .count = Tensor{DType::kI64, {1}}};
  BatchNormReduce first = reduce;
  first.count->dtype = DType::kI32;
  expect_refusal(first, Code::kBadDType, "count: expected i64, got i32");
  first = reduce;
  first.count->shape = {2};
  expect_refusal(first, Code::kBadShape, "count: expected 1 element, one per batch, got shape (2)");
  first = reduce;
  first.squares.dtype = DType::kI64;
  expect_refusal(first, Code::kBadDType, "squares: expected f32, f16, bf16 or f64, got i64");
  first = reduce;
  first.x.dtype = DType::kF64;
  expect_refusal(first, Code::kBadDType, "x: expected f32, f16 or bf16, got f64");
  first = reduce;
  first.mean.shape = {4};
  expect_refusal(first, Code::kBadShape, "mean: expected 3 elements, one per channel");

  const BatchNormElementwise elementwise{.x = data,
                                         .mean = parts,
                                         .squares = parts,
                                         .count = {DType::kI64, {2}},
                                         .y = data,
                                         .saved_mean = Tensor{DType::kF32, {3}}};
  BatchNormElementwise second = elementwise;
  second.count.dtype = DType::kF64;
  expect_refusal(second, Code::kBadDType, "count: expected i64, i32, f32, f16 or bf16, got f64");
  second = elementwise;
  second.count.shape = {3};
  expect_refusal(second, Code::kBadShape,
                 "squares: expected 9 elements, one per part and channel, got shape (2, 3)");
  second.count.shape = {0};
  expect_refusal(second, Code::kBadShape, "count: expected an element per part, got none");
  second.x.shape = {1, 8};
  second.y.reset();
  second.saved_mean->shape = {8};
  second.count = {DType::kF16, {int64_t{1} << 61}, {0}};  // 2^64 elements
  expect_refusal(second, Code::kBadShape, "squares: expected 9223372036854775807 elements");
  second = elementwise;
  second.mean.shape = {3};
  expect_refusal(second, Code::kBadShape, "mean: expected 6 elements, one per part and channel");
  second = elementwise;
  second.saved_mean->dtype = DType::kF64;
  expect_refusal(second, Code::kBadDType, "saved_mean: expected f32, f16 or bf16, got f64");
  second = elementwise;
  second.running_mean = Tensor{DType::kF32, {3}};
  expect_refusal(second, Code::kBadArgument, "running_variance: required beside the running mean");
  second = elementwise;
  second.eps = -1;
  expect_refusal(second, Code::kBadArgument, "eps: expected a finite value >= 0, got -1");

  const Tensor floats{DType::kF32, {3}};
  BatchNormElementwiseBackward gradient{.x = data,
                                        .dy = data,
                                        .mean = floats,
                                        .spread = floats,
                                        .sum_dy = parts,
                                        .sum_dy_xmu = vector,
                                        .count = {DType::kI64, {2}},
                                        .dx = data};
  expect_refusal(gradient, Code::kBadShape,
                 "sum_dy_xmu: expected 6 elements, one per part and channel, got shape (3)");
  gradient.sum_dy = gradient.sum_dy_xmu = vector;  // of the whole batch: as many counts as you like
  Plan plan;
  EXPECT_TRUE(Plan::create(gradient, Device::kCpu, plan).ok());
  gradient.mean.dtype = DType::kF64;
  expect_refusal(gradient, Code::kBadDType, "mean: expected f32, f16 or bf16, got f64");
}

// Where outputs may lie, and where not.
TEST(NativeErrors, LayersInPlace) {
  std::vector<float> x(32, 1), residual(32, 2), gamma(8, 1), beta(8), rows(8);
  LayerNorm call = layer();
  call.residual = call.h = call.x;
  const Plan plan(call);
  std::vector<std::byte> workspace(plan.workspace_size());
  const auto run = [&](float* y, float* h) {
    Buffers buffers;
    buffers.x = x.data();
    buffers.residual = residual.data();
    buffers.gamma = gamma.data();
    buffers.beta = beta.data();
    buffers.y = y;
    buffers.h = h;
    buffers.saved_mean = rows.data();
    buffers.saved_spread = rows.data() + 4;
    return plan.execute(buffers, workspace.data(), workspace.size());
  };
  EXPECT_TRUE(run(x.data(), residual.data()).ok());
  EXPECT_TRUE(run(residual.data(), x.data()).ok());
  EXPECT_EQ(run(x.data(), x.data()).message(), "y: overlaps h in memory");
  std::vector<float> apart(40);
  EXPECT_EQ(run(apart.data(), apart.data() + 4).message(), "y: overlaps h in memory");
  EXPECT_EQ(run(gamma.data(), residual.data()).message(), "y: overlaps gamma in memory");
}

TEST(NativeErrors, Axes) {
  for (const int axes : {-1, 0, 3}) {
    LayerNormBackward call = layer_norm();
    call.normalized_axes = axes;
    expect_refusal(call, Code::kBadArgument, "normalized_axes: expected 1 to 2");
  }
  for (const int axis : {-1, 3}) {
    BatchNormBackward call = batch_norm();
    call.channel_axis = axis;
    expect_refusal(call, Code::kBadArgument, "channel_axis: expected 0 to 2");
  }
}

// A copy of x would need more bytes than there are addresses; without one the call is fine.
TEST(NativeErrors, CopiesBeyondMemory) {
  const int64_t rows = int64_t{1} << 60;
  const Tensor data{DType::kF16, {rows, 2}, {0, 1}}, row{DType::kF16, {rows}, {0}},
      vector{DType::kF16, {2}};
  RmsNormBackward call{.x = data, .dy = data, .spread = row, .dgamma = vector};
  Plan plan;
  EXPECT_TRUE(Plan::create(call, Device::kCpu, plan).ok());
  call.x.strides = call.dy.strides = {0, 2};
  expect_refusal(call, Code::kBadShape, "its copy needs more than 2^63 - 1 bytes of workspace");
}

TEST(NativeErrors, Devices) {
  Plan plan;
  const Code there = cuda::device_count() > 0 ? Code::kOk : Code::kUnsupportedDevice;
  EXPECT_EQ(Plan::create(layer_norm(), Device::kCuda, plan).code(), there);
  setenv("NORMGRAD_IMPL", "cpu:abacus", 1);
  expect_refusal(layer_norm(), Code::kUnsupportedDevice, "got cpu:abacus");
  setenv("NORMGRAD_IMPL", "cuda:sm90", 1);  // does not concern the CPU
  EXPECT_TRUE(Plan::create(layer_norm(), Device::kCpu, plan).ok());
  unsetenv("NORMGRAD_IMPL");
}

TEST(NativeErrors, EmptyPlanAndUnusedPointers) {
  EXPECT_EQ(Plan().execute({}, nullptr, 0).code(), Code::kBadArgument);
  EXPECT_THROW(Plan().run({}, nullptr, 0), Error);
  // A plan without outputs has nothing to do and looks at nothing.
  LayerNormBackward call = layer_norm();
  call.dx.reset();
  call.dgamma.reset();
  call.dbeta.reset();
  const Plan plan(call);
  EXPECT_EQ(plan.workspace_size(), 0u);
  EXPECT_TRUE(plan.execute({}, nullptr, 0).ok());
}

TEST(NativeErrors, KernelNamesWhatRuns) {
  EXPECT_NE(Plan(layer_norm()).kernel().find(" rows"), std::string::npos);
  EXPECT_NE(Plan(batch_norm()).kernel().find(" planes"), std::string::npos);
  LayerNormBackward call = layer_norm();
  call.dy.strides = {1, 4};
  EXPECT_NE(Plan(call).kernel().find(" rows, copy of dy"), std::string::npos);
}

}  // namespace
}  // namespace normgrad
