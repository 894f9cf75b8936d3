// One channel of BatchNorm: its scalars before and after the sums over the batch are known.
#pragma once

#include <cstdint>

#include "cpu/dtype.hpp"
#include "cpu/normalizer.hpp"
#include "ops/backend.hpp"

namespace normgrad::cpu {

// sum of dy, and of dy * (x - mean) or, where a channel needs float64, of dy * x_hat.
struct ChannelSums {
  double dy = 0;
  double dy_x = 0;
};

// dx = gain * (dy - c1 - x_hat * c2); `scalars` holds the gain as its r.
struct Channel {
  Normalizer normalizer;
  double gain = 0;  // gamma * r
  double c1 = 0, c2 = 0;
  Scalars scalars{};
  bool wide = false;  // needs float64

  double dx(double x, double dy) const {
    // Frozen statistics do not read x: a non-finite one must not matter.
    return c2 == 0 ? gain * (dy - c1) : gain * (dy - c1 - normalizer.x_hat(x) * c2);
  }
};

inline Channel make_channel(const ChannelsProblem& problem, const Buffers& buffers, int64_t c) {
  Channel channel;
  const double mean = load_value(problem.mean, buffers.mean, c);
  const double spread = load_value(problem.spread, buffers.spread, c);
  channel.normalizer = problem.spread_is_rstd
                           ? Normalizer::from_rstd(mean, spread)
                           : Normalizer::from_variance(mean, spread + problem.eps);
  const double gamma = problem.gamma.present ? load_value(problem.gamma, buffers.gamma, c) : 1;
  channel.gain = gamma * channel.normalizer.r;
  channel.scalars.mean = static_cast<float>(mean);
  return channel;
}

// The sums of a channel in float64 throughout, for the few that float32 elements do not serve.
template <class T>
ChannelSums wide_sums(const ChannelsProblem& problem, const Buffers& buffers, int64_t c,
                      const Normalizer& normalizer) {
  const T* x = static_cast<const T*>(buffers.x) + c * problem.x.channel;
  const T* dy = static_cast<const T*>(buffers.dy) + c * problem.dy.channel;
  ChannelSums sums;
  for (int64_t n = 0; n < problem.samples; ++n) {
    for (int64_t l = 0; l < problem.length; ++l) {
      const double dy_value = widen(dy[n * problem.dy.sample + l * problem.dy.position]);
      const double x_value = widen(x[n * problem.x.sample + l * problem.x.position]);
      sums.dy += dy_value;
      sums.dy_x += dy_value * normalizer.x_hat(x_value);
    }
  }
  return sums;
}

// From the channel's sums: its parameter gradients, and the scalars for dx.
template <class T>
void finish_channel(const ChannelsProblem& problem, const Buffers& buffers, int64_t c,
                    ChannelSums sums, Channel& channel) {
  const Normalizer& n = channel.normalizer;
  const double count = static_cast<double>(problem.samples * problem.length);
  const double dgamma = n.scale * sums.dy_x;
  channel.wide =
      count > 0 && (n.zero || !is_safe(n.scale) || !(channel.gain == 0 || is_safe(channel.gain)) ||
                    !are_safe(sums.dy / count, dgamma / count));
  sums.dy_x = dgamma;
  if (channel.wide) sums = wide_sums<T>(problem, buffers, c, n);
  if (problem.dgamma.present) store_value(problem.dgamma, buffers.dgamma, c, sums.dy_x);
  if (problem.dbeta.present) store_value(problem.dbeta, buffers.dbeta, c, sums.dy);
  if (!problem.frozen && count > 0) {
    channel.c1 = sums.dy / count;
    channel.c2 = sums.dy_x / count;
  }
  channel.scalars = {static_cast<float>(n.mean), static_cast<float>(n.scale),
                     static_cast<float>(channel.gain), static_cast<float>(channel.c1),
                     static_cast<float>(channel.c2)};
}

}  // namespace normgrad::cpu
