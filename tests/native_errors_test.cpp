// What the native API refuses beyond what the dialects can express, and its two ways of saying so.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

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
  expect_refusal(call, Code::kBadShape, "dgamma: expected shape (8), got (7)");
  call = layer_norm();
  call.mean->shape = {4, 2};
  expect_refusal(call, Code::kBadShape, "mean: expected shape (4) or (4, 1), got (4, 2)");
  call = layer_norm();
  call.dx->strides = {16, 2};
  expect_refusal(call, Code::kBadStrides, "dx: expected stride 1 on the last axis");
  call.dx->strides = {7, 1};
  expect_refusal(call, Code::kBadStrides, "dx: elements of an output overlap");
  BatchNormBackward bn = batch_norm();
  bn.x.strides = {15, 1, 3};  // channels last, while dy and dx are not
  expect_refusal(bn, Code::kBadStrides, "expected stride 1 along");
}

TEST(NativeErrors, Devices) {
  Plan plan;
  EXPECT_EQ(Plan::create(layer_norm(), Device::kCuda, plan).code(), Code::kUnsupportedDevice);
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
}

}  // namespace
}  // namespace normgrad
