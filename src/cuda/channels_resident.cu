// BatchNorm backward along the channels, more rows than channels_columns takes: every block has
// some of the rows, reads them for the sums, keeps in shared memory what fits of them and reads the
// others again for dx. Formulas as in channels_two_pass.cu.
//
// One block per multiprocessor, all at once (a cooperative launch). 23 MB stay on the chip, and the
// rows that were read last are read again first, from the L2: of the 67 MB of 65536x256x1 bf16 the
// profiler sees about 12 MB come from memory twice. On an H200, beside a copy of as many bytes:
// bf16 42 us (26), fp32 78 (49). Of the 42, about 12 are spent on writing dx and 5 on the travel of
// sums and scalars.
//
// A thread keeps one unit of 16 bytes of the rows, and so its channels. Blocks send their sums
// through the workspace, each of them finishes some of the channels, and all wait for the scalars.
// Places in the workspace hold what neither can be until they are there, so that data and flag come
// in one trip; they are set to that at the start, and a barrier over the grid is waited for where
// the first sums leave.
//
// Order of the sums: up to 16 rows of a thread in float32, its rows in float64; rounded to float32,
// four lines of threads in float64, a butterfly over those; the parts as in channel_exchange.cuh.
// All of it follows from shape and dtype.
#include <cooperative_groups.h>

#include <algorithm>
#include <utility>

#include "cuda/channel_exchange.cuh"
#include "cuda/channel_sums.cuh"
#include "cuda/channels.hpp"
#include "cuda/device.hpp"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

namespace normgrad::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kLeastWidth = 4, kMostWidth = 64;
constexpr int kBatch = 3;                 // rows that a thread loads before it uses the first
constexpr int kRound = 4;                 // channels of a thread whose sums meet at a time
constexpr int kAdded = 6;                 // rows in float32
constexpr int kStep = 2 * 16 * kThreads;  // bytes of a row of each thread
constexpr int kMostKept = 11;             // of those, in shared memory; 13 leave too little L1
constexpr int kBoard = kThreads * kRound * sizeof(float2);  // bytes

struct Layout {
  int width;  // units of a row that a block has
  int lines;  // rows of a block at a time: kThreads / width
  int parts;  // of the rows, a block each
  int tiles;  // of the columns
  int rows, length;
  int kept;     // rows of a thread in shared memory, at most
  int between;  // of them, to each batch of others
  double inverse_count;
};
// parts = 0: too many columns or rows.
Layout layout_of(const ChannelsProblem& problem) {
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t units = ceil(problem.channels, 16 / static_cast<int64_t>(size_of(problem.dtype)));
  const int64_t rows = problem.samples * problem.length;
  Layout layout = {};
  layout.width = kLeastWidth;
  while (layout.width < kMostWidth && layout.width < units) layout.width *= 2;
  const int64_t tiles = ceil(units, layout.width);
  if (tiles > kMostParts || rows >= int64_t{1} << 31) return layout;
  layout.lines = kThreads / layout.width;
  layout.parts =
      static_cast<int>(std::clamp<int64_t>(ceil(rows, layout.lines), 1, kMostParts / tiles));
  layout.tiles = static_cast<int>(tiles);
  layout.rows = static_cast<int>(rows);
  layout.length = static_cast<int>(problem.length);
  const int64_t steps = ceil(rows, int64_t{layout.parts} * layout.lines);
  layout.kept = static_cast<int>(std::min<int64_t>(kMostKept, steps));
  const int64_t batches = std::max<int64_t>(1, ceil(steps - layout.kept, kBatch));
  layout.between = static_cast<int>(std::min<int64_t>(kBatch, ceil(layout.kept, batches)));
  layout.inverse_count = 1 / static_cast<double>(rows);
  return layout;
}

// A tensor's rows: evenly apart, or not where samples are.
struct Rows {
  int64_t sample, position;  // bytes
  bool even, aligned;

  __device__ int64_t at(int row, int length) const {
    if (even) return row * position;
    return row / length * sample + row % length * position;
  }
};
struct Tensors {
  Rows x, dy, dx;
};
Tensors tensors_of(const ChannelsProblem& problem, const Buffers& buffers) {
  const auto size = static_cast<int64_t>(size_of(problem.dtype));
  const auto rows = [&](const void* data, const ChannelsProblem::Strides& strides) -> Rows {
    const int64_t sample = strides.sample * size;
    const int64_t position = problem.length == 1 ? sample : strides.position * size;
    const bool even = problem.samples == 1 || sample == problem.length * position;
    return {sample, position, even,
            reinterpret_cast<uintptr_t>(data) % 16 == 0 && position % 16 == 0 &&
                (even || sample % 16 == 0)};
  };
  return {rows(buffers.x, problem.x), rows(buffers.dy, problem.dy), rows(buffers.dx, problem.dx)};
}

