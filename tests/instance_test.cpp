// The case table and its instances: a faultless run passes every case, and no fault passes.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <optional>
#include <set>

#include "reference/cases.hpp"
#include "reference/elements.hpp"
#include "reference/reference.hpp"

namespace normgrad::reference {
namespace {

constexpr Op kOps[] = {Op::kLayerNorm, Op::kRmsNorm, Op::kBatchNorm};

Gradients gradients_of(const LayerNormBackward& call, const Buffers& buffers) {
  return layer_norm_backward(call, buffers);
}
Gradients gradients_of(const RmsNormBackward& call, const Buffers& buffers) {
  return rms_norm_backward(call, buffers);
}
Gradients gradients_of(const BatchNormBackward& call, const Buffers& buffers) {
  return batch_norm_backward(call, buffers);
}

void write(const std::optional<Tensor>& tensor, void* data, const std::vector<double>& values) {
  if (tensor && !values.empty()) scatter(*tensor, data, values);
}

void write_sum(const std::optional<Tensor>& tensor, void* data, std::vector<double> values,
               bool accumulate) {
  if (tensor && accumulate) {
    const std::vector<double> old = gather(*tensor, data);
    for (size_t i = 0; i < values.size(); ++i) values[i] += old[i];
  }
  write(tensor, data, values);
}

// The oracle as if it were a backend.
void run_oracle(const Call& call, const Buffers& buffers) {
  std::visit(
      [&](const auto& c) {
        const Gradients gradients = gradients_of(c, buffers);
        write(c.dx, buffers.dx, gradients.dx);
        write_sum(c.dgamma, buffers.dgamma, gradients.dgamma, c.accumulate);
        if constexpr (requires { c.dbeta; }) {
          write_sum(c.dbeta, buffers.dbeta, gradients.dbeta, c.accumulate);
        }
      },
      call);
}

std::vector<Case> gradient_cases(Op op) {
  std::vector<Case> all = cases(op, /*long_mode=*/false);
  for (Case& c : extended_cases(op)) all.push_back(std::move(c));
  return all;
}

TEST(CaseTable, TheOraclePassesEveryCase) {
  for (Op op : kOps) {
    for (const Case& c : gradient_cases(op)) {
      Instance instance(c);
      run_oracle(instance.call(), instance.buffers());
      const Instance::Report report = instance.check();
      EXPECT_TRUE(report.ok) << c.name << ": " << report.why;
      EXPECT_EQ(report.k("dx") + report.k("dgamma") + report.k("dbeta"), 0) << c.name;
      EXPECT_EQ(report.nearest16, report.elements16) << c.name;
    }
  }
}

Normalized layer_of(const LayerNorm& call, const Buffers& buffers) {
  return layer_norm(call, buffers);
}
Normalized layer_of(const RmsNorm& call, const Buffers& buffers) { return rms_norm(call, buffers); }
Normalized layer_of(const BatchNorm& call, const Buffers& buffers) {
  return batch_norm(call, buffers);
}

void run_oracle(const ForwardCall& call, const Buffers& buffers) {
  std::visit(
      [&](const auto& c) {
        const Normalized layer = layer_of(c, buffers);
        write(c.y, buffers.y, layer.y.values);
        write(c.spread, buffers.saved_spread, layer.spread.values);
        if constexpr (requires { c.mean; }) write(c.mean, buffers.saved_mean, layer.mean.values);
        if constexpr (requires { c.h; }) write(c.h, buffers.h, layer.h);
        if constexpr (requires { c.x_hat; }) write(c.x_hat, buffers.x_hat, layer.x_hat.values);
        if constexpr (requires { c.running_mean; }) {
          if (c.frozen) return;
          write(c.running_mean, buffers.running_mean, layer.running_mean.values);
          write(c.running_variance, buffers.running_variance, layer.running_variance.values);
        }
      },
      call);
}

TEST(CaseTable, TheOraclePassesEveryLayer) {
  for (Op op : kOps) {
    for (const Case& c : forward_cases(op)) {
      ForwardInstance instance(c);
      run_oracle(instance.call(), instance.buffers());
      const Report report = instance.check();
      EXPECT_TRUE(report.ok) << c.name << ": " << report.why;
      for (const Report::Output& output : report.outputs) EXPECT_EQ(output.k, 0) << c.name;
      EXPECT_EQ(report.nearest16, report.elements16) << c.name;
    }
  }
}

void run_oracle(const BatchNormReduce& call, const Buffers& buffers) {
  const ChannelMoments moments = batch_norm_moments(call, buffers);
  write(call.mean, buffers.saved_mean, moments.mean.values);
  write(call.squares, buffers.squares, moments.squares.values);
}
void run_oracle(const BatchNormElementwise& call, const Buffers& buffers) {
  const Normalized layer = batch_norm_elementwise(call, buffers);
  write(call.y, buffers.y, layer.y.values);
  write(call.saved_mean, buffers.saved_mean, layer.mean.values);
  write(call.saved_spread, buffers.saved_spread, layer.spread.values);
  write(call.running_mean, buffers.running_mean, layer.running_mean.values);
  write(call.running_variance, buffers.running_variance, layer.running_variance.values);
}
void run_oracle(const BatchNormReduceBackward& call, const Buffers& buffers) {
  const ChannelSums sums = batch_norm_sums(call, buffers);
  const Gradients gradients = batch_norm_reduce_backward(call, buffers);
  write(call.sum_dy, buffers.sum_dy, sums.dy);
  write(call.sum_dy_xmu, buffers.sum_dy_xmu, sums.dy_xmu);
  write(call.dgamma, buffers.dgamma, gradients.dgamma);
  write(call.dbeta, buffers.dbeta, gradients.dbeta);
}
void run_oracle(const BatchNormElementwiseBackward& call, const Buffers& buffers) {
  write(call.dx, buffers.dx, batch_norm_elementwise_backward(call, buffers).dx);
}

TEST(CaseTable, TheOraclePassesEveryStep) {
  for (const Case& c : step_cases(Op::kBatchNorm)) {
    StepInstance instance(c);
    std::visit(
        [&](const auto& call) {
          run_oracle(call, instance.buffers());
          const int64_t channels = c.groups();
          if (c.step != Step::kReduce || channels == 0) return;
          *static_cast<int64_t*>(instance.buffers().count) = count(call.x) / channels;
        },
        instance.call());
    const Report report = instance.check();
    EXPECT_TRUE(report.ok) << c.name << ": " << report.why;
    for (const Report::Output& output : report.outputs) EXPECT_EQ(output.k, 0) << c.name;
  }
}

TEST(CaseTable, NamesAreUniqueAndTheLongModeAdds) {
  for (Op op : kOps) {
    const std::vector<Case> quick = cases(op, false), all = cases(op, true);
    EXPECT_GT(all.size(), quick.size());
    std::set<std::string> names;
    for (const Case& c : all) EXPECT_TRUE(names.insert(c.name).second) << c.name;
  }
}

class Fault : public testing::TestWithParam<Op> {
 protected:
  // x (4, 5, 6), f32, with gaps.
  Case padded() const {
    Case c;
    c.op = GetParam();
    c.shape = {4, 5, 6};
    c.statistics = Statistics::kMeanVariance;
    c.layout = Layout::kPadded;
    return c;
  }

