// BatchNorm backward in two passes over memory, for every problem there is.
//
//   dx = gamma * r * (dy - c1 - x_hat * c2),  c1 = mean(dy), c2 = mean(dy * x_hat) over the channel
//   dgamma = sum of dy * x_hat, dbeta = sum of dy; with frozen statistics dx = gamma * r * dy
//
// Three kernels: partial sums (reads x and dy), one small one that makes each channel's scalars of
// them, and dx (reads x and dy again, writes dx; backwards, so that it meets what the first pass
// left in the L2). 5 elements moved where 3 are the least: 0.6 of copy speed at best.
//
// Order of the sums: 4 units of 16 bytes along the length (or 8 rows of a column) in float32; a
// thread's units, a block's threads and a channel's parts in float64. All of it follows from shape
// and dtype: what does not start at a multiple of 16 bytes is loaded element by element.
#include <algorithm>

#include "cuda/channel_sums.cuh"
#include "cuda/channels.hpp"
#include "cuda/launch.cuh"

namespace normgrad::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBatch = 4;  // units that a thread loads before it uses the first: along the length
constexpr int kRows = 2;   // and along the channels, where scalars take the registers

// Positions of a grid of outer x inner, taken with a fixed stride and no division.
struct Walk {
  int64_t outer, inner;
  int64_t step_outer, step_inner, extent;

  __device__ Walk(int64_t start, int64_t step, int64_t inner_extent)
      : outer(start / inner_extent),
        inner(start - outer * inner_extent),
        step_outer(step / inner_extent),
        step_inner(step - step_outer * inner_extent),
        extent(inner_extent) {}
  __device__ void advance() {
    outer += step_outer;
    inner += step_inner;
    if (inner >= extent) {
      inner -= extent;
      ++outer;
    }
  }
};

// How a problem is cut up. `last`: rows of channels, otherwise planes.
struct Cut {
  bool last;
  int64_t inner;  // planes: units of a sample's run; rows: positions of a sample
  int64_t items;  // planes: units of a channel; rows: their number
  int64_t parts;  // of the items, a block each
  int64_t part;   // items of a part
  int width;      // rows: units of a row that a block has side by side
  int64_t tiles;  // planes: channels; rows: blocks side by side
};

Cut cut_of(const ChannelsProblem& problem) {
  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  Cut cut = {};
  cut.last = walks_channels(problem);
  int64_t wanted, least;  // parts; items of one
  if (cut.last) {
    const int64_t units = ceil(problem.channels, unit);
    cut.width = 1;
    while (cut.width < 32 && cut.width < units) cut.width *= 2;
    cut.inner = problem.length;
    cut.items = problem.samples * problem.length;
    cut.tiles = ceil(units, cut.width);
    wanted = ceil(512, cut.tiles);
    least = kThreads / cut.width * 8;
  } else {
    cut.inner = ceil(problem.length, unit);
    cut.items = problem.samples * cut.inner;
    cut.tiles = problem.channels;
    wanted = ceil(2048, std::max<int64_t>(1, problem.channels));
    least = kThreads * kBatch / 2;
  }
  cut.part = std::max(least, ceil(cut.items, wanted));
  cut.parts = ceil(cut.items, cut.part);
  return cut;
}

struct Workspace {
  Channel* channels;
  Sums* sums;  // planes: channels x parts; rows: parts x channels
};
Workspace workspace_at(const ChannelsProblem& problem, void* memory) {
  auto* channels = static_cast<Channel*>(memory);
  return {channels, reinterpret_cast<Sums*>(channels + problem.channels)};
}

// Whether every unit that the kernels see starts at a multiple of 16 bytes.
struct Aligned {
  bool x, dy, dx;
};
Aligned alignment_of(const ChannelsProblem& problem, const Buffers& buffers) {
  const bool last = walks_channels(problem);
  const auto aligned = [&](const void* data, const ChannelsProblem::Strides& strides) {
    const int64_t size = static_cast<int64_t>(size_of(problem.dtype));
    const int64_t other = last ? strides.position : strides.channel;
    const int64_t extent = last ? problem.length : problem.channels;
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
           (problem.samples == 1 || strides.sample * size % 16 == 0) &&
           (extent == 1 || other * size % 16 == 0);
  };
  return {aligned(buffers.x, problem.x), aligned(buffers.dy, problem.dy),
          problem.has_dx && aligned(buffers.dx, problem.dx)};
}

