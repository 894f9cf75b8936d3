// The layers themselves in float64. Scales of error bounds: of y, |x_hat * gamma| + |beta|; of what
// is a sum of terms, the sum of their absolute values; of anything else, its own.
#include <algorithm>
#include <cmath>

#include "reference/elements.hpp"
#include "reference/parts.hpp"
#include "reference/reference.hpp"

namespace normgrad::reference {
namespace {

// The statistics of a set of elements in long double, whose mean of 10^7 terms is right to 2^-40.
struct Moments {
  long double terms = 0, mean = 0, variance = 0;
  double magnitude = 0;  // mean of |h|

  Moments() = default;

  template <class ForEach>
  Moments(const ForEach& for_each, int64_t count, bool centred)
      : terms(static_cast<long double>(count)) {
    if (terms == 0) return;
    long double sum = 0, squares = 0, magnitudes = 0;
    for_each([&](double h) { sum += h, magnitudes += std::abs(h); });
    if (centred) mean = sum / terms;
    for_each([&](double h) { squares += (h - mean) * (h - mean); });
    variance = squares / terms;
    magnitude = static_cast<double>(magnitudes / terms);
  }
};

void add(Output& output, double value, double scale) {
  output.values.push_back(value);
  output.scales.push_back(scale);
}

// How a spread is written.
double spread_of(Statistics statistics, long double variance, double eps) {
  const long double denominator = variance + eps;
  if (statistics == Statistics::kMeanVariance) return static_cast<double>(variance);
  if (statistics == Statistics::kXHatStd) return static_cast<double>(std::sqrt(denominator));
  return denominator == 0 ? 0 : static_cast<double>(1 / std::sqrt(denominator));
}

// r, and x_hat of an element.
struct Normalizer {
  long double mean, r;
  bool zero;

  Normalizer(long double centre, long double denominator)
      : mean(centre),
        r(denominator == 0 ? 0 : 1 / std::sqrt(denominator)),
        zero(denominator == 0) {}
  double x_hat(double h) const { return zero ? 0 : static_cast<double>((h - mean) * r); }
};

void add_element(double x_hat, double gamma, double beta, Output& y) {
  add(y, x_hat * gamma + beta, std::abs(x_hat * gamma) + std::abs(beta));
}

std::vector<double> gather_or_zeros(const std::optional<Tensor>& tensor, const void* data,
                                    int64_t size) {
  return tensor ? gather(*tensor, data) : std::vector<double>(static_cast<size_t>(size));
}

// x + residual as float32, then in the type of x.
template <class Call>
std::vector<double> h_of(const Call& call, const Buffers& buffers) {
  std::vector<double> h = gather(call.x, buffers.x);
  if (!call.residual) return h;
  const std::vector<double> residual = gather(*call.residual, buffers.residual);
  for (size_t i = 0; i < h.size(); ++i) {
    h[i] = round_to(call.x.dtype, round_to(DType::kF32, h[i] + residual[i]));
  }
  return h;
}

template <class Call>
Normalized rows_forward(const Call& call, const Buffers& buffers, bool rms, Statistics statistics,
                        const std::vector<double>& beta) {
  const int64_t cols = cols_of(call.x, call.normalized_axes);
  const int64_t rows = rows_of(call.x, call.normalized_axes);
  const std::vector<double> gamma = gamma_of(call, buffers, cols);
  Normalized result;
  result.h = h_of(call, buffers);
  for (int64_t row = 0; cols > 0 && row < rows; ++row) {
    const double* h = result.h.data() + row * cols;
    const Moments moments(
        [&](const auto& visit) {
          for (int64_t j = 0; j < cols; ++j) visit(h[j]);
        },
        cols, !rms);
    const double spread = spread_of(statistics, moments.variance, call.eps);
    add(result.mean, static_cast<double>(moments.mean), moments.magnitude);
    add(result.spread, spread, spread);
    const Normalizer normalizer(moments.mean, moments.variance + call.eps);
    for (int64_t j = 0; j < cols; ++j) {
      const double x_hat = normalizer.x_hat(h[j]);
      add(result.x_hat, x_hat, std::abs(x_hat));
      add_element(x_hat, gamma[j], beta[j], result.y);
    }
  }
  return result;
}

}  // namespace

Normalized layer_norm(const LayerNorm& call, const Buffers& buffers) {
  const int64_t cols = cols_of(call.x, call.normalized_axes);
  return rows_forward(call, buffers, false, call.statistics,
                      gather_or_zeros(call.beta, buffers.beta, cols));
}

Normalized rms_norm(const RmsNorm& call, const Buffers& buffers) {
  const int64_t cols = cols_of(call.x, call.normalized_axes);
  return rows_forward(call, buffers, true, Statistics::kMeanRstd, std::vector<double>(cols));
}

namespace {

// The elements of a BatchNorm, dense.
struct Batch {
  int64_t samples, channels, length;
  std::vector<double> x;

  template <class Call>
  Batch(const Call& call, const Buffers& buffers) : x(gather(call.x, buffers.x)) {
    const auto axis = call.x.shape.begin() + call.channel_axis;
    samples = count({call.x.dtype, {call.x.shape.begin(), axis}});
    channels = *axis;
    length = count({call.x.dtype, {axis + 1, call.x.shape.end()}});
  }

