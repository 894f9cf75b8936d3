// The oracle against calculus, and the checker and the case table against themselves.
#include "reference/reference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/float16.hpp"
#include "reference/bound.hpp"
#include "reference/cases.hpp"
#include "reference/elements.hpp"

namespace normgrad::reference {
namespace {

using Vec = std::vector<double>;

Vec random_vector(size_t size, unsigned seed, double mean = 0) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(mean, 1);
  Vec values(size);
  for (double& value : values) value = normal(engine);
  return values;
}

double dot(const Vec& a, const Vec& b) {
  long double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<long double>(a[i]) * b[i];
  return static_cast<double>(sum);
}

// A normalization layer y = x_hat * gamma + beta of shape (3, 5, 4): the groups share statistics.
struct Layer {
  Op op;
  Statistics form;
  double eps;
  bool frozen = false;
  std::vector<int64_t> shape = {3, 5, 4};

  size_t size() const { return 60; }
  size_t groups() const { return op == Op::kBatchNorm ? 5 : 15; }
  size_t parameters() const { return op == Op::kBatchNorm ? 5 : 4; }
  size_t group_of(size_t i) const { return op == Op::kBatchNorm ? i / 4 % 5 : i / 4; }
  size_t parameter_of(size_t i) const { return op == Op::kBatchNorm ? i / 4 % 5 : i % 4; }
  double group_size() const { return static_cast<double>(size() / groups()); }
};

struct Moments {
  Vec mean, variance;
  double r(const Layer& layer, size_t group) const {
    return 1 / std::sqrt(variance[group] + layer.eps);
  }
};

// Those that the layer normalizes with: RMSNorm has mean 0, a frozen BatchNorm has given ones.
Moments moments_of(const Layer& layer, const Vec& x) {
  Moments m = {Vec(layer.groups()), Vec(layer.groups())};
  if (layer.frozen) {
    m.mean = random_vector(layer.groups(), 77);
    for (size_t group = 0; group < layer.groups(); ++group) {
      m.variance[group] = 0.5 + static_cast<double>(group);
    }
    return m;
  }
  if (layer.op != Op::kRmsNorm) {
    for (size_t i = 0; i < x.size(); ++i) m.mean[layer.group_of(i)] += x[i] / layer.group_size();
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = x[i] - m.mean[layer.group_of(i)];
    m.variance[layer.group_of(i)] += d * d / layer.group_size();
  }
  return m;
}

Vec forward(const Layer& layer, const Vec& x, const Vec& gamma, const Vec& beta) {
  const Moments m = moments_of(layer, x);
  Vec y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t group = layer.group_of(i), p = layer.parameter_of(i);
    y[i] = (x[i] - m.mean[group]) * m.r(layer, group) * gamma[p] + beta[p];
  }
  return y;
}

// The derivative of forward in the direction (v, v_gamma, v_beta).
Vec directional(const Layer& layer, const Vec& x, const Vec& gamma, const Vec& v,
                const Vec& v_gamma, const Vec& v_beta) {
  const Moments m = moments_of(layer, x);
  Vec mean_v(layer.groups()), d_variance(layer.groups());
  if (!layer.frozen) {
    for (size_t i = 0; layer.op != Op::kRmsNorm && i < x.size(); ++i) {
      mean_v[layer.group_of(i)] += v[i] / layer.group_size();
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t group = layer.group_of(i);
      d_variance[group] += 2 * (x[i] - m.mean[group]) * (v[i] - mean_v[group]) / layer.group_size();
    }
  }
  Vec result(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t group = layer.group_of(i), p = layer.parameter_of(i);
    const double r = m.r(layer, group);
    const double d_r = -0.5 * r * r * r * d_variance[group];
    const double centred = x[i] - m.mean[group];
    const double d_x_hat = (v[i] - mean_v[group]) * r + centred * d_r;
    result[i] = d_x_hat * gamma[p] + centred * r * v_gamma[p] + v_beta[p];
  }
  return result;
}

