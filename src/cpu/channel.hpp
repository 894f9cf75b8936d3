// One channel of BatchNorm: its scalars before and after the sums over the batch are known.
#pragma once

#include <algorithm>
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
  channel.scalars.scale = static_cast<float>(channel.normalizer.scale);
  return channel;
}

// The sums of a channel in float64 throughout, for the few that float32 does not serve.
struct WideSums {
  double dy = 0, dy_xmu = 0;
  double dy_x_hat = 0;
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

// The sums of channels below `last` over the whole batch, from those of its parts, in their order.
// Asked for one after the other; neighbours are summed together, while their lines of a part are
// there.
class GivenSums {
 public:
  GivenSums(const ChannelsProblem& problem, const Buffers& buffers, int64_t last)
      : problem_(problem), buffers_(buffers), last_(last) {}

  const ChannelSums& of(int64_t c) {
    if (c >= end_) sum(c, std::min(c + kNeighbours, last_));
    return sums_[c - begin_];
  }

 private:
  static constexpr int64_t kNeighbours = 16;

  void sum(int64_t begin, int64_t end) {
    begin_ = begin;
    end_ = end;
    std::fill_n(sums_, end - begin, ChannelSums());
    for (int64_t part = 0; part < problem_.parts; ++part) {
      for (int64_t c = begin; c < end; ++c) {
        ChannelSums& sums = sums_[c - begin];
        sums.dy += load_part(problem_.sum_dy, buffers_.sum_dy, part, c);
        sums.dy_centred += load_part(problem_.sum_dy_xmu, buffers_.sum_dy_xmu, part, c);
      }
    }
  }

  const ChannelsProblem& problem_;
  const Buffers& buffers_;
  int64_t last_;
  ChannelSums sums_[kNeighbours];
  int64_t begin_ = 0, end_ = 0;
};

// What the first step leaves to the second.
inline void store_sums(const ChannelsProblem& problem, const Buffers& buffers, int64_t c,
                       const WideSums& sums) {
  if (problem.sum_dy.present) store_step_value(problem.sum_dy, buffers.sum_dy, c, sums.dy);
  if (problem.sum_dy_xmu.present) {
    store_step_value(problem.sum_dy_xmu, buffers.sum_dy_xmu, c, sums.dy_xmu);
  }
  if (problem.count.present && c == 0) store_count(problem, buffers.count);
}

// From the channel's sums, its own or those given: what is made of them, and the scalars for dx.
// `elements`: of the whole batch.
template <class T>
void finish_channel(const ChannelsProblem& problem, const Buffers& buffers, int64_t c,
                    const ChannelSums& sums, GivenSums& all, double elements, Channel& channel) {
  const Normalizer& n = channel.normalizer;
  channel.wide = !(channel.gain == 0 || is_safe(channel.gain));
  WideSums total;  // sums over nothing are 0, whatever the statistics of nothing are
  if (problem.step == ChannelsStep::kElementwise) {
    const ChannelSums& given = all.of(c);
    total.dy = given.dy;
    total.dy_x_hat = n.zero ? 0 : n.scale * given.dy_centred;
  } else if (elements > 0 && needs_sums(problem)) {
    total = {sums.dy, sums.dy_centred, n.scale * sums.dy_centred};
  }
  const bool summed =
      problem.step == ChannelsStep::kElementwise || (elements > 0 && needs_sums(problem));
  if (summed &&
      (n.zero || !is_safe(n.scale) || !are_safe(total.dy / elements, total.dy_x_hat / elements))) {
    if (needs_sums(problem)) total = wide_sums<T>(problem, buffers, c, n);
    channel.wide = channel.wide || !problem.frozen;  // frozen, x must not change a bit of dx
  }
  if (summed) {
    channel.c1 = total.dy / elements;
    channel.c2 = total.dy_x_hat / elements;
  }
  if (problem.dgamma.present) store_value(problem.dgamma, buffers.dgamma, c, total.dy_x_hat);
  if (problem.dbeta.present) store_value(problem.dbeta, buffers.dbeta, c, total.dy);
  if (problem.step == ChannelsStep::kReduce) store_sums(problem, buffers, c, total);
  channel.scalars = {static_cast<float>(n.mean), static_cast<float>(n.scale),
                     static_cast<float>(channel.gain), static_cast<float>(channel.c1),
                     static_cast<float>(channel.c2)};
}

}  // namespace normgrad::cpu
