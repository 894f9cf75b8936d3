// BatchNorm backward along the length, channels of up to 1.6 MB of x and dy: a block or a cluster
// takes a channel or a few small ones, keeps x and dy of all samples in shared memory between the
// sums and dx, and ends. Formulas as in channels_two_pass.cu; 3 elements moved per element, the
// least there is. On an H200, beside a copy of as many bytes: 32x1024x196 bf16 16.0 us (11.7), fp32
// 24.4 (19.9); 128x128x784 bf16 27.1 (20.0); 32x256x3136 bf16 46.0 (37.0).
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
#include "cuda/device.hpp"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

namespace normgrad::cuda {
namespace {

constexpr int kMostThreads = Tile::kMostThreads;
// Units of a run from which on whole lines are asked for: 32x1024x196 fp32 25.3 to 25.0 us, but
// 4096x64x16, in runs of 32 units, 24.3 to 25.6.
constexpr int kLongRun = 48;

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

// The first blocks of a multiprocessor begin one after the other, each about when the data of the
// one before it are there: at once, all would load, then all compute, while memory idles, then all
// store. 32x1024x196 bf16 17.1 to 16.7 us, fp32 25.0 to 24.0; 64x1024x196 bf16 31.8 to 28.1. Two
// blocks to a multiprocessor are too few for it: 32x2048x49 bf16 12.3 to 12.8.
struct Start {
  static constexpr unsigned kTurns = 4;  // blocks of a multiprocessor, a quarter of it each
  int at_once;                           // blocks
  int cycles;                            // until the next begin
};
Start start_of(const Tile& tile, unsigned blocks) {
  const int at_once = multiprocessors();
  const auto round = static_cast<unsigned>(at_once);
  const bool full =
      at_once > 0 && blocks > (Start::kTurns - 1) * round && tile.data_bytes() <= Tile::kQuarter;
  // So much comes to a multiprocessor if all load. Of clusters that begin in one round none writes
  // until the last of their blocks has loaded: 32x128x784 fp32 19.4 to 17.3.
  const bool once = tile.blocks > 1 && blocks <= Start::kTurns * round;
  const int bytes_per_cycle = once ? 32 : 16;
  return {at_once, full ? static_cast<int>(tile.data_bytes()) / bytes_per_cycle : 0};
}

// A thread's unit of a run: its elements up to `split` are of one channel, the others of the next.
struct Span {
  int first, start;  // channel in the group, position in it
  int split, count;  // count: elements that are there, in the last piece of a run
  bool whole;        // all or none of them are

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
          last >= kUnit<T> || last <= 0};
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
__device__ __noinline__ void load_elements(uint4* slot, const T* from,
                                           const ChannelsProblem::Strides& strides, Span span,
                                           int count) {
  T values[kUnit<T>];
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) {
    values[i] = i < count ? from[span.offset(strides, i)] : T(0.0f);
  }
  *slot = reinterpret_cast<const uint4&>(values);
}
template <class T>
__device__ __noinline__ void store_elements(T* to, const T* slot, const Result* results,
                                            const ChannelsProblem::Strides& strides, Span span,
                                            int count) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if (results[i < span.split ? span.first : span.first + 1].channel.wide) continue;
    to[span.offset(strides, i)] = slot[i];
  }
}

// What a block does for its group of channels. kMidway: where a unit reaches over the border of two
// channels, half of it belongs to each; then elements need no selections.
template <class T, bool kMidway>
class GroupWork {
 public:
  __device__ GroupWork(const ChannelsProblem& problem, const Buffers& buffers, const Tile& tile,
                       const Paces& paces, const Aligned& aligned)
      : problem_(problem),
        buffers_(buffers),
        tile_(tile),
        paces_(paces),
        aligned_(aligned),
        cells_(tile.cells()),
        x_slots_(dynamic_shared<uint4>() + threadIdx.x),
        dy_slots_(x_slots_ + tile.steps * cells_),
        left_(reinterpret_cast<Sums*>(dynamic_shared<uint4>() + 2 * tile.steps * cells_)),
        inbox_(left_ + tile.threads),
        results_(reinterpret_cast<Result*>(inbox_ + tile.blocks * tile.group)),
        factors_(reinterpret_cast<Factors*>(results_ + tile.group)),
        alone_(tile.blocks == 1),
        rank_(alone_ ? 0 : static_cast<int>(cluster_rank())),
        c_(static_cast<int64_t>(blockIdx.x / tile.blocks) * tile.group),
        channels_(static_cast<int>(min(int64_t{tile.group}, problem.channels - c_))) {
    const int line = threadIdx.x * tile.inverse_width >> 24;
    const int unit = threadIdx.x - line * tile.width;
    span_ = span_of<T>(unit, tile, static_cast<int>(problem.length), channels_);
    // There are several pieces only where there is one line, so that first_run is small.
    const int first_run = line * tile.blocks + rank_, stride = tile.blocks * tile.lines;
    first_ = {first_run, 0};
    if (tile.pieces > 1) {
      first_.sample = first_run * tile.inverse_pieces >> 24;
      first_.piece = first_run - first_.sample * tile.pieces;
    }
    if (line < tile.lines && first_run < tile.runs && !(paces.pieces == 0 && is_absent(first_))) {
      steps_ = (tile.runs - first_run + stride - 1) / stride;
    }
  }

