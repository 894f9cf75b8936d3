// One channel of BatchNorm: its scalars, and the sums over the batch that they are made of.
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
  if (problem.step == ChannelsStep::kElementwise) return false;
  return !problem.frozen || problem.dgamma.present || problem.dbeta.present;
}

// Elements per channel of the whole batch.
inline double batch_elements(const ChannelsProblem& problem, const Buffers& buffers) {
  if (problem.step != ChannelsStep::kElementwise) {
    return static_cast<double>(problem.samples * problem.length);
  }
  double count = 0;
  for (int64_t i = 0; i < problem.counts; ++i) {
    count += load_step_value(problem.count.dtype, buffers.count, i * problem.count.stride);
  }
  return count;
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

// The sums of a channel in float64 throughout, for the few that float32 does not serve.
struct WideSums {
  double dy = 0, dy_xmu = 0, dy_x_hat = 0;
};
template <class T>
WideSums wide_sums(const ChannelsProblem& problem, const Buffers& buffers, int64_t c,
                   const Normalizer& normalizer) {
  const T* x = static_cast<const T*>(buffers.x) + c * problem.x.channel;
  const T* dy = static_cast<const T*>(buffers.dy) + c * problem.dy.channel;
  WideSums sums;
  for (int64_t n = 0; n < problem.samples; ++n) {
    for (int64_t l = 0; l < problem.length; ++l) {
      const double dy_value = widen(dy[n * problem.dy.sample + l * problem.dy.position]);
      const double x_value = widen(x[n * problem.x.sample + l * problem.x.position]);
      sums.dy += dy_value;
      sums.dy_xmu += dy_value * (x_value - normalizer.mean);
      sums.dy_x_hat += dy_value * normalizer.x_hat(x_value);
    }
  }
  return sums;
}

// Adds up the sums of channels [begin, begin + count) over the parts of the batch, in their order.
inline void add_parts(const ChannelsProblem& problem, const Buffers& buffers, int64_t begin,
                      int64_t count, double* dy, double* dy_xmu) {
  for (int64_t part = 0; part < problem.parts; ++part) {
    for (int64_t k = 0; k < count; ++k) {
      dy[k] += load_part(problem.sum_dy, buffers.sum_dy, part, begin + k);
      dy_xmu[k] += load_part(problem.sum_dy_xmu, buffers.sum_dy_xmu, part, begin + k);
    }
  }
}

// What the first step leaves to the second.
inline void store_sums(const ChannelsProblem& problem, const Buffers& buffers, int64_t c,
                       const WideSums& sums) {
  if (problem.sum_dy.present) store_step_value(problem.sum_dy, buffers.sum_dy, c, sums.dy);
  if (problem.sum_dy_xmu.present) {
    store_step_value(problem.sum_dy_xmu, buffers.sum_dy_xmu, c, sums.dy_xmu);
  }
  if (problem.count.present && c == 0) store_count(problem, buffers.count);
}

}  // namespace normgrad::cpu