Gradients backward(const Layer& layer, const Vec& x, const Vec& dy, const Vec& gamma) {
  const Moments m = moments_of(layer, x);
  Vec spread = m.variance, input = x;
  if (layer.form == Statistics::kMeanRstd) {
    for (size_t group = 0; group < layer.groups(); ++group) spread[group] = m.r(layer, group);
  }
  if (layer.form == Statistics::kXHatStd) {
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t group = layer.group_of(i);
      input[i] = (x[i] - m.mean[group]) * m.r(layer, group);
      spread[group] = 1 / m.r(layer, group);
    }
  }
  const double eps = layer.form == Statistics::kMeanVariance ? layer.eps : 0;
  if (layer.op == Op::kBatchNorm) {
    return channels_backward(
        {3, 5, 4, input, dy, gamma, layer.form, m.mean, spread, eps, layer.frozen});
  }
  return rows_backward(
      {15, 4, layer.op == Op::kRmsNorm, input, dy, gamma, layer.form, m.mean, spread, eps});
}

std::vector<Layer> layers() {
  std::vector<Layer> result;
  for (double eps : {0.0, 1e-5, 0.5}) {
    for (Statistics form :
         {Statistics::kXHatStd, Statistics::kMeanRstd, Statistics::kMeanVariance}) {
      result.push_back({Op::kLayerNorm, form, eps});
      if (form == Statistics::kXHatStd) continue;
      result.push_back({Op::kBatchNorm, form, eps});
      result.push_back({Op::kBatchNorm, form, eps, true});
    }
    result.push_back({Op::kRmsNorm, Statistics::kMeanVariance, eps});
  }
  return result;
}

class Oracle : public testing::TestWithParam<Layer> {
 protected:
  const Layer layer = GetParam();
  const Vec x = random_vector(layer.size(), 1, 3);
  const Vec dy = random_vector(layer.size(), 2, 0.5);
  const Vec gamma = random_vector(layer.parameters(), 3, 1);
  const Vec beta = random_vector(layer.parameters(), 4);
  const Gradients gradients = backward(layer, x, dy, gamma);
};

// <dy, J v> = <J^T dy, v>
TEST_P(Oracle, IsTheAdjointOfTheDerivative) {
  for (unsigned seed = 10; seed < 20; ++seed) {
    const Vec v = random_vector(layer.size(), seed);
    const Vec v_gamma = random_vector(layer.parameters(), seed + 100);
    const Vec v_beta = random_vector(layer.parameters(), seed + 200);
    const double left = dot(dy, directional(layer, x, gamma, v, v_gamma, v_beta));
    const double right =
        dot(gradients.dx, v) + dot(gradients.dgamma, v_gamma) + dot(gradients.dbeta, v_beta);
    EXPECT_NEAR(left, right, 1e-12 * (1 + std::abs(left)));
  }
}

// Central differences of <dy, y>, extrapolated twice: the error is that of h^6.
TEST_P(Oracle, AgreesWithDifferences) {
  const auto check = [&](const Vec& gradient, auto loss) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      const auto difference = [&](double h) { return (loss(i, h) - loss(i, -h)) / (2 * h); };
      const double d1 = difference(0.01), d2 = difference(0.005), d4 = difference(0.0025);
      const double e1 = (4 * d2 - d1) / 3, e2 = (4 * d4 - d2) / 3;
      EXPECT_NEAR(gradient[i], (16 * e2 - e1) / 15, 1e-8 * (1 + std::abs(gradient[i]))) << i;
    }
  };
  const auto moved = [](Vec values, size_t i, double h) { return values[i] += h, values; };
  check(gradients.dx,
        [&](size_t i, double h) { return dot(dy, forward(layer, moved(x, i, h), gamma, beta)); });
  check(gradients.dgamma,
        [&](size_t i, double h) { return dot(dy, forward(layer, x, moved(gamma, i, h), beta)); });
  check(gradients.dbeta,
        [&](size_t i, double h) { return dot(dy, forward(layer, x, gamma, moved(beta, i, h))); });
}