  __device__ void run(const Start& start) const {
    // Before the data, behind which it would have to queue.
    GivenBits given;
    if (threadIdx.x < channels_) given = GivenBits(problem_, buffers_, c_ + threadIdx.x);
    if (!alone_) prepare_cluster();
    if (start.cycles > 0) wait_for_turn(start);
    fetch();
    for (int i = threadIdx.x; i < channels_; i += tile_.threads) {
      if (i >= tile_.threads) given = GivenBits(problem_, buffers_, c_ + i);
      factors_[i] = factors_of(problem_, given.values(problem_), tile_.inverse_count);
    }
    __syncthreads();
    add_up();
    const bool wide = exchange();
    if (steps_ > 0) write_dx(wide);
    if (rank_ == 0) write_sums(wide);
  }

 private:
  static constexpr int kHalf = kUnit<T> / 2;

  // Whether units reach over the border of two channels.
  __device__ bool straddles() const { return tile_.group > 1 && problem_.length % kUnit<T> != 0; }
  // Whether the unit is behind the end of the run.
  __device__ bool is_absent(const Run& run) const { return span_.count == 0 && run.is_last(tile_); }
  __device__ int next_channel() const { return min(span_.first + 1, channels_ - 1); }

  __device__ void prepare_cluster() const {
    if (threadIdx.x == 0) {
      Barrier& arrived = in_shared<Barrier>();
      init_barrier(&arrived, 1);
      fence_barrier_init();
      expect_bytes(&arrived, tile_.blocks * channels_ * sizeof(Sums));
      arrive(&arrived);
    }
    cluster_arrive();
  }

  __device__ void wait_for_turn(const Start& start) const {
    const uint32_t turn = blockIdx.x / start.at_once;
    if (turn < Start::kTurns) wait_cycles(turn * start.cycles);
  }

  // This thread's units; nobody else reads them.
  __device__ void fetch() const {
    Run run = first_;
    Way<const char> x(static_cast<const T*>(buffers_.x), problem_.x, tile_, c_, span_, run);
    Way<const char> dy(static_cast<const T*>(buffers_.dy), problem_.dy, tile_, c_, span_, run);
    if (span_.whole && aligned_.x && aligned_.dy) {
      SharedAddress slot = shared_address(x_slots_);
      const uint32_t dy_distance = tile_.steps * cells_ * 16;
      const auto fetch = [&](bool wraps, const auto& copy) {
        copy(slot, x.at);
        copy(slot + dy_distance, dy.at);
        slot += cells_ * 16;
        x.advance(paces_.x, wraps);
        dy.advance(paces_.dy, wraps);
      };
      if (paces_.pieces == 0 && tile_.width >= kLongRun) {
#pragma unroll 4
        for (int k = 0; k < steps_; ++k) fetch(false, copy_line_async);
      } else if (paces_.pieces == 0) {
#pragma unroll 4
        for (int k = 0; k < steps_; ++k) fetch(false, copy_async);
      } else {
#pragma unroll 1
        for (int k = 0; k < steps_; ++k) {
          if (is_absent(run)) {
            x_slots_[k * cells_] = dy_slots_[k * cells_] = {};
            fetch(run.advance(paces_, tile_), [](auto...) {});
          } else {
            fetch(run.advance(paces_, tile_), copy_async);
          }
        }
      }
    } else {
#pragma unroll 1
      for (int k = 0; k < steps_; ++k) {
        const int count = run.is_last(tile_) ? span_.count : kUnit<T>;
        load_elements(x_slots_ + k * cells_, reinterpret_cast<const T*>(x.at), problem_.x, span_,
                      count);
        load_elements(dy_slots_ + k * cells_, reinterpret_cast<const T*>(dy.at), problem_.dy, span_,
                      count);
        const bool wraps = run.advance(paces_, tile_);
        x.advance(paces_.x, wraps);
        dy.advance(paces_.dy, wraps);
      }
    }
  }