  template <class Visit>
  void for_each_index(int64_t c, const Visit& visit) const {
    for (int64_t n = 0; n < samples; ++n) {
      const int64_t plane = (n * channels + c) * length;
      for (int64_t i = plane; i < plane + length; ++i) visit(i);
    }
  }
  Moments moments(int64_t c) const {
    const auto for_each = [&](const auto& visit) {
      for_each_index(c, [&](int64_t i) { visit(x[i]); });
    };
    return Moments(for_each, samples * length, true);
  }
};

// From the moments of the channels on. `frozen`: the running statistics take their place.
template <class Call, class MomentsOf>
Normalized channels_forward(const Call& call, const Buffers& buffers, const Batch& batch,
                            bool frozen, const MomentsOf& moments_of) {
  const int64_t channels = batch.channels;
  const std::vector<double> gamma = gather_or_ones(call.gamma, buffers.gamma, channels);
  const std::vector<double> beta = gather_or_zeros(call.beta, buffers.beta, channels);
  const std::vector<double> running_mean =
      gather_or_zeros(call.running_mean, buffers.running_mean, channels);
  const std::vector<double> running_variance =
      gather_or_zeros(call.running_variance, buffers.running_variance, channels);
  Normalized result;
  result.y = {std::vector<double>(batch.x.size()), std::vector<double>(batch.x.size())};
  for (int64_t c = 0; c < channels; ++c) {
    Moments moments = moments_of(c);
    const long double n = moments.terms;
    const double spread = n == 0 ? 0 : spread_of(call.statistics, moments.variance, call.eps);
    add(result.mean, static_cast<double>(moments.mean), moments.magnitude);
    add(result.spread, spread, spread);
    const auto move = [&](Output& output, double running, long double now, double scale) {
      const double moved = static_cast<double>(running + call.momentum * (now - running));
      add(output, n == 0 ? running : moved,
          n == 0 ? 0 : std::abs(running) + std::abs(call.momentum) * scale);
    };
    const long double unbiased = n < 2 ? moments.variance : moments.variance * n / (n - 1);
    move(result.running_mean, running_mean[c], moments.mean, moments.magnitude);
    move(result.running_variance, running_variance[c], unbiased, static_cast<double>(unbiased));
    if (frozen) moments.mean = running_mean[c], moments.variance = running_variance[c];
    const Normalizer normalizer(moments.mean, moments.variance + call.eps);
    batch.for_each_index(c, [&](int64_t i) {
      Output element;
      add_element(normalizer.x_hat(batch.x[i]), gamma[c], beta[c], element);
      result.y.values[i] = element.values[0];
      result.y.scales[i] = element.scales[0];
    });
  }
  return result;
}

}  // namespace

Normalized batch_norm(const BatchNorm& call, const Buffers& buffers) {
  const Batch batch(call, buffers);
  return channels_forward(call, buffers, batch, call.frozen,
                          [&](int64_t c) { return batch.moments(c); });
}

ChannelMoments batch_norm_moments(const BatchNormReduce& call, const Buffers& buffers) {
  const Batch batch(call, buffers);
  ChannelMoments result;
  for (int64_t c = 0; c < batch.channels; ++c) {
    const Moments moments = batch.moments(c);
    const auto squares = static_cast<double>(moments.variance * moments.terms);
    add(result.mean, static_cast<double>(moments.mean), moments.magnitude);
    add(result.squares, squares, squares);
    long double reach = 0;
    batch.for_each_index(
        c, [&](int64_t i) { reach = std::max(reach, std::abs(batch.x[i] - moments.mean)); });
    result.reach.push_back(static_cast<double>(reach));
  }
  return result;
}

Normalized batch_norm_elementwise(const BatchNormElementwise& call, const Buffers& buffers) {
  const Batch batch(call, buffers);
  const std::vector<double> counts = gather(call.count, buffers.count);
  const std::vector<double> means = gather(call.mean, buffers.mean);
  const std::vector<double> squares = gather(call.squares, buffers.squares);
  // By the formulas of the header, over the parts that have elements.
  return channels_forward(call, buffers, batch, false, [&](int64_t c) {
    Moments total;
    const auto for_each_part = [&](const auto& visit) {
      for (size_t part = 0; part < counts.size(); ++part) {
        const size_t at = part * static_cast<size_t>(batch.channels) + static_cast<size_t>(c);
        if (counts[part] != 0)
          visit(static_cast<long double>(counts[part]), means[at], squares[at]);
      }
    };
    long double sum = 0, magnitudes = 0, around = 0;
    for_each_part([&](long double n, double mean, double) {
      total.terms += n;
      sum += n * mean;
      magnitudes += n * std::abs(mean);
    });
    if (total.terms == 0) return total;
    total.mean = sum / total.terms;
    total.magnitude = static_cast<double>(magnitudes / total.terms);
    for_each_part([&](long double n, double mean, double part_squares) {
      around += part_squares + n * (mean - total.mean) * (mean - total.mean);
    });
    total.variance = around / total.terms;
    return total;
  });
}

}  // namespace normgrad::reference