// dx = J^T g with the matrix J = r (1 - 1/n - x_hat x_hat^T / n) written out, in long double.
TEST_P(Oracle, AgreesWithTheMatrixInLongDouble) {
  using Long = long double;
  const Moments m = moments_of(layer, x);
  const Long n = layer.group_size();
  const auto r = [&](size_t i) {
    return 1 / std::sqrt(static_cast<Long>(m.variance[layer.group_of(i)]) + layer.eps);
  };
  const auto x_hat = [&](size_t i) {
    return (static_cast<Long>(x[i]) - m.mean[layer.group_of(i)]) * r(i);
  };
  std::vector<Long> dx(x.size()), dgamma(layer.parameters()), dbeta(layer.parameters());
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < x.size(); ++j) {
      if (layer.group_of(i) != layer.group_of(j)) continue;
      Long jacobian = i == j;
      if (!layer.frozen) jacobian -= x_hat(i) * x_hat(j) / n;
      if (!layer.frozen && layer.op != Op::kRmsNorm) jacobian -= 1 / n;
      dx[j] += dy[i] * static_cast<Long>(gamma[layer.parameter_of(i)]) * jacobian * r(i);
    }
    dgamma[layer.parameter_of(i)] += dy[i] * x_hat(i);
    dbeta[layer.parameter_of(i)] += dy[i];
  }
  const auto check = [](const Vec& value, const Vec& scale, const std::vector<Long>& expected) {
    for (size_t i = 0; i < value.size(); ++i) {
      EXPECT_LE(std::abs(value[i] - expected[i]), 4e-15L * scale[i]) << i;
      EXPECT_GE(scale[i], std::abs(value[i]) * (1 - 1e-15));
    }
  };
  check(gradients.dx, gradients.dx_scale, dx);
  check(gradients.dgamma, gradients.dgamma_scale, dgamma);
  check(gradients.dbeta, gradients.dbeta_scale, dbeta);
}

INSTANTIATE_TEST_SUITE_P(Layers, Oracle, testing::ValuesIn(layers()));

TEST(Reference, ZeroDenominatorAddsNothing) {
  for (Statistics form : {Statistics::kXHatStd, Statistics::kMeanRstd, Statistics::kMeanVariance}) {
    const Gradients g =
        rows_backward({2, 2, false, {1, 2, 3, 5}, {1, 2, 3, 4}, {1, 1}, form, {0, 0}, {0, 1}, 0});
    EXPECT_EQ(Vec(g.dx.begin(), g.dx.begin() + 2), (Vec{0, 0}));
    EXPECT_EQ(g.dgamma, (Vec{9, 20}));
    EXPECT_EQ(g.dbeta, (Vec{4, 6}));
    if (form == Statistics::kXHatStd) continue;
    const Gradients c =
        channels_backward({1, 2, 2, {1, 2, 3, 5}, {1, 2, 3, 4}, {1, 1}, form, {0, 0}, {0, 1}});
    EXPECT_EQ(Vec(c.dx.begin(), c.dx.begin() + 2), (Vec{0, 0}));
    EXPECT_EQ(c.dgamma, (Vec{0, 29}));
    EXPECT_EQ(c.dbeta, (Vec{3, 7}));
  }
  const Gradients g = rows_backward({2, 1, true, {0, 2}, {3, 4}, {1}, {}, {}, {}});
  EXPECT_EQ(g.dx, (Vec{0, 0}));
  EXPECT_EQ(g.dgamma, Vec{4});
}

TEST(Reference, NegativeVarianceIsNan) {
  const Gradients g =
      rows_backward({1, 1, false, {1}, {1}, {1}, Statistics::kMeanVariance, {0}, {-1}, 0.5});
  EXPECT_TRUE(std::isnan(g.dx[0]) && std::isnan(g.dgamma[0]));
  EXPECT_EQ(g.dbeta[0], 1);
}

