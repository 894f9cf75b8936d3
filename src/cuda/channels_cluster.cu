// BatchNorm backward along the length, channels of up to 1.6 MiB: one block or a cluster of blocks
// takes a channel or a few small ones, keeps x and dy of all samples in shared memory between the
// sums and dx, and ends. Formulas as in channels_two_pass.cu; 3 elements moved per element, the
// least there is.
//
// Small channels are taken in groups that follow each other in memory, so that each sample has one
// run of at least 512 bytes of them. A thread keeps one unit of 16 bytes of a run and takes its
// turn at the samples; runs beyond a block's threads are cut into pieces. A unit may reach over the
// border of two channels: its sums are kept apart. Each block's sums go to all blocks of its
// cluster. Four blocks (or two, or one) are on a multiprocessor at a time and come and go, so that
// some load while others compute or store.
//
// Order of the sums: a unit in float32, then float64: a thread's runs, with those of the unit
// before it that are of the same channel; lanes of a warp, each with some of a channel's threads; a
// butterfly over the lanes, and one over the blocks. All of it follows from shape and dtype.
#include <algorithm>
#include <numeric>

#include "cuda/async.cuh"
#include "cuda/channel_sums.cuh"
#include "cuda/channels.hpp"
#include "cuda/launch.cuh"

namespace normgrad::cuda {
namespace {

constexpr int kMostThreads = 224;           // four blocks of them have 72 registers a thread
constexpr int64_t kQuarter = 52 * 1024;     // data of a block if four are on a multiprocessor
constexpr int64_t kHalf = 106 * 1024;       // if two are
constexpr int64_t kRunBytes = 512;          // of a group's run, at least
constexpr int64_t kEnoughBlocks = 2 * 128;  // for a GPU

struct Tile {
  int blocks;   // of the cluster
  int group;    // channels
  int pieces;   // of a sample's run
  int width;    // units of a piece, a thread each
  int lines;    // pieces at a time
  int steps;    // pieces of a thread, at most
  int threads;  // lines * width and what lacks to whole warps
  int runs;     // samples * pieces

  __host__ __device__ int cells() const { return lines * width; }
  int64_t data_bytes() const { return int64_t{2} * 16 * steps * cells(); }
  size_t shared_bytes() const {
    return data_bytes() + threads * sizeof(Sums) +
           group * (sizeof(Channel) + sizeof(Given) + blocks * sizeof(Sums));
  }
};

// threads = 0: a group of that many channels does not fit `most` bytes.
Tile tile_of(const ChannelsProblem& problem, int64_t group, int blocks, int64_t most) {
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  const int64_t units = ceil(group * problem.length, unit);
  const int64_t pieces = ceil(units, kMostThreads);
  if (pieces > 1 && group > 1) return {};
  if (units * problem.samples > most * blocks / 16) return {};
  const int64_t runs = problem.samples * pieces;
  const int64_t width = ceil(units, pieces);
  const int64_t lines = std::clamp<int64_t>(kMostThreads / width, 1, ceil(runs, blocks));
  const int64_t steps = ceil(runs, lines * blocks);
  const Tile tile = {blocks,
                     static_cast<int>(group),
                     static_cast<int>(pieces),
                     static_cast<int>(width),
                     static_cast<int>(lines),
                     static_cast<int>(steps),
                     static_cast<int>(ceil(lines * width, 32) * 32),
                     static_cast<int>(runs)};
  return tile.data_bytes() <= most ? tile : Tile{};
}

// Groups whose runs are long and end at multiples of 16 bytes, if there is room for one; else
// smaller ones. As few blocks as let four share a multiprocessor and fill the GPU.
Tile tile_of(const ChannelsProblem& problem) {
  const int64_t bytes = problem.length * static_cast<int64_t>(size_of(problem.dtype));
  if (bytes < 16) return {};
  const int64_t whole = 16 / std::gcd<int64_t>(16, bytes);
  const int64_t wanted = (kRunBytes + bytes - 1) / bytes;
  for (const int64_t most : {kQuarter, kHalf}) {
    for (int64_t group : {(wanted + whole - 1) / whole * whole, whole, wanted, int64_t{1}}) {
      group = std::min(group, problem.channels);
      for (int blocks = 1; blocks <= 16; blocks *= 2) {
        const Tile tile = tile_of(problem, group, blocks, most);
        if (tile.threads == 0) continue;
        const int64_t groups = (problem.channels + group - 1) / group;
        const bool few = groups * blocks < kEnoughBlocks && tile.steps >= 8 && blocks < 8;
        if (!few) return tile;
      }
    }
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
    const bool alone = tile.group >= problem.channels;  // the one group starts where the data does
    const bool gapless = strides.channel == problem.length || tile.group == 1;
    const bool whole = problem.length * size % 16 == 0 && strides.channel * size % 16 == 0;
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
           (problem.samples == 1 || strides.sample * size % 16 == 0) &&
           (alone || tile.group * strides.channel * size % 16 == 0) && (gapless || whole);
  };
  return {aligned(buffers.x, problem.x), aligned(buffers.dy, problem.dy),
          aligned(buffers.dx, problem.dx)};
}

__device__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A thread's unit of a run: its elements up to `split` are of one channel, the others of the next.
struct Span {
  int first, start;  // channel in the group, position in it
  int split;
  int count;  // elements that are there, in the first piece of the run; later ones have fewer

