// The layers themselves in float64. Scales of error bounds: of y, |x_hat * gamma| + |beta|; of what
// is a sum of terms, the sum of their absolute values; of anything else, its own.
#include <cmath>

#include "reference/elements.hpp"
#include "reference/parts.hpp"
#include "reference/reference.hpp"

namespace normgrad::reference {
namespace {

// The statistics of a set of elements in long double, whose mean of 10^7 terms is right to 2^-40.
struct Moments {
  long double mean = 0, variance = 0;
  double magnitude = 0;  // mean of |h|

  template <class ForEach>
  Moments(const ForEach& for_each, int64_t terms, bool centred) {
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

Normalized batch_norm(const BatchNorm& call, const Buffers& buffers) {
  const auto axis = call.x.shape.begin() + call.channel_axis;
  const int64_t samples = count({call.x.dtype, {call.x.shape.begin(), axis}});
  const int64_t channels = *axis;
  const int64_t length = count({call.x.dtype, {axis + 1, call.x.shape.end()}});
  const int64_t terms = samples * length;
  const std::vector<double> x = gather(call.x, buffers.x);
  const std::vector<double> gamma = gather_or_ones(call.gamma, buffers.gamma, channels);
  const std::vector<double> beta = gather_or_zeros(call.beta, buffers.beta, channels);
  const std::vector<double> running_mean =
      gather_or_zeros(call.running_mean, buffers.running_mean, channels);
  const std::vector<double> running_variance =
      gather_or_zeros(call.running_variance, buffers.running_variance, channels);
  Normalized result;
  result.y = {std::vector<double>(x.size()), std::vector<double>(x.size())};
  for (int64_t c = 0; c < channels; ++c) {
    const auto for_each_index = [&](const auto& visit) {
      for (int64_t n = 0; n < samples; ++n) {
        const int64_t plane = (n * channels + c) * length;
        for (int64_t i = plane; i < plane + length; ++i) visit(i);
      }
    };
    Moments moments([&](const auto& visit) { for_each_index([&](int64_t i) { visit(x[i]); }); },
                    terms, true);
    const double spread = terms == 0 ? 0 : spread_of(call.statistics, moments.variance, call.eps);
    add(result.mean, static_cast<double>(moments.mean), moments.magnitude);
    add(result.spread, spread, spread);
    const auto move = [&](Output& output, double running, long double now, double scale) {
      const double moved = static_cast<double>(running + call.momentum * (now - running));
      add(output, terms == 0 ? running : moved,
          terms == 0 ? 0 : std::abs(running) + std::abs(call.momentum) * scale);
    };
    const long double n = static_cast<long double>(terms);
    const long double unbiased = terms < 2 ? moments.variance : moments.variance * n / (n - 1);
    move(result.running_mean, running_mean[c], moments.mean, moments.magnitude);
    move(result.running_variance, running_variance[c], unbiased, static_cast<double>(unbiased));
    if (call.frozen) moments.mean = running_mean[c], moments.variance = running_variance[c];
    const Normalizer normalizer(moments.mean, moments.variance + call.eps);
    for_each_index([&](int64_t i) {
      Output element;
      add_element(normalizer.x_hat(x[i]), gamma[c], beta[c], element);
      result.y.values[i] = element.values[0];
      result.y.scales[i] = element.scales[0];
    });
  }
  return result;
}

}  // namespace normgrad::reference
