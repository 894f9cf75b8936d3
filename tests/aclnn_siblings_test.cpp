// The other operators of aclnn against the oracle: RmsNormGrad, BatchNormBackward, and the two
// halves of a synchronized BatchNorm, which together are the whole. Then their wrong calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "aclnn_layer_norm.hpp"

namespace acl_test {
namespace {

using normgrad::Statistics;
using normgrad::reference::Channels;
using normgrad::reference::kProven;
using normgrad::reference::kProvenFrozen;

// RMSNorm with the rstd that is given, whatever x says.
Gradients rms_oracle(const Array& x, const Array& dy, const Array& rstd, const Array& gamma) {
  const std::vector<double> xs = x.values(), dys = dy.values(), rs = rstd.values();
  const std::vector<double> gammas = gamma.values();
  const size_t cols = gammas.size();
  Gradients result;
  result.dgamma.resize(cols);
  result.dgamma_scale.resize(cols);
  for (size_t row = 0; row < rs.size(); ++row) {
    const double r = rs[row];
    double mean = 0, magnitude = 0;
    for (size_t j = 0; j < cols; ++j) {
      const double term = dys[row * cols + j] * xs[row * cols + j] * r;
      mean += gammas[j] * term / static_cast<double>(cols);
      magnitude += std::abs(gammas[j] * term) / static_cast<double>(cols);
      result.dgamma[j] += term;
      result.dgamma_scale[j] += std::abs(term);
    }
    for (size_t j = 0; j < cols; ++j) {
      const double g = dys[row * cols + j] * gammas[j], x_hat = xs[row * cols + j] * r;
      result.dx.push_back(r * (g - x_hat * mean));
      result.dx_scale.push_back(std::abs(r) * (std::abs(g) + std::abs(x_hat) * magnitude));
    }
  }
  return result;
}

// Ranks 1 to 8, any number of normalized axes, each layout.
TEST(AclnnRmsNorm, IsWithinTheBounds) {
  const Shape full = {2, 1, 3, 2, 1, 2, 2, 9};
  unsigned turn = 0;
  for (int rank = 1; rank <= 8; ++rank) {
    for (int normalized = 1; normalized <= rank; ++normalized) {
      const Shape shape(full.end() - rank, full.end());
      const Shape row(shape.end() - normalized, shape.end());
      const Shape leading(shape.begin(), shape.end() - normalized);
      Shape ones = leading;
      ones.resize(shape.size(), 1);
      for (unsigned i = 0; i < 3 * 2 * 5; ++i) {
        const DType data = kDTypes[i % 3], weight = i / 3 % 2 ? DType::kF32 : data;
        const Order order = kOrders[i / 6];
        const Shape statistics = ++turn % 3 == 0 ? leading
                                 : turn % 3 == 1 ? ones
                                                 : Shape{product(leading)};
        const Array dy(tensor_of(data, shape, order), random_values(product(shape), 1, 0.3, 1));
        const Array x(tensor_of(data, shape, order), random_values(product(shape), 2, 0.5, 2));
        const Array rstd(tensor_of(DType::kF32, statistics, order),
                         random_values(product(leading), 3, 0.5, 0.1));
        const Array gamma(tensor_of(weight, row, order), random_values(product(row), 4, 1, 0.5));
        const Array dx(tensor_of(data, shape, order)), dgamma(tensor_of(DType::kF32, row, order));
        const Status status = run({.op = Op::kRmsNorm,
                                   .tensors = {dy.view(), x.view(), rstd.view(), gamma.view(),
                                               dx.view(), dgamma.view()}});
        ASSERT_TRUE(status.ok()) << status.message();
        const Gradients ref = rms_oracle(x, dy, rstd, gamma);
        ASSERT_EQ(wrong("dxOut", dx, ref.dx, ref.dx_scale, kProven.dx, 0), "") << i;
        ASSERT_EQ(wrong("dgammaOut", dgamma, ref.dgamma, ref.dgamma_scale, kProven.dgamma,
                        product(leading)),
                  "")
            << i;
      }
    }
  }
}

// A BatchNorm in memory; the channels are axis 1, or the last one of an NHWC format.
class BatchNorm {
 public:
  BatchNorm(Shape shape, DType data, DType parameters, Order order,
            aclFormat format = ACL_FORMAT_ND, unsigned seed = 0)
      : format_(format),
        axis_(format == ACL_FORMAT_NHWC || format == ACL_FORMAT_NDHWC ? shape.size() - 1 : 1) {
    const int64_t elements = product(shape), channels = shape[axis_];
    const Shape row = {channels};
    const auto dense_or = [&](DType dtype) { return tensor_of(dtype, row, order); };
    grad_out = Array(tensor_of(data, shape, order), random_values(elements, seed + 1, 0.3, 1));
    input = Array(tensor_of(data, shape, order), random_values(elements, seed + 2, 1, 2));
    weight = Array(dense_or(parameters), random_values(channels, 3, 1, 0.5));
    mean = Array(dense_or(DType::kF32), random_values(channels, 4, 1, 0.2));
    invstd = Array(dense_or(DType::kF32), random_values(channels, 5, 0.5, 0.05));
    variance = Array(dense_or(DType::kF32), random_values(channels, 6, 4, 0.3));
    grad_input = Array(tensor_of(data, shape, order));
    grad_weight = Array(dense_or(parameters));
    grad_bias = Array(dense_or(parameters));
    sum_dy = Array(dense_or(DType::kF32));
    sum_dy_xmu = Array(dense_or(DType::kF32));
  }

