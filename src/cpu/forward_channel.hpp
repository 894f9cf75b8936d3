// One channel of BatchNorm: from its statistics to the scalars of its elements.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cpu/dtype.hpp"
#include "cpu/moments.hpp"
#include "cpu/normalizer.hpp"
#include "ops/backend.hpp"

namespace normgrad::cpu {

// y = ((x - mean) - mean_rest) * scale + beta, scale = r * gamma. The mean is in two floats, since
// one is off by up to half a unit of itself, which may be many standard deviations.
struct ChannelScale {
  float mean = 0, mean_rest = 0, scale = 0, beta = 0;
};

struct ForwardChannel {
  Normalizer normalizer;
  double gamma = 1, beta = 0;
  ChannelScale scale;
  bool wide = false;  // float32 elements do not serve

  double y(double x) const { return normalizer.x_hat(x) * gamma + beta; }
};

// Whether the statistics are those of x.
inline bool needs_moments(const ChannelsForwardProblem& problem) {
  return !problem.frozen && problem.step != ChannelsStep::kElementwise;
}

// What the first step leaves to the second.
inline void store_moments(const ChannelsForwardProblem& problem, const Buffers& buffers, int64_t c,
                          const Moments& moments) {
  store_step_value(problem.mean, buffers.saved_mean, c, moments.mean);
  store_step_value(problem.squares, buffers.squares, c, moments.squares);
  if (problem.count.present && c == 0) store_count(problem, buffers.count);
}

// The moments of channels below `last` over the whole batch, from those of its parts, in their
// order. A part without elements has no moments, whatever is there. Asked for one after the other;
// neighbours are merged together, while their lines of a part are there.
class GivenMoments {
 public:
  GivenMoments(const ChannelsForwardProblem& problem, const Buffers& buffers, int64_t last)
      : problem_(problem), buffers_(buffers), last_(last) {}

  const Moments& of(int64_t c) {
    if (c >= end_) merge(c, std::min(c + kNeighbours, last_));
    return totals_[c - begin_];
  }

 private:
  static constexpr int64_t kNeighbours = 16;

  void merge(int64_t begin, int64_t end) {
    begin_ = begin;
    end_ = end;
    std::fill_n(totals_, end - begin, Moments());
    for (int64_t i = 0; i < problem_.parts; ++i) {
      Moments part;
      part.count = load_step_value(problem_.count.dtype, buffers_.count, i * problem_.count.stride);
      for (int64_t c = begin; part.count != 0 && c < end; ++c) {
        part.mean = load_part(problem_.part_mean, buffers_.mean, i, c);
        part.squares = load_part(problem_.squares, buffers_.squares, i, c);
        totals_[c - begin] += part;
      }
    }
  }

  const ChannelsForwardProblem& problem_;
  const Buffers& buffers_;
  int64_t last_;
  Moments totals_[kNeighbours];
  int64_t begin_ = 0, end_ = 0;
};

// Writes the channel's statistics and moves the running ones. Of no elements they are 0, and move
// nothing.
inline Normalizer take_statistics(const ChannelsForwardProblem& problem, const Buffers& buffers,
                                  int64_t c, const Moments& moments) {
  if (problem.frozen) {
    const double variance = load_value(problem.running_variance, buffers.running_variance, c);
    return Normalizer::from_variance(load_value(problem.running_mean, buffers.running_mean, c),
                                     variance + problem.eps);
  }
  const double n = moments.count;
  const double variance = n == 0 ? 0 : moments.variance();
  const Normalizer normalizer = Normalizer::from_variance(moments.mean, variance + problem.eps);
  if (problem.mean.present) store_value(problem.mean, buffers.saved_mean, c, moments.mean);
  if (problem.spread.present) {
    const double spread = problem.spread_is_rstd && n > 0 ? normalizer.r : variance;
    store_value(problem.spread, buffers.saved_spread, c, spread);
  }
  const auto move = [&](const Vector& vector, void* data, double value) {
    if (!vector.present || n == 0) return;
    const double old = load_value(vector, data, c);
    store_value(vector.dtype, data, c * vector.stride, old + problem.momentum * (value - old));
  };
  move(problem.running_mean, buffers.running_mean, moments.mean);
  move(problem.running_variance, buffers.running_variance,
       n < 2 ? variance : variance * (n / (n - 1)));
  return normalizer;
}

// `own`: the moments of x, if it needs them.
inline ForwardChannel finish_forward_channel(const ChannelsForwardProblem& problem,
                                             const Buffers& buffers, int64_t c, const Moments& own,
                                             GivenMoments& all) {
  ForwardChannel channel;
  if (problem.step == ChannelsStep::kReduce) {
    store_moments(problem, buffers, c, own);
    return channel;
  }
  const bool given = problem.step == ChannelsStep::kElementwise;
  channel.normalizer = take_statistics(problem, buffers, c, given ? all.of(c) : own);
  if (problem.gamma.present) channel.gamma = load_value(problem.gamma, buffers.gamma, c);
  if (problem.beta.present) channel.beta = load_value(problem.beta, buffers.beta, c);
  const Normalizer& n = channel.normalizer;
  const double scale = n.r * channel.gamma;
  const auto mean = static_cast<float>(n.mean);
  channel.scale = {mean, static_cast<float>(n.mean - mean), static_cast<float>(scale),
                   static_cast<float>(channel.beta)};
  channel.wide = n.zero || !(scale == 0 || is_safe(scale)) || !(n.mean == 0 || is_safe(n.mean)) ||
                 std::isnan(channel.beta);
  return channel;
}

}  // namespace normgrad::cpu