// The elements of unit `inner` of a run.
template <class T>
__device__ int unit_count(int64_t inner, int64_t length) {
  const int64_t left = length - inner * kUnit<T>;
  return left < kUnit<T> ? static_cast<int>(left) : kUnit<T>;
}

// Planes: block (part, channel).
template <class T>
__global__ void __launch_bounds__(kThreads)
    plane_sums_kernel(const __grid_constant__ ChannelsProblem problem,
                      const __grid_constant__ Buffers buffers, const __grid_constant__ Cut cut,
                      Aligned aligned, Sums* partial) {
  __shared__ Sums scratch[kThreads / 32];
  const int64_t c = blockIdx.x / cut.parts, part = blockIdx.x - c * cut.parts;
  const T* x = static_cast<const T*>(buffers.x) + c * problem.x.channel;
  const T* dy = static_cast<const T*>(buffers.dy) + c * problem.dy.channel;
  const Centring centring = centring_of(problem, load_given(problem, buffers, c));
  const int64_t end = min((part + 1) * cut.part, cut.items);
  int64_t item = part * cut.part + threadIdx.x;
  Walk walk(item, kThreads, cut.inner);
  Sums sums;
  while (item < end) {
    uint4 x_units[kBatch], dy_units[kBatch];
    int counts[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      counts[i] = item < end ? unit_count<T>(walk.inner, problem.length) : 0;
      const int64_t position = walk.inner * kUnit<T>;
      x_units[i] = load_unit(x + walk.outer * problem.x.sample + position, counts[i], aligned.x);
      dy_units[i] =
          load_unit(dy + walk.outer * problem.dy.sample + position, counts[i], aligned.dy);
      item += kThreads;
      walk.advance();
    }
    UnitSums<T> batch;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      batch.add(x_units[i], dy_units[i], [&](int) { return centring; });
    }
    sums.add(batch.total());
  }
  const Crew crew = {static_cast<int>(threadIdx.x), kThreads, 0};
  sums = crew.sum(sums, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sums;
}

// Rows of channels: block (part, tile of columns); a thread keeps its columns.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    column_sums_kernel(const __grid_constant__ ChannelsProblem problem,
                       const __grid_constant__ Buffers buffers, const __grid_constant__ Cut cut,
                       Aligned aligned, Sums* partial) {
  __shared__ Sums scratch[kThreads];
  constexpr int kColumns = kUnit<T>;
  const int64_t part = blockIdx.x / cut.tiles, tile = blockIdx.x - part * cut.tiles;
  const int lane = threadIdx.x % cut.width, line = threadIdx.x / cut.width;
  const int lines = kThreads / cut.width;
  const int64_t c = (tile * cut.width + lane) * kColumns;
  const int columns = static_cast<int>(max(0L, min(int64_t{kColumns}, problem.channels - c)));
  Centring centring[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    if (i < columns) centring[i] = centring_of(problem, load_given(problem, buffers, c + i));
  }
  Sums sums[kColumns];
  const int64_t end = min((part + 1) * cut.part, cut.items);
  int64_t row = part * cut.part + line;
  Walk walk(row, lines, cut.inner);
  while (row < end && columns > 0) {
    UnitSums<T> batch;
#pragma unroll 1
    for (int group = 0; group < 8; group += kRows) {
      uint4 x_units[kRows], dy_units[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int count = row < end ? columns : 0;
        const T* x = static_cast<const T*>(buffers.x) + c + walk.outer * problem.x.sample +
                     walk.inner * problem.x.position;
        const T* dy = static_cast<const T*>(buffers.dy) + c + walk.outer * problem.dy.sample +
                      walk.inner * problem.dy.position;
        x_units[i] = load_unit(x, count, aligned.x);
        dy_units[i] = load_unit(dy, count, aligned.dy);
        row += lines;
        walk.advance();
      }
      // A row that is not there has dy = 0, and x = 0, which is as good as any.
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        batch.add(x_units[i], dy_units[i], [&](int k) { return centring[k]; });
      }
    }
#pragma unroll
    for (int k = 0; k < kColumns; ++k) sums[k].add({batch.dy[k], batch.dy_t[k]});
  }
