// aclnnLayerNorm and aclnnRmsNorm: the table of the layers, within the bounds and bit for bit what
// the native API gives; each layer and its gradient, one after the other. Then the gradient of a
// LayerNorm of a sum.
#include <gtest/gtest.h>

#include <string>

#include "aclnn_layer_norm.hpp"

namespace acl_test {
namespace {

using normgrad::reference::Case;
using normgrad::reference::ForwardInstance;
using normgrad::reference::kProven;
using normgrad::reference::Rows;
using normgrad::reference::rows_backward;
using Reference = normgrad::reference::Op;

class AclnnForward : public testing::TestWithParam<Reference> {};

TEST_P(AclnnForward, IsWithinTheBoundsAndEqualsTheNativeApi) {
  int expressible = 0;
  for (const Case& entry : normgrad::reference::forward_cases(GetParam())) {
    const Case c = spoken(entry);
    SCOPED_TRACE(c.name);
    ForwardInstance aclnn(c);
    const std::optional<Call> translated = translate(aclnn.call(), aclnn.buffers());
    if (!translated) continue;
    ++expressible;
    const Status status = run(*translated);
    ASSERT_TRUE(status.ok()) << status.message();
    const normgrad::reference::Report report = aclnn.check();
    EXPECT_TRUE(report.ok) << report.why;

    ForwardInstance native(c);
    normgrad::Plan plan;
    ASSERT_TRUE(native.plan(normgrad::Device::kCpu, plan).ok());
    ASSERT_TRUE(normgrad::reference::run_native(plan, native.buffers()).ok());
    EXPECT_EQ(aclnn.hash(), native.hash());
  }
  RecordProperty("expressible", expressible);
  EXPECT_GT(expressible, 100);
}

INSTANTIATE_TEST_SUITE_P(Table, AclnnForward,
                         testing::Values(Reference::kLayerNorm, Reference::kRmsNorm),
                         [](const auto& test) {
                           std::string name = normgrad::reference::name_of(test.param);
                           std::erase(name, '_');
                           return name;
                         });

// What the roundings of mean and rstd to FLOAT add to K, where the mean is not above the standard
// deviation.
constexpr double kSaved = 8;

// The oracle has x, and nothing that was rounded on the way.
TEST(AclnnChain, LayerNorm) {
  const double eps = 1e-3;
  for (const DType dtype : kDTypes) {
    Problem problem = {.data = dtype, .outputs = {dtype, DType::kF32, DType::kF32}};
    LayerNorm norm(problem, kDense);
    norm[kMean] = Array(norm[kMean].tensor());
    norm[kRstd] = Array(norm[kRstd].tensor());
    const Array out(norm[kInput].tensor());
    const Status status = run({.op = Op::kForwardLayerNorm,
                               .tensors = {norm[kInput].view(), norm[kWeight].view(), kAbsent,
                                           out.view(), norm[kMean].view(), norm[kRstd].view()},
                               .normalized_shape = problem.row(),
                               .eps = eps});
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(norm.run().ok());

    const normgrad::LayerNorm layer = {
        .x = norm[kInput].tensor(), .eps = eps, .normalized_axes = 2};
    const auto exact = normgrad::reference::layer_norm(layer, {.x = norm[kInput].data()});
    const Rows rows = {.rows = problem.rows(),
                       .cols = product(problem.row()),
                       .x = norm[kInput].values(),
                       .dy = norm[kGradOut].values(),
                       .gamma = norm[kWeight].values(),
                       .mean = exact.mean.values,
                       .spread = exact.spread.values};
    const Gradients ref = rows_backward(rows);
    EXPECT_EQ(wrong("dx", norm[kGradInput], ref.dx, ref.dx_scale, kProven.dx + kSaved, 0), "");
    EXPECT_EQ(wrong("dgamma", norm[kGradWeight], ref.dgamma, ref.dgamma_scale,
                    kProven.dgamma + kSaved, rows.rows),
              "");
    EXPECT_EQ(wrong("dbeta", norm[kGradBias], ref.dbeta, ref.dbeta_scale, kProven.dbeta, rows.rows),
              "");
  }
}

TEST(AclnnChain, RmsNorm) {
  const double eps = 1e-3;
  const Shape shape = {3, 4, 37};
  for (const DType dtype : kDTypes) {
    const Array x({dtype, shape}, random_values(product(shape), 1, 0.5, 2));
    const Array dy({dtype, shape}, random_values(product(shape), 2, 0.3, 1));
    const Array gamma({dtype, {37}}, random_values(37, 3, 1, 0.5));
    const Array y({dtype, shape}), dx({dtype, shape}), rstd({DType::kF32, {3, 4, 1}});
    const Array dgamma({DType::kF32, {37}});
    ASSERT_TRUE(run({.op = Op::kForwardRmsNorm,
                     .tensors = {x.view(), gamma.view(), y.view(), rstd.view()},
                     .eps = eps})
                    .ok());
    ASSERT_TRUE(
        run({.op = Op::kRmsNorm,
             .tensors = {dy.view(), x.view(), rstd.view(), gamma.view(), dx.view(), dgamma.view()}})
            .ok());
    const Rows rows = {.rows = 12,
                       .cols = 37,
                       .rms = true,
                       .x = x.values(),
                       .dy = dy.values(),
                       .gamma = gamma.values(),
                       .mean = {},
                       .spread = {},
                       .eps = eps};
    const Gradients ref = rows_backward(rows);
    EXPECT_EQ(wrong("dx", dx, ref.dx, ref.dx_scale, kProven.dx + kSaved, 0), "");
    EXPECT_EQ(
        wrong("dgamma", dgamma, ref.dgamma, ref.dgamma_scale, kProven.dgamma + kSaved, rows.rows),
        "");
  }
}

// The table of LayerNorm's gradient with a residual's.
TEST(AclnnAddLayerNorm, IsWithinTheBoundsOfTheTableAndEqualsTheNativeApi) {
  int expressible = 0;
  for (const Case& entry : normgrad::reference::extended_cases(Reference::kLayerNorm)) {
    if (!entry.has_dh) continue;
    const Case c = spoken_sum(entry);
    SCOPED_TRACE(c.name);
    normgrad::reference::Instance aclnn(c);
    Array zero({c.data, {1}}, {-0.0});
    const std::optional<Call> translated =
        translate_sum(aclnn.call(), aclnn.buffers(), zero.data());
    if (!translated) continue;
    ++expressible;
    const Status status = run(*translated);
    ASSERT_TRUE(status.ok()) << status.message();
    const normgrad::reference::Report report = aclnn.check();
    EXPECT_TRUE(report.ok) << report.why;

    normgrad::reference::Instance native(c);
    ASSERT_TRUE(normgrad::reference::run_native(native.call(), native.buffers()).ok());
    EXPECT_EQ(aclnn.hash(), native.hash());
  }
  RecordProperty("expressible", expressible);
  EXPECT_GT(expressible, 100);
}

// An aclnnAddLayerNormGrad in memory.
struct AddLayerNorm {
  AddLayerNorm(const Shape& shape, size_t normalized, DType data, DType weight, Order order,
               bool has_dsum)
      : row(shape.end() - static_cast<std::ptrdiff_t>(normalized), shape.end()),
        dsum_given(has_dsum) {
    const int64_t elements = product(shape);
    Shape statistics(shape.begin(), shape.end() - static_cast<std::ptrdiff_t>(normalized));
    rows = product(statistics);
    const auto fill = [&](unsigned seed, double centre, double spread) {
      return Array(tensor_of(data, shape, order), random_values(elements, seed, centre, spread));
    };
    dy = fill(1, 0.3, 1);
    x1 = fill(2, 1, 2);
    x2 = fill(3, -0.5, 1);
    dsum = fill(4, 0.1, 1);
    rstd = Array(tensor_of(DType::kF32, statistics, order), random_values(rows, 5, 0.5, 0.1));
    mean = Array(tensor_of(DType::kF32, statistics, order), random_values(rows, 6, 0.5, 0.2));
    gamma = Array(tensor_of(weight, row, order), random_values(product(row), 7, 1, 0.5));
    dx = Array(tensor_of(data, shape, order));
    dgamma = Array(tensor_of(DType::kF32, row, order));
    dbeta = dgamma;
  }