  __device__ int64_t offset(const ChannelsProblem::Strides& strides, int i) const {
    return i < split ? first * strides.channel + start + i
                     : (first + 1) * strides.channel + i - split;
  }
};
template <class T>
__device__ Span span_of(int unit, int64_t length, int channels) {
  const int64_t begin = static_cast<int64_t>(unit) * kUnit<T>;
  const int first = channels == 1 ? 0 : static_cast<int>(begin) / static_cast<int>(length);
  const int start = static_cast<int>(begin - first * length);
  const int64_t split = length - start, count = channels * length - begin;
  return {first, start, split < kUnit<T> ? static_cast<int>(split) : kUnit<T>,
          static_cast<int>(min(count, int64_t{1} << 30))};
}

// A block's view of its part: which runs its threads take, and where they are.
template <class T>
struct View {
  const ChannelsProblem& problem;
  const Tile& tile;
  const Span& span;
  int first_run;  // of the thread; the next are blocks * lines apart

  __device__ int steps() const {
    const int stride = tile.blocks * tile.lines;
    return first_run < tile.runs ? (tile.runs - first_run + stride - 1) / stride : 0;
  }
  struct Place {
    int64_t sample;
    int shift;  // elements before the piece
    int count;  // of the unit
  };
  __device__ Place place(int step) const {
    const int run = first_run + step * tile.blocks * tile.lines;
    if (tile.pieces == 1) return {run, 0, min(span.count, kUnit<T>)};
    const int sample = run / tile.pieces;
    const int shift = (run - sample * tile.pieces) * tile.width * kUnit<T>;
    return {sample, shift, max(0, min(span.count - shift, kUnit<T>))};
  }
};

// Units that are not whole or not aligned, element by element. (Inlined, these would cost the other
// paths their registers.)
template <class T>
__device__ __noinline__ void load_elements(T* slot, const T* from,
                                           const ChannelsProblem::Strides& strides,
                                           const Span& span, int count) {
#pragma unroll 1
  for (int i = 0; i < kUnit<T>; ++i) {
    slot[i] = i < count ? from[span.offset(strides, i)] : T(0.0f);
  }
}
template <class T>
__device__ __noinline__ void store_elements(T* to, const T* slot, const Channel* channels,
                                            const ChannelsProblem::Strides& strides,
                                            const Span& span, int count) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if (channels[i < span.split ? span.first : span.first + 1].wide) continue;
    to[span.offset(strides, i)] = slot[i];
  }
}

// To the thread's own place in shared memory, where nobody else looks.
template <class T>
__device__ void load_slot(uint4* slot, const T* from, const ChannelsProblem::Strides& strides,
                          const Span& span, const typename View<T>::Place& place, bool aligned) {
  from += place.sample * strides.sample + place.shift;
  if (aligned && place.count >= kUnit<T>) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(slot)),
                 "l"(__cvta_generic_to_global(from + span.first * strides.channel + span.start))
                 : "memory");
  } else {
    load_elements(reinterpret_cast<T*>(slot), from, strides, span, place.count);
  }
}