#pragma unroll
  for (int k = 0; k < kColumns; ++k) {
    scratch[threadIdx.x] = sums[k];
    __syncthreads();
    if (line == 0 && k < columns) {
      Sums total = sums[k];
      for (int other = 1; other < lines; ++other) total.add(scratch[other * cut.width + lane]);
      partial[part * problem.channels + c + k] = total;
    }
    __syncthreads();
  }
}

// One block per channel: the parts in order, a thread each in turn, then the threads.
constexpr int kFinishThreads = 128;
template <class T>
__global__ void __launch_bounds__(kFinishThreads)
    finish_kernel(const __grid_constant__ ChannelsProblem problem,
                  const __grid_constant__ Buffers buffers, const __grid_constant__ Cut cut,
                  Workspace workspace) {
  __shared__ Sums scratch[kFinishThreads / 32];
  const Crew crew = {static_cast<int>(threadIdx.x), kFinishThreads, 0};
  const int64_t c = blockIdx.x;
  const double inverse = inverse_count(problem, buffers);
  const Prepared prepared = prepare_channel(problem, load_given(problem, buffers, c));
  const Normalizer& n = prepared.normalizer;
  Totals totals;
  bool safe = true;
  wait_for_previous_kernel();
  if (needs_sums(problem)) {
    Sums sums;
    for (int64_t part = threadIdx.x; part < cut.parts; part += kFinishThreads) {
      sums.add(workspace.sums[cut.last ? part * problem.channels + c : c * cut.parts + part]);
    }
    sums = crew.sum(sums, scratch);
    totals = totals_of(n, sums, prepared.centring);
    safe = are_safe(n, totals, inverse);
    if (!safe) totals = wide_totals<T>(problem, buffers, c, crew, scratch);
  } else if (problem.step == ChannelsStep::kElementwise) {
    totals = load_totals(problem, buffers, c, n);
    safe = !n.zero && are_safe(n, totals, inverse);
  }
  if (threadIdx.x != 0) return;
  store_totals(problem, buffers, c, totals);
  workspace.channels[c] = make_channel(problem, prepared, totals, inverse, safe);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    plane_dx_kernel(const __grid_constant__ ChannelsProblem problem,
                    const __grid_constant__ Buffers buffers, const __grid_constant__ Cut cut,
                    Aligned aligned, const Channel* channels) {
  const int64_t block = gridDim.x - 1 - blockIdx.x;
  const int64_t c = block / cut.parts, part = block - c * cut.parts;
  const T* x = static_cast<const T*>(buffers.x) + c * problem.x.channel;
  const T* dy = static_cast<const T*>(buffers.dy) + c * problem.dy.channel;
  T* dx = static_cast<T*>(buffers.dx) + c * problem.dx.channel;
  const int64_t end = min((part + 1) * cut.part, cut.items);
  int64_t item = part * cut.part + threadIdx.x;
  Walk walk(item, kThreads, cut.inner);
  wait_for_previous_kernel();
  const Channel channel = channels[c];
  while (item < end) {
    uint4 x_units[kBatch], dy_units[kBatch];
    int counts[kBatch];
    int64_t offsets[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      counts[i] = item < end ? unit_count<T>(walk.inner, problem.length) : 0;
      const int64_t position = walk.inner * kUnit<T>;
      offsets[i] = walk.outer * problem.dx.sample + position;
      x_units[i] = load_unit(x + walk.outer * problem.x.sample + position,
                             problem.frozen ? 0 : counts[i], aligned.x);
      dy_units[i] =
          load_unit(dy + walk.outer * problem.dy.sample + position, counts[i], aligned.dy);
      item += kThreads;
      walk.advance();
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float x_values[kUnit<T>], dy_values[kUnit<T>], values[kUnit<T>];
      unpack<T>(x_units[i], x_values);
      unpack<T>(dy_units[i], dy_values);
#pragma unroll
      for (int k = 0; k < kUnit<T>; ++k) {
        values[k] = channel.wide ? static_cast<float>(channel.wide_dx(x_values[k], dy_values[k]))
                                 : channel.scalars.dx(x_values[k], dy_values[k]);
      }
      if (counts[i] > 0) store_unit(dx + offsets[i], values, counts[i], aligned.dx);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    column_dx_kernel(const __grid_constant__ ChannelsProblem problem,
                     const __grid_constant__ Buffers buffers, const __grid_constant__ Cut cut,
                     Aligned aligned, const Channel* channels) {
  constexpr int kColumns = kUnit<T>;
  const int64_t block = gridDim.x - 1 - blockIdx.x;
  const int64_t part = block / cut.tiles, tile = block - part * cut.tiles;
  const int lane = threadIdx.x % cut.width, line = threadIdx.x / cut.width;
  const int lines = kThreads / cut.width;
  const int64_t c = (tile * cut.width + lane) * kColumns;
  const int columns = static_cast<int>(max(0L, min(int64_t{kColumns}, problem.channels - c)));
  if (columns == 0) return;
  const int64_t end = min((part + 1) * cut.part, cut.items);
  int64_t row = part * cut.part + line;
  Walk walk(row, lines, cut.inner);
  wait_for_previous_kernel();
  // The scalars stay in registers but for those of float64, which the compiler leaves in memory.
  bool wide = false;
  DxScalars scalars[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const Channel& channel = channels[min(c + i, problem.channels - 1)];
    wide = wide || channel.wide;
    scalars[i] = channel.scalars;
  }
  while (row < end) {
    uint4 x_units[kRows], dy_units[kRows];
    T* to[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int count = row < end ? columns : 0;
      const T* x = static_cast<const T*>(buffers.x) + c + walk.outer * problem.x.sample +
                   walk.inner * problem.x.position;
      const T* dy = static_cast<const T*>(buffers.dy) + c + walk.outer * problem.dy.sample +
                    walk.inner * problem.dy.position;
      to[i] = row < end ? static_cast<T*>(buffers.dx) + c + walk.outer * problem.dx.sample +
                              walk.inner * problem.dx.position
                        : nullptr;
      x_units[i] = load_unit(x, problem.frozen ? 0 : count, aligned.x);
      dy_units[i] = load_unit(dy, count, aligned.dy);
      row += lines;
      walk.advance();
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float x[kColumns], dy[kColumns], dx[kColumns];
      unpack<T>(x_units[i], x);
      unpack<T>(dy_units[i], dy);
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        dx[k] = scalars[k].dx(x[k], dy[k]);
        if (wide && k < columns && channels[c + k].wide) {
          dx[k] = static_cast<float>(channels[c + k].wide_dx(x[k], dy[k]));
        }
      }
      if (to[i] != nullptr) store_unit(to[i], dx, columns, aligned.dx);
    }
  }
}

template <class T>
Status run(const ChannelsProblem& problem, const Buffers& buffers, void* memory, void* stream) {
  const Cut cut = cut_of(problem);
  const Workspace workspace = workspace_at(problem, memory);
  const Aligned aligned = alignment_of(problem, buffers);
  const auto blocks = static_cast<unsigned>(cut.parts * cut.tiles);
  if (needs_sums(problem)) {
    const auto kernel = cut.last ? &column_sums_kernel<T> : &plane_sums_kernel<T>;
    const Status summed = launch_kernel(kernel, {blocks, kThreads}, stream, problem, buffers, cut,
                                        aligned, workspace.sums);
    if (!summed.ok()) return summed;
  }
  Launch finish = {static_cast<unsigned>(problem.channels), kFinishThreads};
  finish.dependent = needs_sums(problem);
  const Status finished =
      launch_kernel(&finish_kernel<T>, finish, stream, problem, buffers, cut, workspace);
  if (!finished.ok()) return finished;
  if (!problem.has_dx || blocks == 0) return {};
  Launch dx = {blocks, kThreads};
  dx.dependent = true;
  const auto kernel = cut.last ? &column_dx_kernel<T> : &plane_dx_kernel<T>;
  return launch_kernel(kernel, dx, stream, problem, buffers, cut, aligned, workspace.channels);
}

Status launch_two_pass(const ChannelsProblem& problem, const Buffers& buffers, void* memory,
                       void* stream) {
  return with_type(problem.dtype, [&](auto type) {
    return run<decltype(type)>(problem, buffers, memory, stream);
  });
}

}  // namespace

Status choose_channels_two_pass(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel) {
  const Cut cut = cut_of(problem);
  const int64_t sums = needs_sums(problem) ? problem.channels * cut.parts : 0;
  kernel = {"channels_two_pass",
            static_cast<size_t>(problem.channels) * sizeof(Channel) +
                static_cast<size_t>(sums) * sizeof(Sums),
            &launch_two_pass};
  return {};
}

}  // namespace normgrad::cuda
