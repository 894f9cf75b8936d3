// BatchNorm backward along the length, small channels: a block takes a few neighbouring ones, keeps
// x and dy of all samples in shared memory and reads them from memory once: 3 elements moved per
// element, the least there is. Formulas as in channels_two_pass.cu.
//
// The group's channels follow each other in memory, so that each sample has one run of them, of at
// least 512 bytes where the channels are that many; a thread keeps one unit of 16 bytes of the run
// and takes its turn at the samples. A unit may reach over the border of two channels: its sums are
// kept apart. Blocks come and go, two or more on a multiprocessor, so that one loads while another
// computes or stores.
//
// Order of the sums: a unit in float32, then float64: a thread's samples; lanes of a warp, each
// with some of a channel's threads; a butterfly over the lanes.
#include <algorithm>
#include <numeric>

#include "cuda/async.cuh"
#include "cuda/channel_sums.cuh"
#include "cuda/channels.hpp"
#include "cuda/launch.cuh"

namespace normgrad::cuda {
namespace {

constexpr int kMostThreads = 448;        // two blocks of 72 registers a thread
constexpr int64_t kShared = 216 * 1024;  // of a block at most, for x and dy
constexpr int64_t kRunBytes = 512;

struct Tile {
  int group;    // channels
  int width;    // units of a sample's run, a thread each
  int lines;    // samples at a time
  int steps;    // samples of a thread
  int threads;  // lines * width and what lacks to whole warps

  size_t data_bytes() const { return 2ull * 16 * steps * threads; }
  size_t shared_bytes() const {
    return data_bytes() + threads * sizeof(Sums) + group * (sizeof(Channel) + sizeof(Centring));
  }
};

Tile tile_of(const ChannelsProblem& problem, int64_t group) {
  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  const int64_t width = (group * problem.length + unit - 1) / unit;
  if (width > kMostThreads) return {};
  const int64_t lines = std::clamp<int64_t>(256 / width, 1, problem.samples);
  const int64_t steps = (problem.samples + lines - 1) / lines;
  const int64_t threads = (lines * width + 31) / 32 * 32;
  if (2 * 16 * steps * threads > kShared) return {};
  return {static_cast<int>(group), static_cast<int>(width), static_cast<int>(lines),
          static_cast<int>(steps), static_cast<int>(threads)};
}

// Groups whose runs are long and end at multiples of 16 bytes, if a block has room for one; else
// smaller ones. threads = 0: not even one channel fits.
Tile tile_of(const ChannelsProblem& problem) {
  const int64_t bytes = problem.length * static_cast<int64_t>(size_of(problem.dtype));
  if (bytes < 16) return {};
  const int64_t whole = 16 / std::gcd<int64_t>(16, bytes);
  const int64_t wanted = (kRunBytes + bytes - 1) / bytes;
  for (int64_t group : {(wanted + whole - 1) / whole * whole, whole, wanted, int64_t{1}}) {
    const Tile tile = tile_of(problem, std::min(group, problem.channels));
    if (tile.threads > 0 && tile.shared_bytes() <= kShared) return tile;
  }
  return {};
}

// Whether every unit starts at a multiple of 16 bytes, also behind the border of two channels.
struct Aligned {
  bool x, dy, dx;
};
Aligned alignment_of(const ChannelsProblem& problem, const Buffers& buffers, const Tile& tile) {
  const auto size = static_cast<int64_t>(size_of(problem.dtype));
  const auto aligned = [&](const void* data, const ChannelsProblem::Strides& strides) {
    const bool gapless = strides.channel == problem.length || problem.length * size % 16 == 0;
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && strides.sample * size % 16 == 0 &&
           (tile.group * strides.channel * size % 16 == 0 ||
            (tile.group >= problem.channels && strides.channel == problem.length)) &&
           gapless && (strides.channel == problem.length || strides.channel * size % 16 == 0);
  };
  return {aligned(buffers.x, problem.x), aligned(buffers.dy, problem.dy),
          aligned(buffers.dx, problem.dx)};
}

// The elements of a unit: the first `split` are of one channel, the others, up to `count`, of the
// next one.
struct Span {
  int first;      // channel in the group
  int64_t start;  // position in it
  int split, count;

