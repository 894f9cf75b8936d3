// The scalars of neighbouring channels, side by side, before and after their sums over the batch
// are known: types of operands are looked at once for all, a division is one for eight channels.
// One by one they took 26 ns of the 37 that a channel of 1x1024x49 took, and now 5 (Zen 5).
#if defined(NORMGRAD_CPU_CHANNEL_SCALARS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_CHANNEL_SCALARS_INL_H_
#undef NORMGRAD_CPU_CHANNEL_SCALARS_INL_H_
#else
#define NORMGRAD_CPU_CHANNEL_SCALARS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "cpu/channel.hpp"
#include "cpu/dtype.hpp"
#include "cpu/formula-inl.h"
#include "cpu/io-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// As many as are taken together, at most: whole vectors of any size.
inline constexpr int64_t kMostChannels = 32;
using ChannelValues = double[kMostChannels];

// Values [begin, begin + count) of a vector, in whole vectors.
inline void load_values(const Vector& vector, const void* data, int64_t begin, int64_t count,
                        double* values) {
  with_type(vector.dtype, [&](auto type) HWY_ATTR {
    const auto* from = static_cast<const decltype(type)*>(data) + begin * vector.stride;
    if (vector.stride != 1) {
      for (int64_t k = 0; k < count; ++k) values[k] = widen(from[k * vector.stride]);
      return;
    }
    for (int64_t k = 0; k < count; k += lanes()) {
      const int64_t left = count - k;
      store(promote(left < lanes() ? load_tail(from + k, left) : load(from + k)), values + k);
    }
  });
}

// Sums over the whole batch.
struct ChannelTotals {
  ChannelValues dy = {}, dy_xmu = {}, dy_x_hat = {};

  void set(int64_t k, const WideSums& sums) {
    dy[k] = sums.dy;
    dy_xmu[k] = sums.dy_xmu;
    dy_x_hat[k] = sums.dy_x_hat;
  }
};

// What is known of channels [begin, begin + count) before their sums.
inline void make_channels(const ChannelsProblem& problem, const Buffers& buffers, int64_t begin,
                          int64_t count, Channel* channels) {
  const Doubles d;
  ChannelValues mean, spread = {}, scale, gamma = {}, gain;
  load_values(problem.mean, buffers.mean, begin, count, mean);
  load_values(problem.spread, buffers.spread, begin, count, spread);
  if (problem.gamma.present) {
    load_values(problem.gamma, buffers.gamma, begin, count, gamma);
  } else {
    std::fill_n(gamma, count, 1.0);
  }
  for (int64_t k = 0; k < count; k += static_cast<int64_t>(hn::Lanes(d))) {
    DoubleVec r = hn::LoadU(d, spread + k);
    if (!problem.spread_is_rstd) {
      const DoubleVec std = hn::Sqrt(hn::Add(r, hn::Set(d, problem.eps)));
      hn::StoreU(std, d, spread + k);
      r = hn::IfThenZeroElse(hn::Eq(std, hn::Zero(d)), hn::Div(hn::Set(d, 1), std));
    }
    hn::StoreU(r, d, scale + k);
    hn::StoreU(hn::Mul(hn::LoadU(d, gamma + k), r), d, gain + k);
  }
  for (int64_t k = 0; k < count; ++k) {
    Channel& channel = channels[k];
    channel.normalizer = {mean[k], scale[k], scale[k], spread[k] == 0};
    channel.gain = gain[k];
    channel.scalars.mean = static_cast<float>(mean[k]);
    channel.scalars.scale = static_cast<float>(scale[k]);
    channel.frozen = problem.frozen;
    channel.wide = false;
  }
}

