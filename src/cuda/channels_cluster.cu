// BatchNorm backward along the length, channels of up to 1.6 MB of x and dy: a block or a cluster
// takes a channel or a few small ones, keeps x and dy of all samples in shared memory between the
// sums and dx, and ends. Formulas as in channels_two_pass.cu; 3 elements moved per element, the
// least there is. On an H200, beside a copy of as many bytes: 32x256x3136 bf16 58 us (38),
// 32x1024x196 bf16 19 (12), fp32 28 (20), 32x2048x49 bf16 15 (8). In the first the
// profiler counts 274 instructions for a unit of x and dy; the loops are about half of them.
//
// Small channels are taken in groups that follow each other in memory, so that each sample has one
// run of at least 512 bytes of them. A thread keeps one unit of 16 bytes of a run and takes its
// turn at the samples; runs beyond a block's threads are cut into pieces. A unit may reach over the
// border of two channels: its sums are kept apart. Each block's sums go to all blocks of its
// cluster. Four blocks (or two) are on a multiprocessor at a time and come and go, so that some
// load while others compute or store.
//
// Order of the sums: 8 runs of a thread, then its unit, in float32; then float64: its other runs,
// with what the unit before it has of the same channel; lanes of a warp, each with some of a
// channel's threads; a butterfly over the lanes, and one over the blocks. All of it follows from
// shape and dtype.
#include "cuda/channel_sums.cuh"
#include "cuda/channel_walk.cuh"
#include "cuda/channels.hpp"
#include "cuda/channels_cluster_tile.hpp"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

namespace normgrad::cuda {
namespace {

constexpr int kMostThreads = Tile::kMostThreads;

size_t shared_bytes(const Tile& tile) {
  return tile.data_bytes() + tile.threads * sizeof(Sums) +
         tile.group * (sizeof(Channel) + sizeof(Prepared) + tile.blocks * sizeof(Sums));
}

struct Paces {
  Pace x, dy, dx;
  int pieces;  // that a step adds, beside whole samples
};
Paces paces_of(const ChannelsProblem& problem, const Tile& tile) {
  const auto size = static_cast<int64_t>(size_of(problem.dtype));
  const int stride = tile.blocks * tile.lines;
  const int samples = stride / tile.pieces, pieces = stride % tile.pieces;
  const auto pace = [&](const ChannelsProblem::Strides& strides) -> Pace {
    const int64_t sample = strides.sample * size, piece = tile.width * 16;
    return {samples * sample + pieces * piece, sample - tile.pieces * piece};
  };
  return {pace(problem.x), pace(problem.dy), pace(problem.dx), pieces};
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

// A thread's unit of a run: its elements up to `split` are of one channel, the others of the next.
struct Span {
  int first, start;  // channel in the group, position in it
  int split, count;  // count: elements that are there, in the last piece of a run

  // Of element i from the first.
  __device__ int64_t offset(const ChannelsProblem::Strides& strides, int i) const {
    return i < split ? i : strides.channel - start + i - split;
  }
};
template <class T>
__device__ Span span_of(int unit, const Tile& tile, int64_t length, int channels) {
  const int begin = unit * kUnit<T>;
  const int first = tile.group == 1 ? 0 : begin / static_cast<int>(length);
  const int start = static_cast<int>(begin - first * length);
  const int64_t last = channels * length - (tile.pieces - 1) * tile.width * kUnit<T> - begin;
  return {first, start, static_cast<int>(min(length - start, int64_t{kUnit<T>})),
          static_cast<int>(max(int64_t{0}, min(last, int64_t{kUnit<T>})))};
}

// A thread's way through its runs: addresses, and the piece of the sample.
template <class Byte>
struct Way {
  Byte* at;
  int64_t step, wrap;

  template <class Data>
  __device__ Way(Data* data, const ChannelsProblem::Strides& strides, const Pace& pace,
                 const Tile& tile, int64_t c, const Span& span, int run)
      : step(pace.step), wrap(pace.wrap) {
    const int sample = run / tile.pieces;
    at = reinterpret_cast<Byte*>(data + (c + span.first) * strides.channel + span.start +
                                 sample * strides.sample) +
         (run - sample * tile.pieces) * tile.width * 16;
  }
  __device__ void advance(bool wraps) { at += wraps ? step + wrap : step; }
};
struct PieceCount {
  int piece, step, pieces;

  __device__ bool advance() {
    piece += step;
    const bool wraps = piece >= pieces;
    if (wraps) piece -= pieces;
    return wraps;
  }
  __device__ bool is_last() const { return piece + 1 == pieces; }
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
    const int line = tile.group == 1 ? 0 : i / units;
    sums.add(left[tile.group == 1 ? i : line * tile.width + first + i - line * units]);
  }
  return warp_sum(sums);
}

// float16 takes more registers to unpack.
template <class T>
__global__ void __launch_bounds__(kMostThreads, std::is_same_v<T, F16> ? 3 : 4)
    cluster_kernel(const __grid_constant__ ChannelsProblem problem,
                   const __grid_constant__ Buffers buffers, const __grid_constant__ Tile tile,
                   const __grid_constant__ Paces paces, Aligned aligned) {
#if NORMGRAD_HOPPER
  auto* slots = dynamic_shared<uint4>();
  auto& arrived = in_shared<Barrier>();
  const int cells = tile.cells();
  auto* left = reinterpret_cast<Sums*>(slots + 2 * tile.steps * cells);
  auto* inbox = left + tile.threads;  // blocks x channels
  auto* results = reinterpret_cast<Channel*>(inbox + tile.blocks * tile.group);
  auto* prepared = reinterpret_cast<Prepared*>(results + tile.group);

  const bool alone = tile.blocks == 1;
  const int rank = alone ? 0 : static_cast<int>(cluster_rank());
  const int64_t c = static_cast<int64_t>(blockIdx.x / tile.blocks) * tile.group;
  const int channels = static_cast<int>(min(int64_t{tile.group}, problem.channels - c));
  // Before the data, behind which it would have to queue.
  Given given = {};
  if (threadIdx.x < channels) given = load_given(problem, buffers, c + threadIdx.x);
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
  const Span span = span_of<T>(unit, tile, problem.length, channels);
  const int first_run = line * tile.blocks + rank, stride = tile.blocks * tile.lines;
  const int steps = line < tile.lines && first_run < tile.runs
                        ? (tile.runs - first_run + stride - 1) / stride
                        : 0;
  const PieceCount start = {first_run % tile.pieces, paces.pieces, tile.pieces};
  const bool whole = span.count == kUnit<T>;
  uint4* x_slots = slots + threadIdx.x;
  uint4* dy_slots = x_slots + tile.steps * cells;
  Way<const char> x(static_cast<const T*>(buffers.x), problem.x, paces.x, tile, c, span, first_run);
  Way<const char> dy(static_cast<const T*>(buffers.dy), problem.dy, paces.dy, tile, c, span,
                     first_run);
  PieceCount pieces = start;
  if (whole && aligned.x && aligned.dy) {
    SharedAddress slot = shared_address(x_slots);
    const uint32_t dy_distance = tile.steps * cells * 16;
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
      copy_async(slot, x.at);
      copy_async(slot + dy_distance, dy.at);
      slot += cells * 16;
      const bool wraps = pieces.advance();
      x.advance(wraps);
      dy.advance(wraps);
    }
  } else {
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
      const int count = pieces.is_last() ? span.count : kUnit<T>;
      load_elements(reinterpret_cast<T*>(x_slots + k * cells), reinterpret_cast<const T*>(x.at),
                    problem.x, span, count);
      load_elements(reinterpret_cast<T*>(dy_slots + k * cells), reinterpret_cast<const T*>(dy.at),
                    problem.dy, span, count);
      const bool wraps = pieces.advance();
      x.advance(wraps);
      dy.advance(wraps);
    }
  }
  for (int i = threadIdx.x; i < channels; i += tile.threads) {
    prepared[i] =
        prepare_channel(problem, i < tile.threads ? given : load_given(problem, buffers, c + i));
  }
  __syncthreads();

