// BatchNorm backward along the channels, up to 8192 rows: a cluster of blocks takes 64 bytes of
// every row, keeps x and dy of them in shared memory between the sums and dx, and ends. Formulas as
// in channels_two_pass.cu; 3 elements moved per element, the least there is. 1024x512x1 bf16 takes
// 8.5 us on an H200, mostly fixed cost: a copy takes 4.3.
//
// A thread keeps one unit of 16 bytes of the rows, and so its channels, and has at most 8 rows of
// its block. Each block's sums go to all blocks of its cluster.
//
// Order of the sums: a thread's rows in float32; then float64: lines of threads, 8 at a time; a
// butterfly over those; the blocks. All of it follows from shape and dtype.
#include <algorithm>

#include "cuda/channel_sums.cuh"
#include "cuda/channel_walk.cuh"
#include "cuda/channels.hpp"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

namespace normgrad::cuda {
namespace {

constexpr int kWidth = 4;      // units of a row
constexpr int kThreads = 256;  // lines of kWidth
constexpr int kLines = kThreads / kWidth;
constexpr int kMostSteps = 8;          // rows of a thread
constexpr int kMostBlocks = 16;        // of a cluster
constexpr int64_t kEnoughBlocks = 64;  // beyond them larger clusters cost more than they bring

template <class T>
inline constexpr int kTile = kWidth* kUnit<T>;  // channels

struct Layout {
  int blocks;  // of a cluster
  int steps;   // rows of a thread, at most
  int64_t tiles, rows;
  Pace x, dy, dx;
  int positions;  // that a step adds, beside whole samples
  double inverse_count;
};

// As few blocks as have room for the rows and fill the GPU; blocks = 0: there is no room.
Layout layout_of(const ChannelsProblem& problem) {
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto size = static_cast<int64_t>(size_of(problem.dtype));
  Layout layout = {};
  layout.rows = problem.samples * problem.length;
  layout.tiles = ceil(problem.channels, kWidth * 16 / size);
  if (layout.rows == 0 || ceil(layout.rows, kLines * kMostSteps) > kMostBlocks) return layout;
  layout.blocks = 1;
  while (ceil(layout.rows, layout.blocks * kLines) > kMostSteps ||
         (layout.blocks < 8 && layout.blocks * layout.tiles < kEnoughBlocks &&
          layout.blocks * kLines < layout.rows)) {
    layout.blocks *= 2;
  }
  const int64_t stride = int64_t{layout.blocks} * kLines;
  layout.steps = static_cast<int>(ceil(layout.rows, stride));
  const int64_t samples = stride / problem.length;
  layout.positions = static_cast<int>(stride % problem.length);
  const auto pace = [&](const ChannelsProblem::Strides& strides) -> Pace {
    return {(samples * strides.sample + layout.positions * strides.position) * size,
            (strides.sample - problem.length * strides.position) * size};
  };
  layout.x = pace(problem.x);
  layout.dy = pace(problem.dy);
  layout.dx = pace(problem.dx);
  layout.inverse_count = 1 / static_cast<double>(layout.rows);
  return layout;
}

struct Aligned {
  bool x, dy, dx;
};
Aligned alignment_of(const ChannelsProblem& problem, const Buffers& buffers) {
  const auto size = static_cast<int64_t>(size_of(problem.dtype));
  const auto aligned = [&](const void* data, const ChannelsProblem::Strides& strides) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
           (problem.samples == 1 || strides.sample * size % 16 == 0) &&
           (problem.length == 1 || strides.position * size % 16 == 0);
  };
  return {aligned(buffers.x, problem.x), aligned(buffers.dy, problem.dy),
          aligned(buffers.dx, problem.dx)};
}

// What a block shares beside x and dy.
template <class T>
struct Board {
  Barrier arrived;
  float2 lines[kLines][kTile<T>];  // dy, dy * t
  Sums inbox[kMostBlocks][kTile<T>];
  Factors factors[kTile<T>];
  Finished channels[kTile<T>];
};

// The sums of a channel over the lines, by kThreads / kTile neighbouring threads.
template <class T>
__device__ Sums sum_lines(const Board<T>& board, int channel, int share) {
  constexpr int kShares = kThreads / kTile<T>;
  Sums sums;
#pragma unroll
  for (int line = 0; line < kLines / kShares; ++line) {
    const float2 some = board.lines[line * kShares + share][channel];
    sums.add({some.x, some.y});
  }
#pragma unroll
  for (int mask = kShares / 2; mask > 0; mask /= 2) {
    sums.dy += __shfl_xor_sync(~0u, sums.dy, mask);
    sums.dy_t += __shfl_xor_sync(~0u, sums.dy_t, mask);
  }
  return sums;
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    columns_kernel(const __grid_constant__ ChannelsProblem problem,
                   const __grid_constant__ Buffers buffers, const __grid_constant__ Layout layout,
                   Aligned aligned) {
#if NORMGRAD_HOPPER
  auto* slots = dynamic_shared<uint4>();
  auto& board = in_shared<Board<T>>();
  constexpr int kShares = kThreads / kTile<T>;
  const bool alone = layout.blocks == 1;
  const int rank = alone ? 0 : static_cast<int>(cluster_rank());
  const int64_t tile = static_cast<int64_t>(blockIdx.x / layout.blocks) * kTile<T>;
  const int channels = static_cast<int>(min(int64_t{kTile<T>}, problem.channels - tile));
  // The thread's channel, and its columns.
  const int channel = threadIdx.x / kShares, share = threadIdx.x % kShares;
  const int unit = threadIdx.x % kWidth, line = threadIdx.x / kWidth;
  const int columns = max(0, min(kUnit<T>, channels - unit * kUnit<T>));
  // (Not as columns == kUnit<T>: nvcc 13.0 makes that true where they are just as many.)
  const bool whole = (unit + 1) * kUnit<T> <= channels;
  GivenBits given;
  if (threadIdx.x < channels) given = GivenBits(problem, buffers, tile + threadIdx.x);
  if (!alone) {
    if (threadIdx.x == 0) {
      init_barrier(&board.arrived, 1);
      fence_barrier_init();
      expect_bytes(&board.arrived, layout.blocks * kTile<T> * sizeof(Sums));
      arrive(&board.arrived);
    }
    cluster_arrive();
  }

  // There are at most 8192 rows: 32 bits do, and 64-bit divisions take a microsecond.
  const int rows = static_cast<int>(layout.rows), length = static_cast<int>(problem.length);
  const int first = line * layout.blocks + rank, stride = layout.blocks * kLines;
  const int steps = columns > 0 && first < rows ? (rows - first + stride - 1) / stride : 0;
  const int64_t c = tile + unit * kUnit<T>;
  const int first_sample = first / length;
  int position = first - first_sample * length;
  const auto next_wraps = [&](int& at) {
    at += layout.positions;
    const bool wraps = at >= length;
    if (wraps) at -= length;
    return wraps;
  };
  uint4* x_slots = slots + threadIdx.x;
  uint4* dy_slots = x_slots + layout.steps * kThreads;
  {
    Row<const char> x(static_cast<const T*>(buffers.x), problem.x, c, first_sample, position);
    Row<const char> dy(static_cast<const T*>(buffers.dy), problem.dy, c, first_sample, position);
    int at = position;
    for (int k = 0; k < steps; ++k) {
      const auto load = [&](uint4* slot, const char* from, bool at_once) {
        if (at_once) {
          copy_async(shared_address(slot), from);
        } else {
          *slot = load_unit(reinterpret_cast<const T*>(from), columns, false);
        }
      };
      load(x_slots + k * kThreads, x.at, whole && aligned.x);
      load(dy_slots + k * kThreads, dy.at, whole && aligned.dy);
      const bool wraps = next_wraps(at);
      x.advance(layout.x, wraps);
      dy.advance(layout.dy, wraps);
    }
  }
  if (threadIdx.x < kTile<T>) {
    board.factors[threadIdx.x] = factors_of(problem, given.values(problem), layout.inverse_count);
  }
  __syncthreads();

  Centring centring[kUnit<T>];
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) {
    if (i < columns) centring[i] = board.factors[unit * kUnit<T> + i].centring;
  }
  UnitSums<T> sums;
  wait_for_copies();
#pragma unroll 1
  for (int k = 0; k < steps; ++k) {
    sums.add(x_slots[k * kThreads], dy_slots[k * kThreads], [&](int i) { return centring[i]; });
  }
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) {
    board.lines[line][unit * kUnit<T> + i] = {sums.dy[i], sums.dy_t[i]};
  }
  __syncthreads();
  Sums total = sum_lines(board, channel, share);
  if (!alone) {
    cluster_wait();
    for (int block = share; block < layout.blocks; block += kShares) {
      Sums* place = &board.inbox[rank][channel];
      const SharedAddress barrier = remote_address(&board.arrived, block);
      send(remote_address(&place->dy, block), total.dy, barrier);
      send(remote_address(&place->dy_t, block), total.dy_t, barrier);
    }
    wait(&board.arrived, 0);
    total = {};
    for (int block = 0; block < layout.blocks; ++block) total.add(board.inbox[block][channel]);
  }
  bool wide = false;
  if (share == 0 && channel < channels) {
    board.channels[channel] = finish_channel(problem, board.factors[channel], total);
    wide = board.channels[channel].wide;
  }
  wide = __syncthreads_or(wide);
  if (rank == 0 && share == 0 && channel < channels && !board.channels[channel].wide) {
    store_sums(problem, buffers, tile + channel, board.factors[channel], total);
  }