// What a column's dx is made of beside its centring, as it travels and as blocks keep it.
struct Column {
  float c1, c2, gain;
  int wide;
};
__device__ void send_column(Words* to, const Column& column) {
  const auto join = [](int low, int high) {
    return static_cast<unsigned long long>(static_cast<unsigned>(high)) << 32 |
           static_cast<unsigned>(low);
  };
  store_relaxed(to, {join(__float_as_int(column.c1), __float_as_int(column.c2)),
                     join(__float_as_int(column.gain), column.wide)});
}
__device__ Column receive_column(const Words* from) {
  Words words;
  do {
    words = load_relaxed(from);
  } while (words.second == kNothing);  // where `wide` would be -1
  const auto low = [](unsigned long long word) {
    return __int_as_float(static_cast<int>(word & 0xFFFFFFFF));
  };
  return {low(words.first), low(words.first >> 32), low(words.second),
          static_cast<int>(words.second >> 32)};
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    resident_kernel(const __grid_constant__ ChannelsProblem problem,
                    const __grid_constant__ Buffers buffers, const __grid_constant__ Layout layout,
                    const __grid_constant__ Tensors tensors, Sums* exchange, Words* results) {
#if NORMGRAD_HOPPER
  auto* slots = dynamic_shared<uint4>();
  auto* board = reinterpret_cast<float2*>(slots + layout.kept * (kStep / 16));
  auto* columns = reinterpret_cast<Column*>(board);  // after the sums
  const int part = blockIdx.x / layout.tiles;
  const int64_t tile = static_cast<int64_t>(blockIdx.x % layout.tiles) * layout.width * kUnit<T>;
  const int channels =
      static_cast<int>(min(int64_t{layout.width} * kUnit<T>, problem.channels - tile));
  const int line = threadIdx.x / layout.width, unit = threadIdx.x % layout.width;
  const int64_t c = tile + unit * kUnit<T>;
  const int left = channels - unit * kUnit<T>;  // columns from the thread's first
  const int stride = layout.parts * layout.lines, first = part * layout.lines + line;
  const int steps =
      left > 0 && first < layout.rows ? (layout.rows - first + stride - 1) / stride : 0;
  const int kept = min(steps, layout.kept);

  // Arrives before the loads, behind which it would have to queue.
  auto& token = in_shared<cooperative_groups::grid_group::arrival_token>();
  const double nothing = __longlong_as_double(static_cast<long long>(kNothing));
  for (int i = threadIdx.x; i < channels; i += kThreads) {
    exchange[(tile + i) * layout.parts + part] = {nothing, nothing};
    if (i % layout.parts == part) results[tile + i] = {kNothing, kNothing};
  }
  const auto arrival = cooperative_groups::this_grid().barrier_arrive();
  if (threadIdx.x == 0) token = arrival;

  Centring centring[kUnit<T>];
  {
    // Asked for before the data, behind which it would have to queue.
    GivenBits given[kUnit<T>];
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) {
      if (i < left) given[i] = GivenBits(problem, buffers, c + i);
    }
    const bool whole = left >= kUnit<T> && tensors.x.aligned && tensors.dy.aligned;
#pragma unroll 1
    for (int k = 0; k < kept; ++k) {
      const int row = first + k * stride;
      uint4* slot = slots + k * (kStep / 16) + threadIdx.x;
      const char* x = reinterpret_cast<const char*>(static_cast<const T*>(buffers.x) + c) +
                      tensors.x.at(row, layout.length);
      const char* dy = reinterpret_cast<const char*>(static_cast<const T*>(buffers.dy) + c) +
                       tensors.dy.at(row, layout.length);
      if (whole) {
        copy_async(shared_address(slot), x);
        copy_async(shared_address(slot + kThreads), dy);
      } else {
        slot[0] = load_unit(reinterpret_cast<const T*>(x), left, false);
        slot[kThreads] = load_unit(reinterpret_cast<const T*>(dy), left, false);
      }
    }
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) {
      centring[i] = centring_of(problem, given[i].values(problem));
    }
  }
  const auto* x = reinterpret_cast<const char*>(static_cast<const T*>(buffers.x) + c);
  const auto* dy = reinterpret_cast<const char*>(static_cast<const T*>(buffers.dy) + c);
  const bool plain = left >= kUnit<T> && tensors.x.aligned && tensors.dy.aligned;
  // A batch of rows from k on, upwards or downwards; those that are not there read as 0. Downwards
  // they are read for the last time and leave the cache first: 45 us became 42.
  uint4 x_units[kBatch], dy_units[kBatch];
  const auto load_batch = [&](int k, int step) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = k + i * step, row = first + at * stride;
      x_units[i] = dy_units[i] = {};
      if (at < kept || at >= steps) continue;
      const auto* x_at = reinterpret_cast<const uint4*>(x + tensors.x.at(row, layout.length));
      const auto* dy_at = reinterpret_cast<const uint4*>(dy + tensors.dy.at(row, layout.length));
      x_units[i] = step < 0 ? load_last(x_at) : *x_at;
      dy_units[i] = step < 0 ? load_last(dy_at) : *dy_at;
    }
  };
  // The same of one row, wherever it lies; slow.
  const auto load_row = [&](int k, uint4& x_unit, uint4& dy_unit) {
    const int row = first + k * stride, count = k < steps ? left : 0;
    x_unit =
        load_unit(reinterpret_cast<const T*>(x + tensors.x.at(row, layout.length)), count, false);
    dy_unit =
        load_unit(reinterpret_cast<const T*>(dy + tensors.dy.at(row, layout.length)), count, false);
  };
  const uint4* slot = slots + threadIdx.x;
  Sums sums[kUnit<T>];
  const auto add_some = [&](const UnitSums<T>& some) {
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) sums[i].add({some.dy[i], some.dy_t[i]});
  };
  const auto centring_of = [&](int i) { return centring[i]; };
  // Rows that are kept fill the time in which others are on their way.
  int from_slots = 0;
  const auto add_kept = [&](int most, UnitSums<T>& some) {
    const int end = min(kept, from_slots + most);
#pragma unroll 1
    for (; from_slots < end; ++from_slots) {
      const uint4* at = slot + from_slots * (kStep / 16);
      some.add(at[0], at[kThreads], centring_of);
    }
  };