  // Why a run fails after which `spoil` has had its way with the memory.
  template <class Spoil>
  static std::string why(const Case& c, Spoil spoil) {
    Instance instance(c);
    run_oracle(instance.call(), instance.buffers());
    spoil(instance.buffers());
    const Instance::Report report = instance.check();
    EXPECT_EQ(report.ok, report.why.empty());
    return report.why;
  }
};

TEST_P(Fault, InAValue) {
  const Case c = padded();
  EXPECT_EQ(why(c, [](const Buffers&) {}), "");
  EXPECT_NE(why(c, [](const Buffers& b) { static_cast<float*>(b.dx)[3] *= 1.00001f; }), "");
  EXPECT_NE(why(c, [](const Buffers& b) { static_cast<float*>(b.dgamma)[4] *= 1.00001f; }), "");
  EXPECT_NE(why(c, [](const Buffers& b) { static_cast<float*>(b.dx)[5] = NAN; }), "");
}

TEST_P(Fault, OutsideTheElements) {
  const Case c = padded();
  EXPECT_EQ(why(c, [](const Buffers& b) { static_cast<float*>(b.dx)[6] = 0; }),
            "dx: written outside its elements");
  EXPECT_EQ(why(c, [](const Buffers& b) { static_cast<float*>(b.dx)[-1] = 0; }),
            "dx: written outside its elements");
  EXPECT_EQ(why(c, [](const Buffers& b) { static_cast<float*>(b.dgamma)[6] = 0; }),
            "dgamma: written outside its elements");
}

TEST_P(Fault, InAnInput) {
  const auto spoil = [](const void* p) { const_cast<float*>(static_cast<const float*>(p))[0] = 0; };
  EXPECT_EQ(why(padded(), [&](const Buffers& b) { spoil(b.x); }), "x: an input, but changed");
  EXPECT_EQ(why(padded(), [&](const Buffers& b) { spoil(b.gamma); }),
            "gamma: an input, but changed");
}

TEST_P(Fault, InAnAbsentOutput) {
  Case c = padded();
  c.want_dx = false;
  EXPECT_EQ(why(c, [](const Buffers&) {}), "");
  EXPECT_EQ(why(c, [](const Buffers& b) { static_cast<float*>(b.dx)[0] = 0; }),
            "dx: absent, but written");
}

TEST_P(Fault, InPlace) {
  for (InPlace in_place : {InPlace::kDy, InPlace::kX}) {
    Case c = padded();
    c.in_place = in_place;
    EXPECT_EQ(why(c, [](const Buffers&) {}), "");
    EXPECT_NE(why(c, [](const Buffers& b) { static_cast<float*>(b.dx)[3] *= 1.00001f; }), "");
    EXPECT_NE(why(c, [](const Buffers& b) { static_cast<float*>(b.dx)[6] = 0; }), "");
  }
}

TEST_P(Fault, NothingWritten) {
  Instance instance(padded());
  EXPECT_FALSE(instance.check().ok);
}

// Truncation where the bound allows it: only the count of correctly rounded elements tells.
TEST_P(Fault, TruncationWithinTheBound) {
  Case c = padded();
  c.shape = {8, 40, 64};
  c.data = DType::kBF16;
  Instance instance(c);
  run_oracle(instance.call(), instance.buffers());
  std::visit(
      [&](const auto& call) {
        std::vector<double> dx = gradients_of(call, instance.buffers()).dx;
        for (double& value : dx) {
          const float single = static_cast<float>(value);
          const double cut = std::bit_cast<float>(std::bit_cast<uint32_t>(single) & 0xFFFF0000);
          if (std::abs(value - cut) <= 0x1p-8 * std::abs(value)) value = cut;
        }
        write(call.dx, instance.buffers().dx, dx);
      },
      instance.call());
  const Instance::Report report = instance.check();
  EXPECT_EQ(report.why.rfind("only ", 0), 0u) << report.why;
}

TEST_P(Fault, ChangesTheHash) {
  const auto hash = [&](uint64_t seed, bool spoil) {
    Instance instance(padded(), seed);
    run_oracle(instance.call(), instance.buffers());
    if (spoil) static_cast<float*>(instance.buffers().dx)[1] *= -1;
    return instance.hash();
  };
  EXPECT_EQ(hash(1, false), hash(1, false));
  EXPECT_NE(hash(1, false), hash(2, false));
  EXPECT_NE(hash(1, false), hash(1, true));
}

INSTANTIATE_TEST_SUITE_P(Operators, Fault, testing::ValuesIn(kOps),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace normgrad::reference