  DxScalars scalars[kUnit<T>];
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) {
    if (i < columns) scalars[i] = board.channels[unit * kUnit<T> + i].scalars;
  }
  Row<char> dx(static_cast<T*>(buffers.dx), problem.dx, c, first_sample, position);
#pragma unroll 1
  for (int k = 0; k < steps; ++k) {
    float x_values[kUnit<T>], dy_values[kUnit<T>], values[kUnit<T>];
    unpack<T>(problem.frozen ? uint4{} : x_slots[k * kThreads], x_values);
    unpack<T>(dy_slots[k * kThreads], dy_values);
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) values[i] = scalars[i].dx(x_values[i], dy_values[i]);
    if (whole && aligned.dx && !wide) {
      *reinterpret_cast<uint4*>(dx.at) = pack<T>(values);
    } else {
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i) {
        if (i >= columns || board.channels[unit * kUnit<T> + i].wide) continue;
        reinterpret_cast<T*>(dx.at)[i] = narrow<T>(values[i]);
      }
    }
    dx.advance(layout.dx, next_wraps(position));
  }
  if (!wide || rank != 0) return;
  const Crew crew = {static_cast<int>(threadIdx.x), kThreads, 0};
  for (int i = 0; i < channels; ++i) {
    if (board.channels[i].wide) wide_channel<T>(problem, buffers, tile + i, crew, board.inbox[0]);
  }
#endif
}

Status launch_columns(const ChannelsProblem& problem, const Buffers& buffers, void*, void* stream) {
  const Layout layout = layout_of(problem);
  Launch launch = {static_cast<unsigned>(layout.tiles * layout.blocks), kThreads};
  launch.shared = static_cast<size_t>(layout.steps) * kThreads * 2 * 16;
  launch.cluster = static_cast<unsigned>(layout.blocks);
  return with_type(problem.dtype, [&](auto type) {
    return launch_kernel(&columns_kernel<decltype(type)>, launch, stream, problem, buffers, layout,
                         alignment_of(problem, buffers));
  });
}

}  // namespace

Status choose_channels_columns(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel) {
  const Status fused = check_fused("channels_columns", problem);
  if (!fused.ok()) return fused;
  if (!walks_channels(problem) || layout_of(problem).blocks == 0) {
    return {Code::kUnsupportedDevice,
            "channels_columns: expected data contiguous along the channels, at most 8192 elements "
            "of each"};
  }
  kernel = {"channels_columns", 0, &launch_columns};
  return {};
}

}  // namespace normgrad::cuda