  Call call(bool training, bool has_weight, unsigned mask) const {
    const auto view = [&](const Array& array, bool present) {
      return present ? array.view(format_) : kAbsent;
    };
    return {.op = Op::kBatchNorm,
            .tensors = {view(grad_out, true), view(input, true), view(weight, has_weight),
                        view(mean, !training), view(variance, !training), view(mean, training),
                        view(invstd, training), view(grad_input, mask & 1),
                        view(grad_weight, mask & 2), view(grad_bias, mask & 4)},
            .mask = std::vector<char>{(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0},
            .training = training,
            .eps = 1e-5};
  }
  Call reduce(std::array<bool, 3> wanted = {true, true, true}) const {
    const auto view = [&](const Array& array, bool present = true) {
      return present ? array.view() : kAbsent;
    };
    return {.op = Op::kReduce,
            .tensors = {view(grad_out), view(input), view(mean), view(invstd), view(weight),
                        view(sum_dy, wanted[0]), view(sum_dy_xmu, wanted[0]),
                        view(grad_weight, wanted[1]), view(grad_bias, wanted[2])},
            .wanted = wanted};
  }
  Call elemt(const View& counter, bool has_weight = true) const {
    return {.op = Op::kElemt,
            .tensors = {grad_out.view(), input.view(), mean.view(), invstd.view(),
                        has_weight ? weight.view() : kAbsent, sum_dy.view(), sum_dy_xmu.view(),
                        counter, grad_input.view()}};
  }

  Channels channels(bool training, bool has_weight) const {
    const Shape& shape = input.tensor().shape;
    const auto axis = shape.begin() + static_cast<std::ptrdiff_t>(axis_);
    Channels data;
    data.samples = product({shape.begin(), axis});
    data.channels = *axis;
    data.length = product({axis + 1, shape.end()});
    data.x = input.values();
    data.dy = grad_out.values();
    data.gamma = has_weight ? weight.values() : std::vector<double>(mean.values().size(), 1);
    data.statistics = training ? Statistics::kMeanRstd : Statistics::kMeanVariance;
    data.mean = mean.values();
    data.spread = training ? invstd.values() : variance.values();
    data.eps = training ? 0 : 1e-5;
    data.frozen = !training;
    return data;
  }

  std::string wrong_outputs(const Channels& data, unsigned mask) const {
    const Gradients ref = channels_backward(data);
    const int64_t summed = data.samples * data.length;
    const double k = data.frozen ? kProvenFrozen.dx : kProven.dx;
    const auto check = [&](const char* name, const Array& array, bool wanted, const auto& values,
                           const auto& scale, double gate, int64_t terms) {
      if (wanted) return wrong(name, array, values, scale, gate, terms);
      return std::string(array.unwritten() ? "" : name);
    };
    return check("gradInput", grad_input, mask & 1, ref.dx, ref.dx_scale, k, 0) +
           check("gradWeight", grad_weight, mask & 2, ref.dgamma, ref.dgamma_scale, kProven.dgamma,
                 summed) +
           check("gradBias", grad_bias, mask & 4, ref.dbeta, ref.dbeta_scale, kProven.dbeta,
                 summed);
  }

  Array grad_out, input, weight, mean, invstd, variance;
  Array grad_input, grad_weight, grad_bias, sum_dy, sum_dy_xmu;

 private:
  aclFormat format_;
  size_t axis_;
};

void check_batch_norm(const Shape& shape, aclFormat format) {
  for (unsigned i = 0; i < 3 * 2 * 5; ++i) {
    const DType data = kDTypes[i % 3], parameters = i / 3 % 2 ? DType::kF32 : data;
    for (unsigned j = 0; j < 2 * 2 * 8; ++j) {
      const bool training = j & 1, has_weight = j & 2;
      const unsigned mask = j / 4;
      const BatchNorm norm(shape, data, parameters, kOrders[i / 6], format);
      const Status status = run(norm.call(training, has_weight, mask));
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(norm.wrong_outputs(norm.channels(training, has_weight), mask), "")
          << "layout " << i / 6 << ", mask " << mask << (training ? ", training" : ", frozen");
    }
  }
}

TEST(AclnnBatchNorm, IsWithinTheBoundsForEveryRank) {
  const Shape full = {4, 5, 3, 2, 3, 1, 2, 2};
  for (int rank = 2; rank <= 8; ++rank) {
    SCOPED_TRACE(rank);
    check_batch_norm({full.begin(), full.begin() + rank}, ACL_FORMAT_ND);
  }
  check_batch_norm({4, 5, 3, 2}, ACL_FORMAT_NCHW);
  check_batch_norm({4, 5, 3, 2, 3}, ACL_FORMAT_NCDHW);
}

TEST(AclnnBatchNorm, ChannelsMayBeLast) {
  check_batch_norm({4, 3, 2, 5}, ACL_FORMAT_NHWC);
  check_batch_norm({4, 3, 2, 3, 5}, ACL_FORMAT_NDHWC);
}

TEST(AclnnBatchNorm, AnEmptyBatchGivesZeros) {
  for (const Shape& shape : {Shape{0, 5, 3}, {4, 5, 0}}) {
    const BatchNorm norm(shape, DType::kF16, DType::kF32, Order::kDense);
    const Status status = run(norm.call(true, true, 7));
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(norm.grad_weight.values(), std::vector<double>(5, 0));
    EXPECT_EQ(norm.grad_bias.values(), std::vector<double>(5, 0));
  }
}

// sumDyXmu is the dgamma of a rstd of 1.
std::string wrong_sums(const BatchNorm& norm, bool sums, bool weight, bool bias) {
  Channels data = norm.channels(true, true);
  const int64_t terms = data.samples * data.length;
  const Gradients ref = channels_backward(data);
  std::fill(data.spread.begin(), data.spread.end(), 1);
  const Gradients unscaled = channels_backward(data);
  const auto check = [&](const char* name, const Array& array, bool wanted, const auto& values,
                         const auto& scale, double k) {
    if (wanted) return wrong(name, array, values, scale, k, terms);
    return std::string(array.unwritten() ? "" : name);
  };
  return check("sumDy", norm.sum_dy, sums, ref.dbeta, ref.dbeta_scale, kProven.dbeta) +
         check("sumDyXmu", norm.sum_dy_xmu, sums, unscaled.dgamma, unscaled.dgamma_scale,
               kProven.dgamma) +
         check("gradWeight", norm.grad_weight, weight, ref.dgamma, ref.dgamma_scale,
               kProven.dgamma) +
         check("gradBias", norm.grad_bias, bias, ref.dbeta, ref.dbeta_scale, kProven.dbeta);
}

// INT32, FLOAT or FLOAT16, with the counts of several processes.
struct Counter {
  Counter(aclDataType dtype, const std::vector<int32_t>& counts)
      : integers(counts),
        floats({dtype == ACL_FLOAT16 ? DType::kF16 : DType::kF32, size()},
               {counts.begin(), counts.end()}),
        view(floats.view()) {
    if (dtype == ACL_INT32) view = {ACL_INT32, size(), {}, 0, integers.data()};
  }
  Shape size() const { return {static_cast<int64_t>(integers.size())}; }