  // This thread's sums, to left_.
  __device__ void add_up() const {
    Sums sums[2];
    if (steps_ > 0) {
      wait_for_copies();
      const Centring before = factors_[span_.first].centring;
      const Centring behind = factors_[next_channel()].centring;
      const auto add_all = [&](const auto& centring_of, const auto& add_some) {
#pragma unroll 1
        for (int k = 0; k < steps_;) {
          UnitSums<T> some;
          const int end = min(steps_, k + UnitSums<T>::kMostAdded);
#pragma unroll 1  // with two at a time there are too few registers
          for (; k < end; ++k) some.add(x_slots_[k * cells_], dy_slots_[k * cells_], centring_of);
          add_some(some);
        }
      };
      if constexpr (kMidway) {
        const bool whole = tile_.group == 1 || span_.split == kUnit<T>;
        const Centring second = whole ? before : behind;
        add_all(
            [&](int i) { return i < kHalf ? before : second; },
            [&](const UnitSums<T>& some) {
              const auto [dy, dy_t] = some.halves();
              sums[0].add(whole ? Sums{dy[0] + dy[1], dy_t[0] + dy_t[1]} : Sums{dy[0], dy_t[0]});
              sums[1].add({dy[1], dy_t[1]});
            });
      } else {
        add_all([&](int i) { return i < span_.split ? before : behind; },
                [&](const UnitSums<T>& some) {
                  sums[0].add(some.total(span_.split, true));
                  sums[1].add(some.total(span_.split, false));
                });
      }
    }
    left_[threadIdx.x] = sums[0];
    __syncthreads();
    if (straddles()) {
      // The channel behind the border is the one that the next unit starts in.
      if (steps_ > 0 && span_.split < span_.count) left_[threadIdx.x + 1].add(sums[1]);
      __syncthreads();
    }
  }

  // A channel's share of what the threads left: of the units that start in it. For each of its
  // sharers.
  __device__ Sums channel_sum(int channel) const {
    int first = 0, units = tile_.width;
    uint32_t inverse = 0;
    if (tile_.group > 1) {
      const int length = static_cast<int>(problem_.length), begin = channel * length;
      first = (begin + kUnit<T> - 1) / kUnit<T>;
      units = (begin + length - 1) / kUnit<T> + 1 - first;
      inverse = (1 << 24) / units + 1;
    }
    Sums sums;
    for (int i = threadIdx.x % tile_.sharers; i < units * tile_.lines; i += tile_.sharers) {
      const int line = i * inverse >> 24;
      sums.add(left_[tile_.group == 1 ? i : line * tile_.width + first + i - line * units]);
    }
    return share_sum(sums);
  }
  __device__ Sums share_sum(Sums sums) const {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      if (mask >= tile_.sharers) continue;
      sums.dy += __shfl_xor_sync(~0u, sums.dy, mask);
      sums.dy_t += __shfl_xor_sync(~0u, sums.dy_t, mask);
    }
    return sums;
  }
  // body(channel, there) by the sharers of each channel; all lanes of a warp come.
  template <class Body>
  __device__ void for_channels(const Body& body) const {
    const int at_once = tile_.threads / tile_.sharers;
    for (int first = 0; first < channels_; first += at_once) {
      const int i = first + static_cast<int>(threadIdx.x) / tile_.sharers;
      body(min(i, channels_ - 1), i < channels_);
    }
  }

  // From left_ to results_; whether a channel of the group needs float64.
  __device__ bool exchange() const {
    const int lane = static_cast<int>(threadIdx.x) % tile_.sharers;
    if (!alone_) {
      Barrier& arrived = in_shared<Barrier>();
      cluster_wait();
      for_channels([&](int i, bool there) {
        const Sums total = channel_sum(i);
        if (!there || lane >= tile_.blocks) return;
        Sums* place = inbox_ + rank_ * channels_ + i;
        send(remote_address(&place->dy, lane), total.dy, remote_address(&arrived, lane));
        send(remote_address(&place->dy_t, lane), total.dy_t, remote_address(&arrived, lane));
      });
      wait(&arrived, 0);
    }
    bool wide = false;
    for_channels([&](int i, bool there) {
      const Sums total =
          alone_ ? channel_sum(i)
                 : share_sum(lane < tile_.blocks ? inbox_[lane * channels_ + i] : Sums{});
      if (!there || lane != 0) return;
      results_[i] = {finish_channel(problem_, factors_[i], total), total};
      wide = wide || results_[i].channel.wide;
    });
    return __syncthreads_or(wide);
  }

  __device__ void write_dx(bool wide) const {
    const DxScalars before = results_[span_.first].channel.scalars;
    const DxScalars behind = results_[next_channel()].channel.scalars;
    const DxScalars second = kMidway && span_.split == kUnit<T> ? before : behind;
    Run run = first_;
    Way<char> dx(static_cast<T*>(buffers_.dx), problem_.dx, tile_, c_, span_, run);
    const auto dx_of = [&](const uint4& x_unit, const uint4& dy_unit) {
      float x_values[kUnit<T>], dy_values[kUnit<T>], values[kUnit<T>];
      unpack<T>(x_unit, x_values);
      unpack<T>(dy_unit, dy_values);
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i) {
        const bool first = i < (kMidway ? kHalf : span_.split);
        values[i] = (first ? before : second).dx(x_values[i], dy_values[i]);
      }
      return pack<T>(values);
    };
    const bool direct = span_.whole && aligned_.dx && !wide && !problem_.frozen;
    if (direct && paces_.pieces == 0) {
#pragma unroll 1
      for (int k = 0; k < steps_; ++k) {
        *reinterpret_cast<uint4*>(dx.at) = dx_of(x_slots_[k * cells_], dy_slots_[k * cells_]);
        dx.advance(paces_.dx, false);
      }
      return;
    }