  template <class T>
  __device__ int64_t offset(const ChannelsProblem::Strides& strides, int i) const {
    return i < split ? first * strides.channel + start + i
                     : (first + 1) * strides.channel + i - split;
  }
};

template <class T>
__device__ Span span_of(int unit, int64_t length, int channels) {
  const int64_t begin = static_cast<int64_t>(unit) * kUnit<T>;
  const int64_t left = channels * length - begin;
  Span span;
  span.first = static_cast<int>(begin / length);
  span.start = begin - span.first * length;
  span.split = static_cast<int>(min(int64_t{kUnit<T>}, length - span.start));
  span.count = static_cast<int>(max(int64_t{0}, min(int64_t{kUnit<T>}, left)));
  return span;
}

// To the thread's own place in shared memory, where nobody else looks.
template <class T>
__device__ void load_slot(uint4* slot, const T* group, const ChannelsProblem::Strides& strides,
                          const Span& span, bool aligned) {
  if (aligned && span.count == kUnit<T>) {
    const T* from = group + span.first * strides.channel + span.start;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(slot)),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
    return;
  }
  T values[kUnit<T>];
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) {
    values[i] = i < span.count ? group[span.offset<T>(strides, i)] : T(0.0f);
  }
  *slot = reinterpret_cast<const uint4&>(values);
}

// Adds a unit to the sums of its two channels.
template <class T>
__device__ void add_unit(const uint4& x_unit, const uint4& dy_unit, const Span& span,
                         const Centring (&centring)[2], Sums (&sums)[2]) {
  float x[kUnit<T>], dy[kUnit<T>], t[kUnit<T>];
  unpack<T>(x_unit, x);
  unpack<T>(dy_unit, dy);
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) t[i] = centring[0](x[i]);
  if (span.split == kUnit<T>) {
    sums[0].add({tree_sum(dy), product_sum(dy, t)});
    return;
  }
  float rest[kUnit<T>];
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) {
    const bool first = i < span.split;
    rest[i] = first ? 0 : dy[i];
    dy[i] = first ? dy[i] : 0;
    t[i] = first ? t[i] : 0;
  }
  sums[0].add({tree_sum(dy), product_sum(dy, t)});
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) {
    t[i] = i < span.split || i >= span.count ? 0 : centring[1](x[i]);
  }
  sums[1].add({tree_sum(rest), product_sum(rest, t)});
}

// A channel's share of what the threads left: of the units that start in it.
template <class T>
__device__ Sums channel_sum(const Sums* left, const Tile& tile, int64_t length, int channel) {
  const int64_t begin = channel * length;
  const int first = static_cast<int>((begin + kUnit<T> - 1) / kUnit<T>);
  const int units = static_cast<int>((begin + length - 1) / kUnit<T>) + 1 - first;
  Sums sums;
  for (int i = threadIdx.x % 32; i < units * tile.lines; i += 32) {
    const int line = i / units;
    sums.add(left[line * tile.width + first + i - line * units]);
  }
  return warp_sum(sums);
}

