// One channel of BatchNorm: its scalars before and after the sums over the batch are known.
#pragma once

#include <cstdint>

#include "cpu/dtype.hpp"
#include "cpu/normalizer.hpp"
#include "ops/backend.hpp"

namespace normgrad::cpu {

struct ChannelSums {
  double dy = 0;
  double dy_centred = 0;  // of dy * (x - mean)
};

// Frozen statistics need no sums but for the parameter gradients.
inline bool needs_sums(const ChannelsProblem& problem) {
  return !problem.frozen || problem.dgamma.present || problem.dbeta.present;
}

// dx = gain * (dy - c1 - x_hat * c2), gain = gamma * r; frozen: gain * dy.
struct Channel {
  Normalizer normalizer;
  double gain = 0;
  double c1 = 0, c2 = 0;
  Scalars scalars{};  // the same in float32, the gain as r
  bool frozen = false;
  bool wide = false;  // dx needs float64

  double dx(double x, double dy) const {
    return frozen ? gain * dy : gain * (dy - c1 - normalizer.x_hat(x) * c2);
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
  channel.frozen = problem.frozen;
  channel.scalars.mean = static_cast<float>(mean);
  return channel;
}

// dgamma and dbeta of a channel in float64 throughout, for the few that float32 does not serve.
struct ParameterGradients {
  double dgamma = 0, dbeta = 0;
};
template <class T>
ParameterGradients wide_gradients(const ChannelsProblem& problem, const Buffers& buffers, int64_t c,
                                  const Normalizer& normalizer) {
  const T* x = static_cast<const T*>(buffers.x) + c * problem.x.channel;
  const T* dy = static_cast<const T*>(buffers.dy) + c * problem.dy.channel;
  ParameterGradients sums;
  for (int64_t n = 0; n < problem.samples; ++n) {
    for (int64_t l = 0; l < problem.length; ++l) {
      const double dy_value = widen(dy[n * problem.dy.sample + l * problem.dy.position]);
      const double x_value = widen(x[n * problem.x.sample + l * problem.x.position]);
      sums.dgamma += dy_value * normalizer.x_hat(x_value);
      sums.dbeta += dy_value;
    }
  }
  return sums;
}

// From the channel's sums: its parameter gradients, and the scalars for dx.
template <class T>
void finish_channel(const ChannelsProblem& problem, const Buffers& buffers, int64_t c,
                    const ChannelSums& sums, Channel& channel) {
  const Normalizer& n = channel.normalizer;
  channel.wide = !(channel.gain == 0 || is_safe(channel.gain));
  ParameterGradients gradients;  // sums over nothing are 0, whatever the statistics of nothing are
  const double count = static_cast<double>(problem.samples * problem.length);
  if (count > 0 && needs_sums(problem)) {
    gradients = {n.scale * sums.dy_centred, sums.dy};
    if (n.zero || !is_safe(n.scale) ||
        !are_safe(gradients.dbeta / count, gradients.dgamma / count)) {
      gradients = wide_gradients<T>(problem, buffers, c, n);
      channel.wide = channel.wide || !problem.frozen;  // frozen, x must not change a bit of dx
    }
    channel.c1 = gradients.dbeta / count;
    channel.c2 = gradients.dgamma / count;
  }
  if (problem.dgamma.present) store_value(problem.dgamma, buffers.dgamma, c, gradients.dgamma);
  if (problem.dbeta.present) store_value(problem.dbeta, buffers.dbeta, c, gradients.dbeta);
  channel.scalars = {static_cast<float>(n.mean), static_cast<float>(n.scale),
                     static_cast<float>(channel.gain), static_cast<float>(channel.c1),
                     static_cast<float>(channel.c2)};
}

}  // namespace normgrad::cpu