  std::vector<int32_t> integers;
  Array floats;
  View view;
};
constexpr aclDataType kCounters[] = {ACL_INT32, ACL_FLOAT, ACL_FLOAT16};

// The gates of the whole, and the roundings of the two sums to FLOAT on their way.
constexpr double kSumsOnTheirWay = 4;

TEST(AclnnSyncBatchNorm, TheHalvesMakeTheWhole) {
  for (const Shape& shape : {Shape{8, 5}, {4, 5, 7}, {4, 5, 3, 2}, {2, 3, 2, 3, 2}}) {
    for (unsigned i = 0; i < 3 * 3 * 5 * 8; ++i) {
      const DType data = kDTypes[i % 3];
      const bool has_weight = i & 1;
      const BatchNorm norm(shape, data, i / 45 % 2 ? DType::kF32 : data, kOrders[i / 9 % 5]);
      const std::array<bool, 3> wanted = {true, (i / 45 & 2) != 0, (i / 45 & 4) != 0};
      Status status = run(norm.reduce(wanted));
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(wrong_sums(norm, true, wanted[1], wanted[2]), "") << i;

      const Channels whole = norm.channels(true, has_weight);
      const int32_t count = static_cast<int32_t>(whole.samples * whole.length);
      const Counter counter(kCounters[i / 3 % 3], {count});
      status = run(norm.elemt(counter.view, has_weight));
      ASSERT_TRUE(status.ok()) << status.message();
      const Gradients ref = channels_backward(whole);
      ASSERT_EQ(wrong("gradInput", norm.grad_input, ref.dx, ref.dx_scale,
                      kProven.dx + kSumsOnTheirWay, 0),
                "")
          << i;
    }
  }
}

TEST(AclnnSyncBatchNorm, ReduceWritesOnlyWhatIsAskedFor) {
  for (unsigned i = 0; i < 8; ++i) {
    const bool sums = i & 1, weight = i & 2, bias = i & 4;
    const BatchNorm norm({4, 5, 7}, DType::kF32, DType::kF32, Order::kDense);
    Call call = norm.reduce();
    call.wanted = {sums, weight, bias};
    Status status = run(call);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(wrong_sums(norm, sums, weight, bias), "") << i;
    status = run(norm.reduce({sums, weight, bias}));
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

// Two processes with different shares of the batch: their sums are added, each makes its dx.
TEST(AclnnSyncBatchNorm, TwoProcessesEqualOne) {
  for (unsigned i = 0; i < 9; ++i) {
    const DType data = kDTypes[i % 3];
    const BatchNorm all({5, 4, 6}, data, DType::kF32, Order::kDense);
    const Gradients ref = channels_backward(all.channels(true, true));
    std::vector<BatchNorm> halves;
    const size_t split = 2 * 4 * 6;  // two samples and three
    for (int half = 0; half < 2; ++half) {
      BatchNorm& norm =
          halves.emplace_back(Shape{half ? 3 : 2, 4, 6}, data, DType::kF32, Order::kDense);
      for (auto [whole, part] :
           {std::pair(&all.input, &norm.input), {&all.grad_out, &norm.grad_out}}) {
        const std::vector<double> values = whole->values();
        const auto middle = values.begin() + split;
        *part = Array(part->tensor(), half ? std::vector<double>(middle, values.end())
                                           : std::vector<double>(values.begin(), middle));
      }
      const Status status = run(norm.reduce());
      ASSERT_TRUE(status.ok()) << status.message();
    }
    const auto add = [&](Array BatchNorm::*sum) {
      std::vector<double> total = (halves[0].*sum).values();
      const std::vector<double> second = (halves[1].*sum).values();
      for (size_t c = 0; c < total.size(); ++c) total[c] += second[c];
      for (BatchNorm& half : halves) half.*sum = Array((half.*sum).tensor(), total);
    };
    add(&BatchNorm::sum_dy);
    add(&BatchNorm::sum_dy_xmu);
    const Counter counter(kCounters[i / 3], {12, 18});
    std::vector<double> dx;
    for (int half = 0; half < 2; ++half) {
      const Status status = run(halves[half].elemt(counter.view));
      ASSERT_TRUE(status.ok()) << status.message();
      const std::vector<double> part = halves[half].grad_input.values();
      dx.insert(dx.end(), part.begin(), part.end());
    }
    const Array joined(all.grad_input.tensor(), dx);
    EXPECT_EQ(wrong("gradInput", joined, ref.dx, ref.dx_scale, kProven.dx + kSumsOnTheirWay, 0),
              "");
  }
}

// An empty process adds zeros and has nothing to write.
TEST(AclnnSyncBatchNorm, AnEmptyProcess) {
  BatchNorm norm({0, 5, 7}, DType::kF16, DType::kF32, Order::kDense);
  Status status = run(norm.reduce());
  ASSERT_TRUE(status.ok()) << status.message();
  for (const Array* sum : {&norm.sum_dy, &norm.sum_dy_xmu, &norm.grad_weight, &norm.grad_bias}) {
    EXPECT_EQ(sum->values(), std::vector<double>(5, 0));
  }
  const Counter counter(ACL_INT32, {0, 28});
  status = run(norm.elemt(counter.view));
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(norm.grad_input.unwritten());
}

}  // namespace
}  // namespace acl_test