  Call call() const {
    return {
        .op = Op::kAddLayerNorm,
        .tensors = {dy.view(), x1.view(), x2.view(), rstd.view(), mean.view(), gamma.view(),
                    dsum_given ? dsum.view() : kAbsent, dx.view(), dgamma.view(), dbeta.view()}};
  }

  // x1 + x2, rounded as the type of both has it.
  std::vector<double> sum() const {
    std::vector<double> values = x1.values();
    const std::vector<double> others = x2.values();
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = normgrad::reference::round_to(x1.tensor().dtype, values[i] + others[i]);
    }
    return values;
  }

  Gradients oracle() const {
    return rows_backward({.rows = rows,
                          .cols = product(row),
                          .x = sum(),
                          .dy = dy.values(),
                          .gamma = gamma.values(),
                          .mean = mean.values(),
                          .spread = rstd.values(),
                          .dh = dsum_given ? dsum.values() : std::vector<double>()});
  }

  std::string wrong_outputs(const Gradients& ref) const {
    return wrong("dxOut", dx, ref.dx, ref.dx_scale, kProven.dx, 0) +
           wrong("dgammaOut", dgamma, ref.dgamma, ref.dgamma_scale, kProven.dgamma, rows) +
           wrong("dbetaOut", dbeta, ref.dbeta, ref.dbeta_scale, kProven.dbeta, rows);
  }