#pragma unroll 1
  for (int k = kept; k < steps; k += kAdded) {
    UnitSums<T> some;
#pragma unroll 1
    for (int batch = k; batch < k + kAdded; batch += kBatch) {
      if (plain) load_batch(batch, 1);
      wait_for_copies();
      add_kept(layout.between, some);
      if (plain) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) some.add(x_units[i], dy_units[i], centring_of);
      } else {
#pragma unroll 1
        for (int i = 0; i < kBatch; ++i) {
          uint4 x_unit, dy_unit;
          load_row(batch + i, x_unit, dy_unit);
          some.add(x_unit, dy_unit, centring_of);
        }
      }
    }
    add_some(some);
  }
  wait_for_copies();
#pragma unroll 1
  while (from_slots < kept) {
    UnitSums<T> some;
    add_kept(kAdded, some);
    add_some(some);
  }

  cooperative_groups::this_grid().barrier_wait(std::move(token));
  // Four channels of each thread at a time, which lie side by side on the board.
  const int across = layout.width * kRound, shares = kThreads / across;
  const int place = threadIdx.x / shares, share = threadIdx.x % shares;
#pragma unroll
  for (int round = 0; round < kUnit<T> / kRound; ++round) {
#pragma unroll
    for (int i = 0; i < kRound; ++i) {
      const Sums& sum = sums[round * kRound + i];
      board[line * across + unit * kRound + i] = {static_cast<float>(sum.dy),
                                                  static_cast<float>(sum.dy_t)};
    }
    __syncthreads();
    Sums total;
#pragma unroll
    for (int i = 0; i < kRound; ++i) {
      const float2 some = board[(share + i * shares) * across + place];
      total.add({some.x, some.y});
    }
    for (int mask = shares / 2; mask > 0; mask /= 2) {
      total.dy += __shfl_xor_sync(~0u, total.dy, mask);
      total.dy_t += __shfl_xor_sync(~0u, total.dy_t, mask);
    }
    const int channel = place / kRound * kUnit<T> + round * kRound + place % kRound;
    if (share == 0 && channel < channels) {
      send_sums(&exchange[(tile + channel) * layout.parts + part], total);
    }
    __syncthreads();
  }

  constexpr int kWarps = kThreads / 32;
  const int own = part + static_cast<int>(threadIdx.x) / 32 * layout.parts;
  for (int i = own; i < channels; i += kWarps * layout.parts) {
    const Factors factors =
        factors_of(problem, load_given(problem, buffers, tile + i), layout.inverse_count);
    const Sums total = receive_sums(exchange + (tile + i) * layout.parts, layout.parts);
    if (threadIdx.x % 32 != 0) continue;
    const auto [scalars, wide] = finish_channel(problem, factors, total);
    send_column(&results[tile + i], {scalars.c1, scalars.c2, scalars.gain, wide});
    if (!wide) store_sums(problem, buffers, tile + i, factors, total);
  }
  if (plain) load_batch(steps - 1, -1);
  bool any_wide = false;
  for (int i = threadIdx.x; i < channels; i += kThreads) {
    columns[i] = receive_column(&results[tile + i]);
    any_wide = any_wide || columns[i].wide;
  }
  any_wide = __syncthreads_or(any_wide);

  DxScalars scalars[kUnit<T>];
  bool whole = left >= kUnit<T> && tensors.dx.aligned;
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) {
    if (i >= left) continue;
    const Column column = columns[unit * kUnit<T> + i];
    scalars[i] = {centring[i], column.gain, column.c1, column.c2};
    whole = whole && !column.wide;
  }
  const auto dx_of = [&](const uint4& x_unit, const uint4& dy_unit, float(&values)[kUnit<T>]) {
    float x_values[kUnit<T>], dy_values[kUnit<T>];
    unpack<T>(problem.frozen ? uint4{} : x_unit, x_values);
    unpack<T>(dy_unit, dy_values);
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) values[i] = scalars[i].dx(x_values[i], dy_values[i]);
  };
  char* dx = reinterpret_cast<char*>(static_cast<T*>(buffers.dx) + c);
  if (plain && whole) {
    const auto write = [&](int k, const uint4& x_unit, const uint4& dy_unit) {
      float values[kUnit<T>];
      dx_of(x_unit, dy_unit, values);
      *reinterpret_cast<uint4*>(dx + tensors.dx.at(first + k * stride, layout.length)) =
          pack<T>(values);
    };
    from_slots = 0;
    const auto write_kept = [&](int most) {
      const int end = min(kept, from_slots + most);
#pragma unroll 1
      for (; from_slots < end; ++from_slots) {
        const uint4* at = slot + from_slots * (kStep / 16);
        write(from_slots, at[0], at[kThreads]);
      }
    };
#pragma unroll 1
    for (int k = steps - 1; k >= kept; k -= kBatch) {
      write_kept(layout.between);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (k - i >= kept) write(k - i, x_units[i], dy_units[i]);
      }
      load_batch(k - kBatch, -1);
    }
    write_kept(kept);
  } else {
#pragma unroll 1
    for (int k = 0; k < steps; ++k) {
      const uint4* at = slot + min(k, kept - 1) * (kStep / 16);
      uint4 x_unit = at[0], dy_unit = at[kThreads];
      if (k >= kept) load_row(k, x_unit, dy_unit);
      float values[kUnit<T>];
      dx_of(x_unit, dy_unit, values);
      T* to = reinterpret_cast<T*>(dx + tensors.dx.at(first + k * stride, layout.length));
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i) {
        if (i < left && !columns[unit * kUnit<T> + i].wide) to[i] = narrow<T>(values[i]);
      }
    }
  }
  if (!any_wide) return;
  auto& scratch = in_shared<Sums[kWarps]>();
  const Crew crew = {static_cast<int>(threadIdx.x), kThreads, 0};
  for (int i = part; i < channels; i += layout.parts) {
    if (columns[i].wide) wide_channel<T>(problem, buffers, tile + i, crew, scratch);
  }
