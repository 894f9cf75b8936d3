// BatchNorm backward along the length, channels of up to 1.6 MB of x and dy: a block or a cluster
// takes a channel or a few small ones, keeps x and dy of all samples in shared memory between the
// sums and dx, and ends. Formulas as in channels_two_pass.cu; 3 elements moved per element, the
// least there is. On an H200, beside a copy of as many bytes: 32x1024x196 bf16 18 us (12), fp32 26
// (20); 32x2048x49 bf16 13 (8); 32x256x3136, which teams have now, bf16 51 (37), fp32 90 (74).
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

struct Result {
  Finished channel;
  Sums sums;
};

size_t shared_bytes(const Tile& tile) {
  return tile.data_bytes() + tile.threads * sizeof(Sums) +
         tile.group * (sizeof(Result) + sizeof(Factors) + tile.blocks * sizeof(Sums));
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
  bool whole;        // all are, and more may follow

  // Of element i from the first.
  __device__ int64_t offset(const ChannelsProblem::Strides& strides, int i) const {
    return i < split ? i : strides.channel - start + i - split;
  }
};
template <class T>
__device__ Span span_of(int unit, const Tile& tile, int length, int channels) {
  const int begin = unit * kUnit<T>;
  const int first = tile.group == 1 ? 0 : begin * tile.inverse_length >> 24;
  const int start = begin - first * length;
  const int last = channels * length - (tile.pieces - 1) * tile.width * kUnit<T> - begin;
  return {first, start, min(length - start, kUnit<T>), max(0, min(last, kUnit<T>)),
          last >= kUnit<T>};
}

// A thread's run, and its way through those that follow: the piece of the sample.
struct Run {
  int sample, piece;

  __device__ bool is_last(const Tile& tile) const { return piece + 1 == tile.pieces; }
  // Whether it leads into a further sample, beside whole ones.
  __device__ bool advance(const Paces& paces, const Tile& tile) {
    piece += paces.pieces;
    const bool wraps = piece >= tile.pieces;
    if (wraps) piece -= tile.pieces;
    return wraps;
  }
};
// Its address in a tensor.
template <class Byte>
struct Way {
  Byte* at;

  template <class Data>
  __device__ Way(Data* data, const ChannelsProblem::Strides& strides, const Tile& tile, int64_t c,
                 const Span& span, const Run& run)
      : at(reinterpret_cast<Byte*>(data + c * strides.channel + span.first * strides.channel +
                                   span.start + run.sample * strides.sample) +
           run.piece * tile.width * 16) {}
  __device__ void advance(const Pace& pace, bool wraps) {
    at += wraps ? pace.step + pace.wrap : pace.step;
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
__device__ __noinline__ void store_elements(T* to, const T* slot, const Result* results,
                                            const ChannelsProblem::Strides& strides,
                                            const Span& span, int count) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if (results[i < span.split ? span.first : span.first + 1].channel.wide) continue;
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
  constexpr int kUnroll = std::is_same_v<T, F16> ? 1 : 2;
  auto* slots = dynamic_shared<uint4>();
  auto& arrived = in_shared<Barrier>();
  const int cells = tile.cells();
  auto* left = reinterpret_cast<Sums*>(slots + 2 * tile.steps * cells);
  auto* inbox = left + tile.threads;  // blocks x channels
  auto* results = reinterpret_cast<Result*>(inbox + tile.blocks * tile.group);
  auto* factors = reinterpret_cast<Factors*>(results + tile.group);

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

  const int line = threadIdx.x * tile.inverse_width >> 24;
  const int unit = threadIdx.x - line * tile.width;
  const Span span = span_of<T>(unit, tile, static_cast<int>(problem.length), channels);
  // There are several pieces only where there is one line, so that first_run is small.
  const int first_run = line * tile.blocks + rank, stride = tile.blocks * tile.lines;
  Run run = {first_run, 0};
  if (tile.pieces > 1) {
    run.sample = first_run * tile.inverse_pieces >> 24;
    run.piece = first_run - run.sample * tile.pieces;
  }
  const Run first = run;
  const int steps = line < tile.lines && first_run < tile.runs
                        ? (tile.runs - first_run + stride - 1) / stride
                        : 0;
  uint4* x_slots = slots + threadIdx.x;
  uint4* dy_slots = x_slots + tile.steps * cells;
  Way<const char> x(static_cast<const T*>(buffers.x), problem.x, tile, c, span, run);
  Way<const char> dy(static_cast<const T*>(buffers.dy), problem.dy, tile, c, span, run);
  if (span.whole && aligned.x && aligned.dy) {
    SharedAddress slot = shared_address(x_slots);
    const uint32_t dy_distance = tile.steps * cells * 16;
    const auto fetch = [&](bool wraps) {
      copy_async(slot, x.at);
      copy_async(slot + dy_distance, dy.at);
      slot += cells * 16;
      x.advance(paces.x, wraps);
      dy.advance(paces.dy, wraps);
    };
    if (paces.pieces == 0) {
#pragma unroll 4
      for (int k = 0; k < steps; ++k) fetch(false);
    } else {
#pragma unroll 1
      for (int k = 0; k < steps; ++k) fetch(run.advance(paces, tile));
    }
  } else {
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
      const int count = run.is_last(tile) ? span.count : kUnit<T>;
      load_elements(reinterpret_cast<T*>(x_slots + k * cells), reinterpret_cast<const T*>(x.at),
                    problem.x, span, count);
      load_elements(reinterpret_cast<T*>(dy_slots + k * cells), reinterpret_cast<const T*>(dy.at),
                    problem.dy, span, count);
      const bool wraps = run.advance(paces, tile);
      x.advance(paces.x, wraps);
      dy.advance(paces.dy, wraps);
    }
  }
  for (int i = threadIdx.x; i < channels; i += tile.threads) {
    factors[i] = factors_of(problem, i < tile.threads ? given : load_given(problem, buffers, c + i),
                            tile.inverse_count);
  }
  __syncthreads();