#pragma unroll 1
    for (int k = 0; k < steps_; ++k) {
      const uint4 unit =
          dx_of(problem_.frozen ? uint4{} : x_slots_[k * cells_], dy_slots_[k * cells_]);
      if (direct) {
        if (!is_absent(run)) *reinterpret_cast<uint4*>(dx.at) = unit;
      } else {
        x_slots_[k * cells_] = unit;
        store_elements(reinterpret_cast<T*>(dx.at),
                       reinterpret_cast<const T*>(x_slots_ + k * cells_), results_, problem_.dx,
                       span_, run.is_last(tile_) ? span_.count : kUnit<T>);
      }
      dx.advance(paces_.dx, run.advance(paces_, tile_));
    }
  }

  __device__ void write_sums(bool wide) const {
    for (int i = threadIdx.x; i < channels_; i += tile_.threads) {
      const auto& [channel, sums] = results_[i];
      if (!channel.wide) store_sums(problem_, buffers_, c_ + i, factors_[i], sums);
    }
    if (!wide) return;
    const Crew crew = {static_cast<int>(threadIdx.x), tile_.threads, 0};
    for (int i = 0; i < channels_; ++i) {
      if (results_[i].channel.wide) wide_channel<T>(problem_, buffers_, c_ + i, crew, left_);
    }
  }

  const ChannelsProblem& problem_;
  const Buffers& buffers_;
  const Tile& tile_;
  const Paces& paces_;
  const Aligned& aligned_;
  const int cells_;
  uint4 *const x_slots_, *const dy_slots_;  // of this thread
  Sums *const left_, *const inbox_;         // of the threads; blocks x channels
  Result* const results_;
  Factors* const factors_;
  const bool alone_;
  const int rank_;
  const int64_t c_;     // the group's first channel
  const int channels_;  // of the group
  Span span_;
  Run first_;
  int steps_ = 0;
};

template <class T, bool kMidway>
__global__ void __launch_bounds__(kMostThreads, 4)
    cluster_kernel(const __grid_constant__ ChannelsProblem problem,
                   const __grid_constant__ Buffers buffers, const __grid_constant__ Tile tile,
                   const __grid_constant__ Paces paces, const __grid_constant__ Aligned aligned,
                   const __grid_constant__ Start start) {
#if NORMGRAD_HOPPER
  GroupWork<T, kMidway>(problem, buffers, tile, paces, aligned).run(start);
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
    using T = decltype(type);
    const bool midway = tile.group == 1 || problem.length % (kUnit<T> / 2) == 0;
    return launch_kernel(midway ? &cluster_kernel<T, true> : &cluster_kernel<T, false>, launch,
                         stream, problem, buffers, tile, paces_of(problem, tile),
                         alignment_of(problem, buffers, tile), start_of(tile, launch.grid.x));
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
