// Sums over the elements of a channel: of one unit in float32, of everything beyond in float64.
#pragma once

#include "cuda/channel.cuh"

namespace normgrad::cuda {

// Units of 16 bytes as a thread loads and stores them. `count`: elements that are there, from the
// front; the others read as 0. `aligned`: the address is a multiple of 16.
template <class T>
__device__ uint4 load_unit(const T* from, int count, bool aligned) {
  if (aligned && count == kUnit<T>) return *reinterpret_cast<const uint4*>(from);
  T values[kUnit<T>];
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) values[i] = i < count ? from[i] : T(0.0f);
  return reinterpret_cast<const uint4&>(values);
}

template <class T>
__device__ void store_unit(T* to, const float (&values)[kUnit<T>], int count, bool aligned) {
  if (aligned && count == kUnit<T>) {
    *reinterpret_cast<uint4*>(to) = pack<T>(values);
    return;
  }
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) {
    if (i < count) to[i] = narrow<T>(values[i]);
  }
}

// The sum of a * b over a unit: pairs, then a tree. Four roundings with that of a product for
// 16-bit types, three for float32.
template <int kCount>
__device__ float product_sum(const float (&a)[kCount], const float (&b)[kCount]) {
  float pairs[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    pairs[i] = fmaf(a[2 * i], b[2 * i], a[2 * i + 1] * b[2 * i + 1]);
  }
  if constexpr (kCount == 8) {
    return tree_sum(pairs);
  } else {
    return pairs[0] + pairs[1];
  }
}

// The sums of one unit whose first `count` elements belong to the channel.
template <class T>
__device__ Sums unit_sums(const uint4& x_unit, const uint4& dy_unit, const Centring& centring,
                          int count) {
  float x[kUnit<T>], dy[kUnit<T>], t[kUnit<T>];
  unpack<T>(x_unit, x);
  unpack<T>(dy_unit, dy);
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) t[i] = i < count ? centring(x[i]) : 0.0f;
  return {tree_sum(dy), product_sum(dy, t)};
}

__device__ inline Sums warp_sum(Sums sums) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    sums.dy += __shfl_xor_sync(~0u, sums.dy, mask);
    sums.dy_t += __shfl_xor_sync(~0u, sums.dy_t, mask);
  }
  return sums;
}

// Threads of a block that work together: all, or some warps of it under a barrier of their own.
struct Crew {
  int thread, threads;
  int barrier;

  __device__ void wait() const {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
  }
  // The sums of all threads, for all of them: a butterfly, then the warps in order.
  __device__ Sums sum(Sums sums, Sums* scratch) const {
    sums = warp_sum(sums);
    if (thread % 32 == 0) scratch[thread / 32] = sums;
    wait();
    Sums total = scratch[0];
    for (int warp = 1; warp < threads / 32; ++warp) total.add(scratch[warp]);
    wait();
    return total;
  }
};

// The totals of a channel in float64 throughout, for the few that float32 does not serve.
template <class T>
__device__ Totals wide_totals(const ChannelsProblem& problem, const Buffers& buffers, int64_t c,
                              const Crew& crew, Sums* scratch) {
  const Normalizer n = load_normalizer(problem, buffers, c);
  const T* x = static_cast<const T*>(buffers.x) + c * problem.x.channel;
  const T* dy = static_cast<const T*>(buffers.dy) + c * problem.dy.channel;
  Sums centred, normalized;
  const int64_t elements = problem.samples * problem.length;
  for (int64_t i = crew.thread; i < elements; i += crew.threads) {
    const int64_t sample = i / problem.length, position = i - sample * problem.length;
    const double x_value = widen(x[sample * problem.x.sample + position * problem.x.position]);
    const double dy_value = widen(dy[sample * problem.dy.sample + position * problem.dy.position]);
    centred.add({dy_value, dy_value * (x_value - n.mean)});
    normalized.add({0, dy_value * n.x_hat(x_value)});
  }
  centred = crew.sum(centred, scratch);
  normalized = crew.sum(normalized, scratch);
  return {centred.dy, centred.dy_t, normalized.dy_t};
}

// A whole channel in float64 by one crew, from memory: its totals, its outputs and its dx. Slow and
// rare; nobody else may write to the channel.
template <class T>
__device__ __noinline__ void wide_channel(const ChannelsProblem& problem, const Buffers& buffers,
                                          int64_t c, const Crew& crew, Sums* scratch) {
  const Totals totals = wide_totals<T>(problem, buffers, c, crew, scratch);
  const int64_t elements = problem.samples * problem.length;
  if (crew.thread == 0) store_totals(problem, buffers, c, totals);
  if (!problem.has_dx) return;
  const Channel channel =
      make_channel(problem, buffers, c, totals, static_cast<double>(elements), false);
  const T* x = static_cast<const T*>(buffers.x) + c * problem.x.channel;
  const T* dy = static_cast<const T*>(buffers.dy) + c * problem.dy.channel;
  T* dx = static_cast<T*>(buffers.dx) + c * problem.dx.channel;
  for (int64_t i = crew.thread; i < elements; i += crew.threads) {
    const int64_t sample = i / problem.length, position = i - sample * problem.length;
    const double x_value = widen(x[sample * problem.x.sample + position * problem.x.position]);
    const double dy_value = widen(dy[sample * problem.dy.sample + position * problem.dy.position]);
    // Frozen, float32 serves dx even where the totals needed more.
    const float value = channel.wide ? static_cast<float>(channel.wide_dx(x_value, dy_value))
                                     : channel.dx(0, static_cast<float>(dy_value));
    dx[sample * problem.dx.sample + position * problem.dx.position] = narrow<T>(value);
  }
}

}  // namespace normgrad::cuda