#endif
}

Status launch_resident(const ChannelsProblem& problem, const Buffers& buffers, void* memory,
                       void* stream) {
  const Layout layout = layout_of(problem);
  Launch launch = {static_cast<unsigned>(layout.parts * layout.tiles), kThreads};
  launch.shared = static_cast<size_t>(layout.kept) * kStep + kBoard;
  launch.cooperative = true;
  auto* results = static_cast<Words*>(memory);
  auto* exchange = reinterpret_cast<Sums*>(results + problem.channels);
  return with_type(problem.dtype, [&](auto type) {
    return launch_kernel(&resident_kernel<decltype(type)>, launch, stream, problem, buffers, layout,
                         tensors_of(problem, buffers), exchange, results);
  });
}

}  // namespace

Status choose_channels_resident(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel) {
  const Status fused = check_fused("channels_resident", problem);
  if (!fused.ok()) return fused;
  const Layout layout = layout_of(problem);
  if (!walks_channels(problem) || layout.parts == 0) {
    return {Code::kUnsupportedDevice,
            "channels_resident: expected data contiguous along the channels, and not too many"};
  }
  if (multiprocessors() < kMostParts) {
    return {Code::kUnsupportedDevice, "channels_resident: expected a GPU of 128 multiprocessors"};
  }
  kernel = {"channels_resident",
            static_cast<size_t>(problem.channels) * (sizeof(Words) + layout.parts * sizeof(Sums)),
            &launch_resident};
  return {};
}

}  // namespace normgrad::cuda