TEST(Reference, SumsOfManyRowsStayExact) {
  const int64_t rows = 2000000;
  const Vec ones(rows, 1), tenths(rows, 0.1);
  const Gradients g = rows_backward({rows, 1, true, ones, tenths, {1}, {}, {}, {}});
  EXPECT_NEAR(g.dbeta[0] / (0.1 * rows), 1, 1e-13);
  EXPECT_NEAR(g.dgamma[0] / (0.1 * rows), 1, 1e-13);
}

// Every midpoint of neighbours goes to the even one, and whatever is off the midpoint to the
// nearer.
TEST(Elements, RoundToNearestEven) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const bool f16 = dtype == DType::kF16;
    const unsigned infinity = f16 ? 0x7C00 : 0x7F80;
    const auto value_of = [&](unsigned bits) -> double {
      if (bits == infinity) return f16 ? 65536 : 0x1p128;  // where the next number would be
      return f16 ? f32_from_f16(static_cast<uint16_t>(bits))
                 : f32_from_bf16(static_cast<uint16_t>(bits));
    };
    for (unsigned bits = 0; bits < infinity; ++bits) {
      const double low = value_of(bits), high = value_of(bits + 1), middle = (low + high) / 2;
      const double above = bits + 1 == infinity ? INFINITY : high;
      const double even = bits % 2 == 0 ? low : above;
      ASSERT_EQ(round_to(dtype, low), low);
      ASSERT_EQ(round_to(dtype, middle), even) << bits;
      ASSERT_EQ(round_to(dtype, std::nextafter(middle, 0)), low) << bits;
      ASSERT_EQ(round_to(dtype, std::nextafter(middle, high)), above) << bits;
      ASSERT_EQ(round_to(dtype, -middle), -even) << bits;
    }
    EXPECT_TRUE(std::isnan(round_to(dtype, NAN)));
    EXPECT_TRUE(std::signbit(round_to(dtype, -1e-300)));
    EXPECT_EQ(round_to(dtype, 1e300), INFINITY);
  }
  EXPECT_EQ(round_to(DType::kF32, 1 + 0x1p-24), 1);
  EXPECT_EQ(round_to(DType::kF32, 0x1.FFFFFFp127), INFINITY);
}

TEST(Elements, StridesAreHonoured) {
  const Tensor tensor = {DType::kF32, {2, 2, 3}, {-10, 0, 2}};
  std::vector<float> memory(20, -1);
  scatter(tensor, &memory[10], Vec{0, 0, 0, 1, 2, 3, 0, 0, 0, 4, 5, 6});
  EXPECT_EQ(memory[10], 1);
  EXPECT_EQ(memory[4], 6);
  EXPECT_EQ(gather(tensor, &memory[10]), (Vec{1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6}));
  erase(tensor, &memory[10], std::byte{0});
  EXPECT_EQ(memory[4], 0);
  EXPECT_EQ(memory[5], -1);
  EXPECT_EQ(count({DType::kF32, {}}), 1);
  EXPECT_TRUE(gather({DType::kF32, {3, 0}}, nullptr).empty());
}

Verdict compare_one(DType dtype, double out, double ref, double scale, double k, int64_t rows = 0) {
  const Tensor tensor = {dtype, {1}};
  alignas(4) std::byte data[4];
  scatter(tensor, data, Vec{out});
  return compare("dx", tensor, data, Vec{ref}, Vec{scale}, k, rows);
}

bool passes(DType dtype, double out, double ref, double scale, double k, int64_t rows = 0) {
  return compare_one(dtype, out, ref, scale, k, rows).failures == 0;
}

