// The data of a case.
#include "reference/fill.hpp"

#include <cmath>
#include <numbers>

#include "reference/elements.hpp"

namespace normgrad::reference {
namespace {

// splitmix64, and normal numbers by Box and Muller: the same on every platform up to libm.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15) {}

  uint64_t bits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>((bits() >> 11) + 1) * 0x1p-53; }  // (0, 1]
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  double normal() {
    if (has_spare_) return has_spare_ = false, spare_;
    const double radius = std::sqrt(-2 * std::log(uniform()));
    const double angle = 2 * std::numbers::pi * uniform();
    has_spare_ = true;
    spare_ = radius * std::sin(angle);
    return radius * std::cos(angle);
  }
  double wide() { return normal() * std::exp2(40 * uniform() - 20); }

 private:
  uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

// The term before i in the sums of dgamma and dbeta, for each second term; else -1.
int64_t partner_of(const Case& c, int64_t i) {
  const int64_t line = c.line();
  if (c.op == Op::kBatchNorm) return i % line % 2 == 1 ? i - 1 : -1;
  return i / line % 2 == 1 ? i - line : -1;
}

struct Moments {
  std::vector<double> mean, variance;
};

// Calls visit(index, group) for each element.
template <class Visit>
void for_each_element(const Case& c, int64_t total, Visit visit) {
  const int64_t length = c.line();
  for (int64_t first = 0, line = 0; first < total; first += length, ++line) {
    const int64_t group = c.op == Op::kBatchNorm ? line % c.groups() : line;
    for (int64_t i = first; i < first + length; ++i) visit(i, group);
  }
}

Moments moments_of(const Case& c, const std::vector<double>& x) {
  const int64_t total = static_cast<int64_t>(x.size()), groups = c.groups();
  Moments m = {std::vector<double>(groups), std::vector<double>(groups)};
  // Of an empty group: 0/0, as a forward pass would have it.
  const double share = static_cast<double>(groups) / static_cast<double>(total);
  for_each_element(c, total, [&](int64_t i, int64_t group) { m.mean[group] += x[i]; });
  for (double& mean : m.mean) mean *= c.op == Op::kRmsNorm ? 0 : share;
  for_each_element(c, total, [&](int64_t i, int64_t group) {
    m.variance[group] += (x[i] - m.mean[group]) * (x[i] - m.mean[group]);
  });
  for (double& variance : m.variance) variance *= share;
  return m;
}

double inverse_or_zero(double value) { return value == 0 ? 0 : 1 / value; }

void draw_pair(const Case& c, Random& random, double& x, double& dy) {
  switch (c.values) {
    case Values::kSameSign:
      x = c.scale * (0.5 + random.uniform());
      dy = c.dy_scale * (0.5 + random.uniform());
      return;
    case Values::kWide:
      x = c.scale * random.wide();
      dy = c.dy_scale * random.wide();
      return;
    case Values::kExact:
      // RMSNorm: x^2 = 4 everywhere, so r = 1/2.
      x = c.op == Op::kRmsNorm ? (random.bits() & 1 ? 2 : -2) : random.integer(-4, 4);
      dy = random.integer(-4, 4);
      return;
    default:
      x = c.scale * (c.mean_over_std + random.normal());
      dy = c.values == Values::kZeroDy ? 0 : c.dy_scale * (0.5 + random.normal());
  }
}

std::vector<double> draw_parameters(const Case& c, Random& random) {
  std::vector<double> parameters(count({c.gamma, c.parameters()}));
  for (double& gamma : parameters) {
    gamma = c.values == Values::kExact ? std::exp2(random.integer(-1, 1)) : 1 + random.normal() / 2;
    gamma *= c.gamma_scale;
  }
  return parameters;
}

}  // namespace

std::vector<double> draw_parameters(const Case& c, uint64_t seed) {
  Random random(seed);
  return draw_parameters(c, random);
}

Inputs draw(const Case& c, uint64_t seed) {
  Random random(seed);
  Inputs inputs;
  const int64_t total = count({c.data, c.shape});
  inputs.x.resize(total);
  inputs.dy.resize(total);
  for_each_element(c, total, [&](int64_t i, int64_t group) {
    draw_pair(c, random, inputs.x[i], inputs.dy[i]);
    if (c.values == Values::kZeroDenominators && group % 3 == 1) inputs.x[i] = 0;
    if (c.values == Values::kOutliers && i % c.line() == 0) inputs.x[i] *= 1000;
    const int64_t partner = c.values == Values::kCancelling ? partner_of(c, i) : -1;
    if (partner >= 0) {
      inputs.x[i] = inputs.x[partner];
      inputs.dy[i] = -inputs.dy[partner] * (1 + 0x1p-10 * random.normal());
    }
  });
  inputs.gamma = draw_parameters(c, random);
  if (!c.forward && c.op == Op::kLayerNorm && c.statistics == Statistics::kXHatStd) {
    const Moments m = moments_of(c, inputs.x);
    for (double variance : m.variance) inputs.spread.push_back(std::sqrt(variance));
    if (c.values == Values::kExact || c.values == Values::kSameSign) return inputs;
    for_each_element(c, total, [&](int64_t i, int64_t group) {
      inputs.x[i] = (inputs.x[i] - m.mean[group]) * inverse_or_zero(inputs.spread[group]);
    });
  }
  return inputs;
}

void finish(const Case& c, uint64_t seed, const std::vector<double>& x, Inputs& inputs) {
  if (c.has_spread()) {
    Random random(~seed);
    if (inputs.spread.empty()) {
      Moments m = moments_of(c, x);
      inputs.mean = std::move(m.mean);
      inputs.spread = std::move(m.variance);
      if (c.statistics == Statistics::kMeanRstd) {
        for (double& spread : inputs.spread) spread = inverse_or_zero(std::sqrt(spread + c.eps));
      }
    }
    if (c.values == Values::kSameSign) {
      for (double& mean : inputs.mean) mean = 0;
      for (double& spread : inputs.spread) spread = 0.5 + random.uniform();
    }
    if (c.values == Values::kExact) {
      for (double& mean : inputs.mean) mean = random.integer(-2, 2);
      for (double& spread : inputs.spread) {
        const double r = std::exp2(random.integer(-1, 1));
        spread = c.statistics == Statistics::kMeanVariance ? r * r : r;
      }
    }
    for (size_t group = 1; group < inputs.spread.size(); group += 3) {
      if (c.values == Values::kZeroDenominators) inputs.spread[group] = 0;
      if (c.values == Values::kNegativeVariance) inputs.spread[group] = -1;
    }
  }
  if (c.values == Values::kNonFinite) {
    const size_t total = inputs.x.size();
    inputs.dy[total / 5] = NAN;
    inputs.dy[total * 2 / 5] = INFINITY;
    inputs.x[total * 3 / 5] = NAN;
    inputs.x[total * 4 / 5] = -INFINITY;
  }
}

}  // namespace normgrad::reference