  const bool straddling = tile.group > 1 && problem.length % kUnit<T> != 0;
  Sums sums[2];
  if (steps > 0) {
    const Centring before = factors[span.first].centring;
    wait_for_copies();
    const auto add_up = [&](const auto& centring_of, const auto& add_some) {
#pragma unroll 1
      for (int k = 0; k < steps;) {
        UnitSums<T> some;
        const int end = min(steps, k + UnitSums<T>::kMostAdded);
#pragma unroll kUnroll
        for (; k < end; ++k) some.add(x_slots[k * cells], dy_slots[k * cells], centring_of);
        add_some(some);
      }
    };
    if (straddling) {
      const Centring behind = factors[min(span.first + 1, channels - 1)].centring;
      add_up([&](int i) { return i < span.split ? before : behind; },
             [&](const UnitSums<T>& some) {
               sums[0].add(some.total(span.split, true));
               sums[1].add(some.total(span.split, false));
             });
    } else {
      add_up([&](int) { return before; },
             [&](const UnitSums<T>& some) { sums[0].add(some.total()); });
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
      results[i] = {finish_channel(problem, factors[i], total), total};
      wide = wide || results[i].channel.wide;
    }
  }
  wide = __syncthreads_or(wide);

  if (steps > 0) {
    const DxScalars before = results[span.first].channel.scalars;
    const DxScalars behind = results[min(span.first + 1, channels - 1)].channel.scalars;
    Way<char> dx(static_cast<T*>(buffers.dx), problem.dx, tile, c, span, first);
    const auto dx_of = [&](const uint4& x_unit, const uint4& dy_unit) {
      float x_values[kUnit<T>], dy_values[kUnit<T>], values[kUnit<T>];
      unpack<T>(x_unit, x_values);
      unpack<T>(dy_unit, dy_values);
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i) values[i] = before.dx(x_values[i], dy_values[i]);
      if (span.split < kUnit<T>) {
#pragma unroll
        for (int i = 0; i < kUnit<T>; ++i) {
          if (i >= span.split) values[i] = behind.dx(x_values[i], dy_values[i]);
        }
      }
      return pack<T>(values);
    };
    const bool direct = span.whole && aligned.dx && !wide && !problem.frozen;
    if (direct && paces.pieces == 0) {
#pragma unroll kUnroll
      for (int k = 0; k < steps; ++k) {
        *reinterpret_cast<uint4*>(dx.at) = dx_of(x_slots[k * cells], dy_slots[k * cells]);
        dx.advance(paces.dx, false);
      }
    } else {
      run = first;
#pragma unroll 1
      for (int k = 0; k < steps; ++k) {
        const uint4 unit =
            dx_of(problem.frozen ? uint4{} : x_slots[k * cells], dy_slots[k * cells]);
        if (direct) {
          *reinterpret_cast<uint4*>(dx.at) = unit;
        } else {
          x_slots[k * cells] = unit;
          store_elements(reinterpret_cast<T*>(dx.at),
                         reinterpret_cast<const T*>(x_slots + k * cells), results, problem.dx, span,
                         run.is_last(tile) ? span.count : kUnit<T>);
        }
        dx.advance(paces.dx, run.advance(paces, tile));
      }
    }
  }
  if (rank != 0) return;
  for (int i = threadIdx.x; i < channels; i += tile.threads) {
    const auto& [channel, sums] = results[i];
    if (!channel.wide) store_sums(problem, buffers, c + i, factors[i], sums);
  }
  if (!wide) return;
  const Crew crew = {static_cast<int>(threadIdx.x), tile.threads, 0};
  for (int i = 0; i < channels; ++i) {
    if (results[i].channel.wide) wide_channel<T>(problem, buffers, c + i, crew, left);
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