  Shape row;
  bool dsum_given;
  int64_t rows = 0;
  Array dy, x1, x2, rstd, mean, gamma, dsum, dx, dgamma, dbeta;
};

// Ranks 1 to 8, any number of normalized axes, each type and layout, with dsum and without.
TEST(AclnnAddLayerNorm, IsWithinTheBounds) {
  const Shape full = {2, 1, 3, 2, 1, 2, 2, 9};
  for (size_t rank = 1; rank <= 8; ++rank) {
    const Shape shape(full.end() - static_cast<std::ptrdiff_t>(rank), full.end());
    for (size_t normalized = 1; normalized <= rank; ++normalized) {
      for (unsigned i = 0; i < 3 * 2 * 2 * 5; ++i) {
        const DType data = kDTypes[i % 3], weight = i / 3 % 2 ? DType::kF32 : data;
        const AddLayerNorm norm(shape, normalized, data, weight, kOrders[i / 12], i / 6 % 2);
        const Status status = run(norm.call());
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_EQ(norm.wrong_outputs(norm.oracle()), "") << rank << " " << normalized << " " << i;
      }
    }
  }
}

TEST(AclnnAddLayerNorm, EqualsTheGradientOfTheSum) {
  for (const DType dtype : kDTypes) {
    const Shape shape = {3, 4, 257};
    const AddLayerNorm norm(shape, 1, dtype, dtype, Order::kDense, false);
    const Array h({dtype, shape}, norm.sum()), dx({dtype, shape});
    const Array dgamma({DType::kF32, {257}}), dbeta = dgamma;
    ASSERT_TRUE(run(norm.call()).ok());
    ASSERT_TRUE(
        run({.op = Op::kLayerNorm,
             .tensors = {norm.dy.view(), h.view(), norm.mean.view(), norm.rstd.view(),
                         norm.gamma.view(), kAbsent, dx.view(), dgamma.view(), dbeta.view()},
             .normalized_shape = Shape{257}})
            .ok());
    EXPECT_EQ(norm.dx.values(), dx.values());
    EXPECT_EQ(norm.dgamma.values(), dgamma.values());
    EXPECT_EQ(norm.dbeta.values(), dbeta.values());
  }
}

TEST(AclnnAddLayerNorm, DxMayLieInAnInput) {
  for (const Order order : kOrders) {
    const AddLayerNorm apart({3, 4, 33}, 1, DType::kF16, DType::kF16, order, true);
    ASSERT_TRUE(run(apart.call()).ok());
    for (Array AddLayerNorm::*place :
         {&AddLayerNorm::dy, &AddLayerNorm::x1, &AddLayerNorm::x2, &AddLayerNorm::dsum}) {
      const AddLayerNorm norm({3, 4, 33}, 1, DType::kF16, DType::kF16, order, true);
      Call call = norm.call();
      call["dxOut"] = (norm.*place).view();
      const Status status = run(call);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ((norm.*place).values(), apart.dx.values());
      EXPECT_EQ(norm.dgamma.values(), apart.dgamma.values());
      EXPECT_TRUE((norm.*place).intact() && norm.dx.unwritten());
    }
  }
}

// A repeatable executor makes the sum of what is there when it runs.
TEST(AclnnAddLayerNorm, RunsAgainWithOtherTerms) {
  AddLayerNorm norm({3, 4, 33}, 1, DType::kF32, DType::kF32, Order::kDense, true);
  const Call call = norm.call();
  const Objects objects(call);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  ASSERT_EQ(phase_1(call, objects, &size, &executor), ACL_SUCCESS) << last_message();
  ASSERT_EQ(aclSetAclOpExecutorRepeatable(executor), ACL_SUCCESS);
  std::vector<std::byte> workspace(size);
  for (const double factor : {1.0, -3.0}) {
    std::vector<double> values = norm.x2.values();
    for (double& value : values) value *= factor;
    normgrad::reference::scatter(norm.x2.tensor(), norm.x2.data(), values);
    ASSERT_EQ(phase_2(call.op, workspace.data(), size, executor), ACL_SUCCESS) << last_message();
    EXPECT_EQ(norm.wrong_outputs(norm.oracle()), "") << factor;
  }
  EXPECT_EQ(aclDestroyAclOpExecutor(executor), ACL_SUCCESS);
}

// No rows: the sums over them are 0. No columns: there is nothing to write.
TEST(AclnnAddLayerNorm, EmptyTensors) {
  for (const Shape& shape : {Shape{0, 5}, {2, 0}}) {
    const AddLayerNorm norm(shape, 1, DType::kF16, DType::kF16, Order::kDense, true);
    const Status status = run(norm.call());
    ASSERT_TRUE(status.ok()) << status.message();
    for (const Array* sums : {&norm.dgamma, &norm.dbeta}) {
      EXPECT_EQ(sums->values(), std::vector<double>(static_cast<size_t>(shape[1]), 0));
    }
  }
}

}  // namespace
}  // namespace acl_test