  const bool straddling = tile.group > 1 && problem.length % kUnit<T> != 0;
  Sums sums[2];
  if (steps > 0) {
    const int next = min(span.first + 1, channels - 1);
    const Centring first = prepared[span.first].centring, second = prepared[next].centring;
    wait_for_copies();
#pragma unroll 1
    for (int k = 0; k < steps;) {
      UnitSums<T> some;
      const int end = min(steps, k + UnitSums<T>::kMostAdded);
#pragma unroll 1
      for (; k < end; ++k) {
        some.add(x_slots[k * cells], dy_slots[k * cells],
                 [&](int i) { return i < span.split ? first : second; });
      }
      if (straddling) {
        sums[0].add(some.total(span.split, true));
        sums[1].add(some.total(span.split, false));
      } else {
        sums[0].add(some.total());
      }
    }
  }
  left[threadIdx.x] = sums[0];
  __syncthreads();
  if (straddling) {
    // The channel behind the border is the one that the next unit starts in.
    if (steps > 0 && span.split < span.count) left[threadIdx.x + 1].add(sums[1]);
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
      results[i] = finish_channel(problem, buffers, c + i, prepared[i], total, tile.inverse_count,
                                  rank == 0);
      wide = wide || results[i].wide;
    }
  }
  wide = __syncthreads_or(wide);

  if (steps > 0) {
    const DxScalars first = results[span.first].scalars;
    const DxScalars second = results[min(span.first + 1, channels - 1)].scalars;
    Way<char> dx(static_cast<T*>(buffers.dx), problem.dx, paces.dx, tile, c, span, first_run);
    pieces = start;
    const bool direct = whole && aligned.dx && !wide;
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
      float x_values[kUnit<T>], dy_values[kUnit<T>], values[kUnit<T>];
      unpack<T>(problem.frozen ? uint4{} : x_slots[k * cells], x_values);
      unpack<T>(dy_slots[k * cells], dy_values);
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i) values[i] = first.dx(x_values[i], dy_values[i]);
      if (span.split < kUnit<T>) {
#pragma unroll
        for (int i = 0; i < kUnit<T>; ++i) {
          if (i >= span.split) values[i] = second.dx(x_values[i], dy_values[i]);
        }
      }
      if (direct) {
        *reinterpret_cast<uint4*>(dx.at) = pack<T>(values);
      } else {
        x_slots[k * cells] = pack<T>(values);
        store_elements(reinterpret_cast<T*>(dx.at), reinterpret_cast<const T*>(x_slots + k * cells),
                       results, problem.dx, span, pieces.is_last() ? span.count : kUnit<T>);
      }
      dx.advance(pieces.advance());
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
  launch.shared = shared_bytes(tile);
  launch.cluster = static_cast<unsigned>(tile.blocks);
  return with_type(problem.dtype, [&](auto type) {
    return launch_kernel(&cluster_kernel<decltype(type)>, launch, stream, problem, buffers, tile,
                         paces_of(problem, tile), alignment_of(problem, buffers, tile));
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
