// Values at the edges of float32's range, statistics that are not those of x, and layouts that only
// look contiguous: small problems made by hand, against the oracle.
#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <cmath>
#include <limits>
#include <vector>

#include "reference/bound.hpp"
#include "reference/cases.hpp"

namespace normgrad::reference {
namespace {

using Floats = std::vector<float>;

struct Problem {
  Call call;
  Floats x, dy, gamma, mean, spread;
  Gates gates = kProven;
  size_t first = 0;  // element of x and dy at which their tensors start

  // Runs it: dx of a contiguous problem.
  Floats dx() const {
    Floats result(x.size(), NAN), dgamma(gamma.size()), dbeta(gamma.size());
    const Status status =
        run_native(call, {x.data(), dy.data(), gamma.data(), mean.data(), spread.data(),
                          result.data(), dgamma.data(), dbeta.data()});
    EXPECT_TRUE(status.ok()) << status.message();
    return result;
  }

  // Runs it and compares what there is; `elements`: of dx, which may have gaps.
  void expect_within_bound(size_t elements) const {
    Floats dx(elements, NAN), dgamma(gamma.size(), NAN), dbeta(gamma.size(), NAN);
    const Buffers buffers{x.data() + first, dy.data() + first, gamma.data(),  mean.data(),
                          spread.data(),    dx.data(),         dgamma.data(), dbeta.data()};
    const Status status = run_native(call, buffers);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto check = [](const char* name, const std::optional<Tensor>& tensor, const Floats& data,
                          const std::vector<double>& ref, const std::vector<double>& scale,
                          double k) {
      if (!tensor) return;
      const Verdict verdict = compare(name, *tensor, data.data(), ref, scale, k, 0);
      EXPECT_EQ(verdict.failures, 0) << verdict.first_failure;
    };
    const auto check_all = [&](const auto& c, const Gradients& g) {
      check("dx", c.dx, dx, g.dx, g.dx_scale, gates.dx);
      check("dgamma", c.dgamma, dgamma, g.dgamma, g.dgamma_scale, gates.dgamma);
    };
    if (const auto* rms = std::get_if<RmsNormBackward>(&call)) {
      check_all(*rms, rms_norm_backward(*rms, buffers));
    } else if (const auto* bn = std::get_if<BatchNormBackward>(&call)) {
      const Gradients g = batch_norm_backward(*bn, buffers);
      check_all(*bn, g);
      check("dbeta", bn->dbeta, dbeta, g.dbeta, g.dbeta_scale, gates.dbeta);
    } else {
      const auto& ln = std::get<LayerNormBackward>(call);
      const Gradients g = layer_norm_backward(ln, buffers);
      check_all(ln, g);
      check("dbeta", ln.dbeta, dbeta, g.dbeta, g.dbeta_scale, gates.dbeta);
    }
  }
};

// One row.
Problem layer_norm(Floats x, Floats dy, Floats gamma, float mean, float rstd) {
  const auto cols = static_cast<int64_t>(x.size());
  const Tensor data{DType::kF32, {1, cols}}, vector{DType::kF32, {cols}}, row{DType::kF32, {1}};
  return {.call = LayerNormBackward{.x = data,
                                    .dy = data,
                                    .gamma = vector,
                                    .mean = row,
                                    .spread = row,
                                    .dx = data,
                                    .dgamma = vector,
                                    .dbeta = vector},
          .x = std::move(x),
          .dy = std::move(dy),
          .gamma = std::move(gamma),
          .mean = {mean},
          .spread = {rstd}};
}

Problem rms_norm(Floats x, Floats dy, Floats gamma) {
  const auto cols = static_cast<int64_t>(x.size());
  const Tensor data{DType::kF32, {1, cols}}, vector{DType::kF32, {cols}};
  return {
      .call = RmsNormBackward{.x = data, .dy = data, .gamma = vector, .dx = data, .dgamma = vector},
      .x = std::move(x),
      .dy = std::move(dy),
      .gamma = std::move(gamma),
      .mean = {},
      .spread = {}};
}

// One channel of x.size() samples.
Problem batch_norm(Floats x, Floats dy, float gamma, float mean, float variance, bool frozen) {
  const auto samples = static_cast<int64_t>(x.size());
  const Tensor data{DType::kF32, {samples, 1, 1}}, vector{DType::kF32, {1}};
  return {.call = BatchNormBackward{.x = data,
                                    .dy = data,
                                    .gamma = vector,
                                    .mean = vector,
                                    .spread = vector,
                                    .frozen = frozen,
                                    .dx = data,
                                    .dgamma = vector,
                                    .dbeta = vector},
          .x = std::move(x),
          .dy = std::move(dy),
          .gamma = {gamma},
          .mean = {mean},
          .spread = {variance},
          .gates = frozen ? kProvenFrozen : kProven};
}

TEST(HardValues, GradientsNearTheLargestFloat) {
  layer_norm({1, 2, 3}, {3e38f, -3e38f, -3e38f}, {1, 1, 1}, 2, 1e-10f).expect_within_bound(3);
  rms_norm({1e20f, 2e20f, -1e20f}, {3e38f, -3e38f, 2e38f}, {1, 1, 1}).expect_within_bound(3);
  batch_norm({1, 2, 3}, {3e38f, -3e38f, -3e38f}, 1, 2, 1e20f, false).expect_within_bound(3);
  layer_norm({1e20f, 0, 0}, {1e30f, 1, 2}, {1, 1, 1}, 0, 1).expect_within_bound(3);
}

TEST(HardValues, GradientsTooSmallForFloat32) {
  layer_norm({1, 2, 4}, {1e-25f, 3e-25f, -1e-25f}, {1e-25f, 1e-25f, 2e-25f}, 2, 1e15f)
      .expect_within_bound(3);
  rms_norm({1e-20f, 2e-20f, -1e-20f}, {1e-23f, 3e-23f, 1e-23f}, {1e-24f, 1e-24f, 2e-24f})
      .expect_within_bound(3);
  layer_norm({1, 2, 4}, {1e-40f, 3e-40f, -1e-40f}, {0.3f, 0.7f, 1.1f}, 2, 1e6f)
      .expect_within_bound(3);
}

// g * (x - mean) vanishes in float32, and with it a mean that dx needs: neither g nor x_hat does.
TEST(HardValues, ProductsTooSmallForFloat32) {
  layer_norm({1e-23f, 2e-23f, -4e-23f}, {1e-23f, 3e-23f, -1e-23f}, {0.3f, 0.7f, 1.1f}, 0, 1e23f)
      .expect_within_bound(3);
}

TEST(HardValues, FrozenStatisticsDoNotReadX) {
  batch_norm({1e38f, -1e38f, 0}, {1, 2, 3}, 1, 0, 1e-4f, true).expect_within_bound(3);
  Problem problem = batch_norm({NAN, INFINITY, 1}, {1, 2, 3}, 2, 0, 4, true);
  auto& call = std::get<BatchNormBackward>(problem.call);
  call.dgamma.reset();
  call.dbeta.reset();
  problem.expect_within_bound(3);
}

TEST(HardValues, FrozenDxHasTheSameBitsForAnyX) {
  const Floats dy = {0.1f, 0.2f, 0.3f, 0.7f, 1.1f, 1.3f, 1.7f, 1.9f};
  const auto dx_for = [&](float x) {
    return batch_norm(Floats(dy.size(), x), dy, 1.1f, 0.3f, 3, true).dx();
  };
  EXPECT_EQ(dx_for(1), dx_for(NAN));
}

// Side by side in one vector: a channel that float32 does not serve, and two that it does.
TEST(HardValues, AWideChannelLeavesItsNeighboursAlone) {
  const auto problem_with = [](float dy, float variance) {
    const Tensor data{DType::kF32, {3, 3, 1}}, vector{DType::kF32, {3}};
    return Problem{.call = BatchNormBackward{.x = data,
                                             .dy = data,
                                             .gamma = vector,
                                             .mean = vector,
                                             .spread = vector,
                                             .dx = data,
                                             .dgamma = vector,
                                             .dbeta = vector},
                   .x = {0.1f, 1, 0.3f, 0.7f, 2, 1.9f, 1.1f, 3, 0.2f},
                   .dy = {0.3f, dy, 0.7f, 0.9f, -dy, 0.1f, 1.3f, -dy, 0.6f},
                   .gamma = {1.1f, 1, 0.7f},
                   .mean = {0.6f, 2, 0.8f},
                   .spread = {0.3f, variance, 0.7f}};
  };
  const Problem wide = problem_with(3e38f, 1e20f);
  wide.expect_within_bound(9);
  const Floats dx = wide.dx(), expected = problem_with(1, 1).dx();
  for (const size_t i : {0, 2, 3, 5, 6, 8}) EXPECT_EQ(dx[i], expected[i]) << i;
}

TEST(HardValues, OneChannelWithAnyStrideAlongTheLength) {
  for (const int64_t stride : {2, 3, -1, -2}) {
    Problem problem =
        batch_norm({1, 5, 2, 5, 3, 5, 7, 5, 9, 9}, {2, 8, 4, 8, 1, 8, 3, 8, 9, 9}, 3, 2, 4, false);
    auto& call = std::get<BatchNormBackward>(problem.call);
    call.x = call.dy = {DType::kF32, {1, 1, 4}, {0, 0, stride}};
    call.dx = Tensor{DType::kF32, {1, 1, 4}};
    problem.first = stride < 0 ? 9 : 0;
    problem.expect_within_bound(4);
  }
}

// What a forward pass would give for nothing.
TEST(HardValues, EmptyBatchesWriteZerosWhateverTheirStatistics) {
  for (const Tensor& data : {Tensor{DType::kF32, {0, 2, 3}}, Tensor{DType::kF32, {3, 2, 0}},
                             Tensor{DType::kF32, {1000000, 2, 0}, {4, 2, 1}}}) {
    const Tensor vector{DType::kF32, {2}};
    const Plan plan(BatchNormBackward{.x = data,
                                      .dy = data,
                                      .gamma = vector,
                                      .mean = vector,
                                      .spread = vector,
                                      .dx = data,
                                      .dgamma = vector,
                                      .dbeta = vector});
    EXPECT_LT(plan.workspace_size(), 65536u);
    const Floats nothing(2, NAN), gamma(2, 1);
    Floats dgamma(2, NAN), dbeta(2, NAN);
    std::vector<char> workspace(plan.workspace_size());
    plan.run({.gamma = gamma.data(),
              .mean = nothing.data(),
              .spread = nothing.data(),
              .dgamma = dgamma.data(),
              .dbeta = dbeta.data()},
             workspace.data(), workspace.size());
    EXPECT_EQ(dgamma, Floats(2, 0));
    EXPECT_EQ(dbeta, Floats(2, 0));
  }
}

// Subnormal statistics count, though the caller's own arithmetic may flush them.
TEST(HardValues, SubnormalVarianceUnderFlushedSubnormals) {
  const unsigned saved = _mm_getcsr();
  for (const int64_t length : {1, 40000}) {  // both kernels, and the one for few channels
    const Tensor data{DType::kF32, {4, 2, length}}, vector{DType::kF32, {2}};
    const size_t size = 8 * static_cast<size_t>(length);
    const Floats x(size, 1e-20f), dy(size, 1e-3f), gamma(2, 1), mean(2, 0), variance(2, 1e-40f);
    Floats dx(size, NAN);
    const Plan plan(BatchNormBackward{.x = data,
                                      .dy = data,
                                      .gamma = vector,
                                      .mean = vector,
                                      .spread = vector,
                                      .frozen = true,
                                      .dx = data});
    std::vector<char> workspace(plan.workspace_size());
    const Buffers buffers{.x = x.data(),
                          .dy = dy.data(),
                          .gamma = gamma.data(),
                          .mean = mean.data(),
                          .spread = variance.data(),
                          .dx = dx.data()};
    _mm_setcsr(saved | 0x8040);
    const bool ok = plan.execute(buffers, workspace.data(), workspace.size()).ok();
    _mm_setcsr(saved);
    EXPECT_TRUE(ok);
    for (const float value : dx) ASSERT_NEAR(value, 1e17f, 1e13f) << length;
  }
}

}  // namespace
}  // namespace normgrad::reference
