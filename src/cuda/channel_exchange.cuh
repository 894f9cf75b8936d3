// Sums on their way from block to block, through the workspace. A place holds what no sum can be
// until the sum is there, so that data and flag come in one trip.
#pragma once

#include "cuda/channel_sums.cuh"
#include "cuda/ptx.cuh"

namespace normgrad::cuda {

inline constexpr int kMostParts = 128;  // of a channel, a block each

// Neither sum is ever this NaN: those that arithmetic makes are replaced by another.
inline constexpr unsigned long long kNothing = ~0ull;

__device__ inline void send_sums(Sums* to, const Sums& sums) {
  const auto bits = [](double value) -> unsigned long long {
    return isnan(value) ? 0x7FF8000000000000ll : __double_as_longlong(value);
  };
  store_relaxed(reinterpret_cast<Words*>(to), {bits(sums.dy), bits(sums.dy_t)});
}
// The sums of all parts, for a warp: a lane's in order, then a butterfly. All are asked for at once
// and again until the last is there: a trip takes a microsecond where memory is busy.
__device__ inline Sums receive_sums(const Sums* places, int parts) {
  constexpr int kMost = kMostParts / 32;
  const int lane = threadIdx.x % 32;
  const auto is_missing = [](const Words& words) {
    return words.first == kNothing || words.second == kNothing;
  };
  Words words[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    words[i] = lane + 32 * i < parts ? Words{kNothing, kNothing} : Words{};
  }
  bool waits;
  do {
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (!is_missing(words[i])) continue;
      words[i] = load_relaxed(reinterpret_cast<const Words*>(places + lane + 32 * i));
    }
    waits = false;
#pragma unroll
    for (int i = 0; i < kMost; ++i) waits = waits || is_missing(words[i]);
  } while (waits);
  Sums sums;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    sums.add({__longlong_as_double(static_cast<long long>(words[i].first)),
              __longlong_as_double(static_cast<long long>(words[i].second))});
  }
  return warp_sum(sums);
}

}  // namespace normgrad::cuda