struct Format {
  DType dtype;
  double roundoff, underflow, largest, threshold;
};
constexpr Format kFormats[] = {
    {DType::kF32, 0x1p-24, 0x1p-150, 0x1.FFFFFEp127, 0x1.FFFFFFp127},
    {DType::kF16, 0x1p-11, 0x1p-25, 65504, 65520},
    {DType::kBF16, 0x1p-8, 0x1p-134, 0x1.FEp127, 0x1.FFp127},
};

TEST(Bound, IsSharp) {
  for (const Format& f : kFormats) {
    for (double scale : {0.0, 1.0, 100.0}) {
      for (int64_t rows : {0, 1 << 24}) {
        for (double sign : {-1.0, 1.0}) {
          // The e that solves e = u_o |ref| + eta_o + (K u + rows 2^-52) S with ref = 1 - e.
          const double slack = (12 * 0x1p-24 + static_cast<double>(rows) * 0x1p-52) * scale;
          const double e = (f.roundoff + f.underflow + slack) / (1 + f.roundoff);
          EXPECT_TRUE(passes(f.dtype, sign, sign * (1 - e * (1 - 1e-6)), scale, 12, rows));
          EXPECT_FALSE(passes(f.dtype, sign, sign * (1 - e * (1 + 1e-6)), scale, 12, rows));
        }
      }
    }
    EXPECT_TRUE(passes(f.dtype, 0, f.underflow, 0, 12));
    EXPECT_FALSE(passes(f.dtype, 0, f.underflow * 1.01, 0, 12));
  }
}

TEST(Bound, NanAndInfinity) {
  for (const Format& f : kFormats) {
    for (double ref : {0.0, 1.0, static_cast<double>(INFINITY), 1e300}) {
      EXPECT_FALSE(passes(f.dtype, NAN, ref, 1, 12));
      EXPECT_FALSE(passes(f.dtype, 1, NAN, NAN, 12));
    }
    EXPECT_TRUE(passes(f.dtype, NAN, NAN, NAN, 12));
    EXPECT_TRUE(passes(f.dtype, -INFINITY, -INFINITY, INFINITY, 12));
    EXPECT_FALSE(passes(f.dtype, INFINITY, -INFINITY, INFINITY, 12));
    EXPECT_FALSE(passes(f.dtype, 1, INFINITY, INFINITY, 12));
    EXPECT_FALSE(passes(f.dtype, 1, 2, INFINITY, 12));
    // Without slack the threshold decides, with slack both sides of it pass.
    const double below = std::nextafter(f.threshold, 0);
    EXPECT_TRUE(passes(f.dtype, INFINITY, f.threshold, 0, 12));
    EXPECT_FALSE(passes(f.dtype, f.largest, f.threshold, 0, 12));
    EXPECT_FALSE(passes(f.dtype, INFINITY, below, 0, 12));
    EXPECT_TRUE(passes(f.dtype, f.largest, below, 0, 12));
    EXPECT_FALSE(passes(f.dtype, -INFINITY, f.threshold, 0, 12));
    for (double ref : {below, f.threshold}) {
      EXPECT_TRUE(passes(f.dtype, INFINITY, ref, ref, 12));
      EXPECT_TRUE(passes(f.dtype, f.largest, ref, ref, 12));
    }
  }
}

TEST(Bound, ReportsWhatItSaw) {
  const Verdict verdict = compare_one(DType::kF32, 1.25, 1.5, 1, 12);
  EXPECT_EQ(verdict.elements, 1);
  EXPECT_EQ(verdict.nearest, 0);
  EXPECT_NEAR(verdict.worst_k, 0.25 * 0x1p24, 2);
  EXPECT_EQ(verdict.first_failure, "dx[0]: expected 1.5, got 1.25, allowed error 8e-07");
  EXPECT_EQ(compare_one(DType::kBF16, 1.5, 1.5001, 1, 12).nearest, 1);
  EXPECT_EQ(compare_one(DType::kBF16, 1.5, 1.5001, 1, 12).worst_k, 0);
}

}  // namespace
}  // namespace normgrad::reference