// Adds a unit to the sums of its two channels. Both look at all of it: what is not theirs is 0.
template <class T>
__device__ void add_straddling(const uint4& x_unit, const uint4& dy_unit, int split,
                               const Centring (&centring)[2], Sums (&sums)[2]) {
  float t[kUnit<T>], dy[kUnit<T>];
  unpack<T>(x_unit, t);
  unpack<T>(dy_unit, dy);
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) t[i] = i < split ? centring[0](t[i]) : centring[1](t[i]);
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    float dy_here[kUnit<T>], t_here[kUnit<T>];
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) {
      const bool here = (i < split) == (side == 0);
      dy_here[i] = here ? dy[i] : 0;
      t_here[i] = here ? t[i] : 0;
    }
    sums[side].add({tree_sum(dy_here), product_sum(dy_here, t_here)});
  }
}

// A channel's share of what the threads left: of the units that start in it.
template <class T>
__device__ Sums channel_sum(const Sums* left, const Tile& tile, int64_t length, int channel) {
  int first = 0, units = tile.width;
  if (tile.group > 1) {
    const int begin = channel * static_cast<int>(length);
    first = (begin + kUnit<T> - 1) / kUnit<T>;
    units = (begin + static_cast<int>(length) - 1) / kUnit<T> + 1 - first;
  }
  Sums sums;
  for (int i = threadIdx.x % 32; i < units * tile.lines; i += 32) {
    const int line = i / units;
    sums.add(left[line * tile.width + first + i - line * units]);
  }
  return warp_sum(sums);
}

template <class T>
__global__ void __launch_bounds__(kMostThreads, 4)
    cluster_kernel(const __grid_constant__ ChannelsProblem problem,
                   const __grid_constant__ Buffers buffers, const __grid_constant__ Tile tile,
                   Aligned aligned) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 slots[];
  __shared__ Barrier arrived;
  const int cells = tile.cells();
  auto* left = reinterpret_cast<Sums*>(slots + 2 * tile.steps * cells);
  auto* inbox = left + tile.threads;  // blocks x channels
  auto* results = reinterpret_cast<Channel*>(inbox + tile.blocks * tile.group);
  auto* givens = reinterpret_cast<Given*>(results + tile.group);

  const bool alone = tile.blocks == 1;
  const int rank = alone ? 0 : static_cast<int>(cluster_rank());
  const int64_t c = static_cast<int64_t>(blockIdx.x) / tile.blocks * tile.group;
  const int channels = static_cast<int>(min(int64_t{tile.group}, problem.channels - c));
  if (!alone) {
    if (threadIdx.x == 0) {
      init_barrier(&arrived, 1);
      fence_barrier_init();
      expect_bytes(&arrived, tile.blocks * channels * sizeof(Sums));
      arrive(&arrived);
    }
    cluster_arrive();
  }

  const int line = threadIdx.x / tile.width, unit = threadIdx.x - line * tile.width;
  const Span span = span_of<T>(unit, problem.length, channels);
  const View<T> view = {problem, tile, span, line * tile.blocks + rank};
  const int steps = line < tile.lines && span.count > 0 ? view.steps() : 0;
  uint4* x_slots = slots + threadIdx.x;
  uint4* dy_slots = x_slots + tile.steps * cells;
  const T* x = static_cast<const T*>(buffers.x) + c * problem.x.channel;
  const T* dy = static_cast<const T*>(buffers.dy) + c * problem.dy.channel;
  T* dx = static_cast<T*>(buffers.dx) + c * problem.dx.channel;