// c1 and c2 of channels, and whether each is plainly fine for float32. If not, the caller looks at
// every channel with care.
inline bool make_means(const Channel* channels, int64_t count, double elements,
                       ChannelTotals& totals, double* c1, double* c2) {
  const Doubles d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  ChannelValues scales = {}, gains = {};
  for (int64_t k = 0; k < count; ++k) {
    scales[k] = channels[k].normalizer.scale;
    gains[k] = channels[k].gain;
  }
  bool fine = true;
  for (int64_t k = 0; k < count; k += step) {
    const DoubleVec scale = hn::LoadU(d, scales + k), gain = hn::LoadU(d, gains + k);
    const DoubleVec dy_x_hat = hn::Mul(scale, hn::LoadU(d, totals.dy_xmu + k));
    const DoubleVec first = hn::Div(hn::LoadU(d, totals.dy + k), hn::Set(d, elements));
    const DoubleVec second = hn::Div(dy_x_hat, hn::Set(d, elements));
    const DoubleVec largest = hn::Max(hn::Abs(first), hn::Abs(second));
    const auto means_good = hn::And(are_in_range(largest), hn::Eq(first, first));
    const auto gain_good = hn::Or(hn::Eq(gain, hn::Zero(d)), are_in_range(gain));
    const auto good = hn::And(hn::And(are_in_range(scale), gain_good),
                              hn::And(means_good, hn::Eq(second, second)));
    const auto inside = hn::FirstN(d, static_cast<size_t>(HWY_MIN(step, count - k)));
    fine = fine && hn::AllTrue(d, hn::Or(good, hn::Not(inside)));
    hn::StoreU(dy_x_hat, d, totals.dy_x_hat + k);
    hn::StoreU(first, d, c1 + k);
    hn::StoreU(second, d, c2 + k);
  }
  return fine;
}

// From the sums of channels [begin, begin + count), their own or those given (dy and dy_xmu): what
// is made of them, and the scalars for dx. `elements`: of the whole batch. Whether any is wide.
template <class T>
bool finish_channels(const ChannelsProblem& problem, const Buffers& buffers, int64_t begin,
                     int64_t count, ChannelTotals& totals, double elements, Channel* channels) {
  const bool given = problem.step == ChannelsStep::kElementwise;
  const bool summed = given || (elements > 0 && needs_sums(problem));
  if (given) add_parts(problem, buffers, begin, count, totals.dy, totals.dy_xmu);
  ChannelValues c1 = {}, c2 = {};
  bool any_wide = false;
  if (!summed || !make_means(channels, count, elements, totals, c1, c2)) {
    for (int64_t k = 0; k < count; ++k) {
      Channel& channel = channels[k];
      const Normalizer& n = channel.normalizer;
      channel.wide = !(channel.gain == 0 || is_safe(channel.gain));
      if (!summed) continue;  // sums over nothing are 0, whatever the statistics of nothing are
      if (n.zero) totals.dy_x_hat[k] = 0;
      if (n.zero || !is_safe(n.scale) || !are_safe(c1[k], c2[k])) {
        if (needs_sums(problem)) totals.set(k, wide_sums<T>(problem, buffers, begin + k, n));
        channel.wide = channel.wide || !problem.frozen;  // frozen, x must not change a bit of dx
      }
      c1[k] = totals.dy[k] / elements;
      c2[k] = totals.dy_x_hat[k] / elements;
    }
  }
  const auto store = [&](const Vector& vector, void* data, const double* values) {
    if (vector.present) store_values(vector, data, begin, count, values);
  };
  store(problem.dgamma, buffers.dgamma, totals.dy_x_hat);
  store(problem.dbeta, buffers.dbeta, totals.dy);
  for (int64_t k = 0; k < count; ++k) {
    if (problem.step == ChannelsStep::kReduce) {
      store_sums(problem, buffers, begin + k, {totals.dy[k], totals.dy_xmu[k]});
    }
    Channel& channel = channels[k];
    channel.c1 = c1[k];
    channel.c2 = c2[k];
    channel.scalars.r = static_cast<float>(channel.gain);
    channel.scalars.c1 = static_cast<float>(c1[k]);
    channel.scalars.c2 = static_cast<float>(c2[k]);
    any_wide |= channel.wide;
  }
  return any_wide;
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_CHANNEL_SCALARS_INL_H_