template <class T>
__global__ void __launch_bounds__(kMostThreads, 2)
    block_kernel(const __grid_constant__ ChannelsProblem problem,
                 const __grid_constant__ Buffers buffers, const __grid_constant__ Tile tile,
                 Aligned aligned) {
  extern __shared__ uint4 slots[];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * tile.group;
  const int channels = static_cast<int>(min(int64_t{tile.group}, problem.channels - c));
  uint4* x_slots = slots + threadIdx.x;
  uint4* dy_slots = x_slots + tile.steps * tile.threads;
  auto* left = reinterpret_cast<Sums*>(slots + 2 * tile.steps * tile.threads);
  auto* results = reinterpret_cast<Channel*>(left + tile.threads);
  auto* centrings = reinterpret_cast<Centring*>(results + tile.group);

  const int line = threadIdx.x / tile.width, unit = threadIdx.x - line * tile.width;
  const Span span = span_of<T>(unit, problem.length, channels);
  const bool busy = line < tile.lines && span.count > 0;
  const T* x = static_cast<const T*>(buffers.x) + c * problem.x.channel;
  const T* dy = static_cast<const T*>(buffers.dy) + c * problem.dy.channel;
  T* dx = static_cast<T*>(buffers.dx) + c * problem.dx.channel;
  const int steps =
      busy ? static_cast<int>((problem.samples - line + tile.lines - 1) / tile.lines) : 0;
  for (int k = 0; k < steps; ++k) {
    const int64_t sample = line + static_cast<int64_t>(k) * tile.lines;
    load_slot(x_slots + k * tile.threads, x + sample * problem.x.sample, problem.x, span,
              aligned.x);
    load_slot(dy_slots + k * tile.threads, dy + sample * problem.dy.sample, problem.dy, span,
              aligned.dy);
  }
  for (int i = threadIdx.x; i < channels; i += tile.threads) {
    centrings[i] = load_centring(problem, buffers, c + i);
  }
  __syncthreads();
  Sums sums[2];
  if (busy) {
    const int next = min(span.first + 1, channels - 1);
    const Centring centring[2] = {centrings[span.first], centrings[next]};
    asm volatile("cp.async.wait_all;" ::: "memory");
    for (int k = 0; k < steps; ++k) {
      add_unit<T>(x_slots[k * tile.threads], dy_slots[k * tile.threads], span, centring, sums);
    }
  }

  const double elements = static_cast<double>(problem.samples * problem.length);
  const int warp = threadIdx.x / 32, warps = tile.threads / 32;
  left[threadIdx.x] = sums[0];
  __syncthreads();
  // The channel behind the border is the one that the next unit starts in.
  if (busy && span.split < span.count) left[threadIdx.x + 1].add(sums[1]);
  __syncthreads();
  bool wide = false;
  for (int i = warp; i < channels; i += warps) {
    const Sums total = channel_sum<T>(left, tile, problem.length, i);
    if (threadIdx.x % 32 == 0) {
      const Normalizer n = load_normalizer(problem, buffers, c + i);
      const Totals totals = totals_of(n, total, centrings[i].p);
      const bool safe = are_safe(n, totals, elements);
      results[i] = make_channel(problem, buffers, c + i, totals, elements, safe);
      results[i].wide = results[i].wide || !safe;  // frozen, too: the totals need it
      wide = wide || results[i].wide;
      if (!results[i].wide) store_totals(problem, buffers, c + i, totals);
    }
  }
  wide = __syncthreads_or(wide);

  if (busy) {
    const Channel& first = results[span.first];
    const Channel& second = results[min(span.first + 1, channels - 1)];
    const bool whole = aligned.dx && span.count == kUnit<T> && !wide;
    for (int k = 0; k < steps; ++k) {
      const int64_t sample = line + static_cast<int64_t>(k) * tile.lines;
      float x_values[kUnit<T>], dy_values[kUnit<T>], values[kUnit<T>];
      unpack<T>(x_slots[k * tile.threads], x_values);
      unpack<T>(dy_slots[k * tile.threads], dy_values);
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i) {
        const float x_value = problem.frozen ? 0 : x_values[i];
        values[i] =
            i < span.split ? first.dx(x_value, dy_values[i]) : second.dx(x_value, dy_values[i]);
      }
      T* to = dx + sample * problem.dx.sample;
      if (whole) {
        *reinterpret_cast<uint4*>(to + span.first * problem.dx.channel + span.start) =
            pack<T>(values);
      } else {
#pragma unroll
        for (int i = 0; i < kUnit<T>; ++i) {
          const bool there = i < span.count && !(i < span.split ? first.wide : second.wide);
          if (there) to[span.offset<T>(problem.dx, i)] = narrow<T>(values[i]);
        }
      }
    }
  }
  if (!wide) return;
  const Crew crew = {static_cast<int>(threadIdx.x), tile.threads, 0};
  for (int i = 0; i < channels; ++i) {
    if (results[i].wide) wide_channel<T>(problem, buffers, c + i, crew, left);
  }
}

Status launch_block(const ChannelsProblem& problem, const Buffers& buffers, void*, void* stream) {
  const Tile tile = tile_of(problem);
  Launch launch = {static_cast<unsigned>((problem.channels + tile.group - 1) / tile.group),
                   static_cast<unsigned>(tile.threads)};
  launch.shared = tile.shared_bytes();
  return with_type(problem.dtype, [&](auto type) {
    return launch_kernel(&block_kernel<decltype(type)>, launch, stream, problem, buffers, tile,
                         alignment_of(problem, buffers, tile));
  });
}

}  // namespace

Status choose_channels_block(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel) {
  const Status fused = check_fused("channels_block", problem);
  if (!fused.ok()) return fused;
  if (walks_channels(problem) || tile_of(problem).threads == 0) {
    return {Code::kUnsupportedDevice,
            "channels_block: expected channels of at least 16 bytes of length, contiguous along "
            "it, that fit in a block's shared memory"};
  }
  kernel = {"channels_block", 0, &launch_block};
  return {};
}

}  // namespace normgrad::cuda