#pragma unroll 1
  for (int k = 0; k < steps; ++k) {
    const auto place = view.place(k);
    load_slot(x_slots + k * cells, x, problem.x, span, place, aligned.x);
    load_slot(dy_slots + k * cells, dy, problem.dy, span, place, aligned.dy);
  }
  for (int i = threadIdx.x; i < channels; i += tile.threads) {
    givens[i] = load_given(problem, buffers, c + i);
  }
  __syncthreads();

  const bool straddling = tile.group > 1 && problem.length % kUnit<T> != 0;
  Sums sums[2];
  if (steps > 0) {
    const int next = min(span.first + 1, channels - 1);
    const Centring centring[2] = {centring_of(problem, givens[span.first]),
                                  centring_of(problem, givens[next])};
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (straddling) {
#pragma unroll 1
      for (int k = 0; k < steps; ++k) {
        add_straddling<T>(x_slots[k * cells], dy_slots[k * cells], span.split, centring, sums);
      }
    } else {
#pragma unroll 2
      for (int k = 0; k < steps; ++k) {
        sums[0].add(unit_sums<T>(x_slots[k * cells], dy_slots[k * cells], centring[0]));
      }
    }
  }
  left[threadIdx.x] = sums[0];
  __syncthreads();
  if (straddling) {
    // The channel behind the border is the one that the next unit starts in.
    if (steps > 0 && span.split < min(span.count, kUnit<T>)) left[threadIdx.x + 1].add(sums[1]);
    __syncthreads();
  }

  const int warp = threadIdx.x / 32, warps = tile.threads / 32, lane = threadIdx.x % 32;
  if (!alone) {
    cluster_wait();
    for (int i = warp; i < channels; i += warps) {
      const Sums total = channel_sum<T>(left, tile, problem.length, i);
      if (lane < tile.blocks) {
        Sums* place = inbox + rank * channels + i;
        send(remote_address(&place->dy, lane), total.dy, remote_address(&arrived, lane));
        send(remote_address(&place->dy_t, lane), total.dy_t, remote_address(&arrived, lane));
      }
    }
    wait(&arrived, 0);
  }
  bool wide = false;
  for (int i = warp; i < channels; i += warps) {
    const Sums total = alone ? channel_sum<T>(left, tile, problem.length, i)
                             : warp_sum(lane < tile.blocks ? inbox[lane * channels + i] : Sums{});
    if (lane == 0) {
      results[i] = finish_channel(problem, buffers, c + i, givens[i], total, rank == 0);
      wide = wide || results[i].wide;
    }
  }
  wide = __syncthreads_or(wide);

  if (steps > 0) {
    const DxScalars first = results[span.first].scalars;
    const DxScalars second = results[min(span.first + 1, channels - 1)].scalars;
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
      const auto place = view.place(k);
      float x_values[kUnit<T>], dy_values[kUnit<T>], values[kUnit<T>];
      unpack<T>(problem.frozen ? uint4{} : x_slots[k * cells], x_values);
      unpack<T>(dy_slots[k * cells], dy_values);
      if (straddling) {
#pragma unroll
        for (int i = 0; i < kUnit<T>; ++i) {
          values[i] = i < span.split ? first.dx(x_values[i], dy_values[i])
                                     : second.dx(x_values[i], dy_values[i]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kUnit<T>; ++i) values[i] = first.dx(x_values[i], dy_values[i]);
      }
      T* to = dx + place.sample * problem.dx.sample + place.shift;
      if (aligned.dx && place.count >= kUnit<T> && !wide) {
        *reinterpret_cast<uint4*>(to + span.first * problem.dx.channel + span.start) =
            pack<T>(values);
        continue;
      }
      x_slots[k * cells] = pack<T>(values);
      store_elements(to, reinterpret_cast<const T*>(x_slots + k * cells), results, problem.dx, span,
                     place.count);
    }
  }
  if (!wide || rank != 0) return;
  const Crew crew = {static_cast<int>(threadIdx.x), tile.threads, 0};
  for (int i = 0; i < channels; ++i) {
    if (results[i].wide) wide_channel<T>(problem, buffers, c + i, crew, left);
  }
#endif
}

Status launch_cluster(const ChannelsProblem& problem, const Buffers& buffers, void*, void* stream) {
  const Tile tile = tile_of(problem);
  const int64_t groups = (problem.channels + tile.group - 1) / tile.group;
  Launch launch = {static_cast<unsigned>(groups * tile.blocks),
                   static_cast<unsigned>(tile.threads)};
  launch.shared = tile.shared_bytes();
  launch.cluster = static_cast<unsigned>(tile.blocks);
  return with_type(problem.dtype, [&](auto type) {
    return launch_kernel(&cluster_kernel<decltype(type)>, launch, stream, problem, buffers, tile,
                         alignment_of(problem, buffers, tile));
  });
}

}  // namespace

Status choose_channels_cluster(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel) {
  const Status fused = check_fused("channels_cluster", problem);
  if (!fused.ok()) return fused;
  const Tile tile = tile_of(problem);
  if (walks_channels(problem) || tile.threads == 0) {
    return {Code::kUnsupportedDevice,
            "channels_cluster: expected channels of at least 16 bytes of length, contiguous along "
            "it, that fit in the shared memory of 16 blocks"};
  }
  kernel = {tile.blocks > 1 ? "channels_cluster" : "channels_block", 0, &launch_cluster};
  return {};
}

}  // namespace normgrad::cuda
