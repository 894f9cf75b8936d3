// Sums over the elements of a channel: of one unit in float32, of everything beyond in float64.
#pragma once

#include "cuda/channel.cuh"
#include "cuda/ptx.cuh"

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

// Sums in float32, element by element of a unit: of few units, kMostAdded at a time, before they go
// on to float64 by a tree over the unit.
template <class T>
struct UnitSums {
  static constexpr int kMostAdded = 8;
  float dy[kUnit<T>] = {}, dy_t[kUnit<T>] = {};

  // Elements that are not there read as 0 and add nothing. `centring(i)`: of element i.
  template <class CentringOf>
  __device__ void add(const uint4& x_unit, const uint4& dy_unit, const CentringOf& centring) {
    float x_values[kUnit<T>], dy_values[kUnit<T>];
    unpack<T>(x_unit, x_values);
    unpack<T>(dy_unit, dy_values);
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) {
      dy[i] += dy_values[i];
      dy_t[i] = fmaf(dy_values[i], centring(i)(x_values[i]), dy_t[i]);
    }
  }
  __device__ Sums total() const { return {tree_sum(dy), tree_sum(dy_t)}; }
  // Of the first and the second half of the elements.
  struct Halves {
    float dy[2], dy_t[2];
  };
  __device__ Halves halves() const {
    constexpr int kHalf = kUnit<T> / 2;
    return {{tree_sum<kHalf>(dy), tree_sum<kHalf>(dy + kHalf)},
            {tree_sum<kHalf>(dy_t), tree_sum<kHalf>(dy_t + kHalf)}};
  }
  // Of the elements before `split`, or of the others.
  __device__ Sums total(int split, bool before) const {
    UnitSums part;
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) {
      part.dy[i] = (i < split) == before ? dy[i] : 0;
      part.dy_t[i] = (i < split) == before ? dy_t[i] : 0;
    }
    return part.total();
  }
};

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

  __device__ void wait() const { sync_some(barrier, threads); }
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

// body(x, dy, sample, position) for the elements of a channel that are this thread's.
template <class T, class Body>
__device__ void for_channel(const ChannelsProblem& problem, const Buffers& buffers, int64_t c,
                            const Crew& crew, const Body& body) {
  const T* x = static_cast<const T*>(buffers.x) + c * problem.x.channel;
  const T* dy = static_cast<const T*>(buffers.dy) + c * problem.dy.channel;
  const int across = static_cast<int>(min(problem.length, int64_t{crew.threads}));
  const int lines = crew.threads / across, line = crew.thread / across;
  if (line >= lines) return;
  for (int64_t sample = line; sample < problem.samples; sample += lines) {
    for (int64_t i = crew.thread - line * across; i < problem.length; i += across) {
      body(widen(x[sample * problem.x.sample + i * problem.x.position]),
           widen(dy[sample * problem.dy.sample + i * problem.dy.position]), sample, i);
    }
  }
}

// The totals of a channel in float64 throughout, for the few that float32 does not serve.
template <class T>
__device__ Totals wide_totals(const ChannelsProblem& problem, const Buffers& buffers, int64_t c,
                              const Crew& crew, Sums* scratch) {
  const Normalizer n = normalizer_of(problem, load_given(problem, buffers, c));
  Sums centred, normalized;
  for_channel<T>(problem, buffers, c, crew, [&](double x, double dy, int64_t, int64_t) {
    centred.add({dy, dy * (x - n.mean)});
    normalized.add({0, dy * n.x_hat(x)});
  });
  centred = crew.sum(centred, scratch);
  normalized = crew.sum(normalized, scratch);
  return {centred.dy, centred.dy_t, normalized.dy_t};
}

// The same, apart from its caller's registers.
template <class T>
__device__ __noinline__ Totals wide_totals_apart(const ChannelsProblem& problem,
                                                 const Buffers& buffers, int64_t c,
                                                 const Crew& crew, Sums* scratch) {
  return wide_totals<T>(problem, buffers, c, crew, scratch);
}

// A whole channel in float64 by one crew, from memory: its totals, its outputs and its dx. Slow and
// rare; nobody else may write to the channel.
template <class T>
__device__ __noinline__ void wide_channel(const ChannelsProblem& problem, const Buffers& buffers,
                                          int64_t c, const Crew& crew, Sums* scratch) {
  const Totals totals = wide_totals_apart<T>(problem, buffers, c, crew, scratch);
  if (crew.thread == 0) store_totals(problem, buffers, c, totals);
  if (!problem.has_dx) return;
  const Prepared prepared = prepare_channel(problem, load_given(problem, buffers, c));
  const Channel channel = make_channel(problem, prepared, totals, inverse_count(problem), false);
  T* dx = static_cast<T*>(buffers.dx) + c * problem.dx.channel;
  for_channel<T>(problem, buffers, c, crew, [&](double x, double dy, int64_t sample, int64_t i) {
    // Frozen, float32 serves dx even where the totals needed more.
    const float value = channel.wide ? static_cast<float>(channel.wide_dx(x, dy))
                                     : channel.scalars.dx(0, static_cast<float>(dy));
    dx[sample * problem.dx.sample + i * problem.dx.position] = narrow<T>(value);
  });
}

}  // namespace normgrad::cuda
