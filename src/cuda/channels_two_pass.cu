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
constexpr int kColumns =
    4;  // of a row that a thread keeps: with 8, scalars and sums fill the registers
constexpr int kBatch = 4;  // units or quads that a thread loads before it uses the first

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

// Four elements of a row.
template <class T>
using Quad = std::conditional_t<sizeof(T) == 2, uint2, uint4>;

template <class T>
__device__ Quad<T> load_quad(const T* from, int count, bool aligned) {
  if (aligned && count == kColumns) return *reinterpret_cast<const Quad<T>*>(from);
  T values[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) values[i] = i < count ? from[i] : T(0.0f);
  return reinterpret_cast<const Quad<T>&>(values);
}
template <class T>
__device__ void unpack_quad(const Quad<T>& quad, float (&values)[kColumns]) {
  const T* elements = reinterpret_cast<const T*>(&quad);
#pragma unroll
  for (int i = 0; i < kColumns; ++i) values[i] = widen(elements[i]);
}
template <class T>
__device__ void store_quad(T* to, const float (&values)[kColumns], int count, bool aligned) {
  T elements[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) elements[i] = narrow<T>(values[i]);
  if (aligned && count == kColumns) {
    *reinterpret_cast<Quad<T>*>(to) = reinterpret_cast<const Quad<T>&>(elements);
    return;
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    if (i < count) to[i] = elements[i];
  }
}

// A thread's step from row to row in a tensor, in bytes, and what is added where it leads into a
// further sample.
struct Pace {
  int64_t step, wrap;
};
template <class Byte>
struct Row {
  Byte* at;

  template <class Data>
  __device__ Row(Data* data, const ChannelsProblem::Strides& strides, int64_t c, int64_t sample,
                 int64_t position)
      : at(reinterpret_cast<Byte*>(data + c + sample * strides.sample +
                                   position * strides.position)) {}
  __device__ void advance(const Pace& pace, bool wraps) {
    at += pace.step;
    if (wraps) at += pace.wrap;
  }
};

// How a problem is cut up. `last`: rows of channels, otherwise planes.
struct Cut {
  bool last;
  int64_t inner;  // planes: units of a sample's run; rows: positions of a sample
  int64_t items;  // planes: units of a channel; rows: their number
  int64_t parts;  // of the items, a block each
  int64_t part;   // items of a part
  int width;      // rows: quads of a row that a block has side by side
  int64_t tiles;  // planes: channels; rows: blocks side by side
  Pace x, dy, dx;
  int64_t positions;  // rows: that a step adds, beside whole samples
};

Cut cut_of(const ChannelsProblem& problem) {
  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  Cut cut = {};
  cut.last = walks_channels(problem);
  int64_t wanted, least;  // parts; items of one
  if (cut.last) {
    const int64_t quads = ceil(problem.channels, kColumns);
    cut.width = 1;
    while (cut.width < 64 && cut.width < quads) cut.width *= 2;
    cut.inner = problem.length;
    cut.items = problem.samples * problem.length;
    cut.tiles = ceil(quads, cut.width);
    wanted = ceil(512, cut.tiles);
    const int64_t lines = kThreads / cut.width;
    least = lines * 8;
    const int64_t length = std::max<int64_t>(1, problem.length);
    const int64_t samples = lines / length;
    cut.positions = lines % length;
    const auto pace = [&](const ChannelsProblem::Strides& strides) -> Pace {
      const int64_t size = 16 / unit;
      return {(samples * strides.sample + cut.positions * strides.position) * size,
              (strides.sample - length * strides.position) * size};
    };
    cut.x = pace(problem.x);
    cut.dy = pace(problem.dy);
    cut.dx = pace(problem.dx);
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

// Whether every unit or quad that the kernels see starts at a multiple of its size.
struct Aligned {
  bool x, dy, dx;
};
Aligned alignment_of(const ChannelsProblem& problem, const Buffers& buffers) {
  const bool last = walks_channels(problem);
  const auto aligned = [&](const void* data, const ChannelsProblem::Strides& strides) {
    const int64_t size = static_cast<int64_t>(size_of(problem.dtype));
    const int64_t other = last ? strides.position : strides.channel;
    const int64_t extent = last ? problem.length : problem.channels;
    const int64_t unit = last ? kColumns * size : 16;
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)) % unit == 0 &&
           (problem.samples == 1 || strides.sample * size % unit == 0) &&
           (extent == 1 || other * size % unit == 0);
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

// The rows of a part that a line of threads has.
__device__ int rows_of(const Cut& cut, int64_t part, int line, int lines) {
  const int64_t rows = min(cut.part, cut.items - part * cut.part);
  return static_cast<int>((rows - line + lines - 1) / lines);
}

// Rows of channels: block (part, tile of columns); a thread keeps its columns.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    column_sums_kernel(const __grid_constant__ ChannelsProblem problem,
                       const __grid_constant__ Buffers buffers, const __grid_constant__ Cut cut,
                       Aligned aligned, Sums* partial) {
  __shared__ Sums scratch[kThreads];
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
  const int64_t row = part * cut.part + line;
  const int64_t sample = row / cut.inner;
  int64_t position = row - sample * cut.inner;
  Row<const char> x(static_cast<const T*>(buffers.x), problem.x, c, sample, position);
  Row<const char> dy(static_cast<const T*>(buffers.dy), problem.dy, c, sample, position);
  const int rows = columns > 0 ? rows_of(cut, part, line, lines) : 0;
  for (int first = 0; first < rows; first += 8) {
    float dy_sums[kColumns] = {}, dy_t_sums[kColumns] = {};
#pragma unroll 1
    for (int group = first; group < first + 8; group += kBatch) {
      Quad<T> x_quads[kBatch], dy_quads[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        // A row that is not there has dy = 0, and x = 0, which is as good as any.
        const int count = group + i < rows ? columns : 0;
        x_quads[i] = load_quad(reinterpret_cast<const T*>(x.at), count, aligned.x);
        dy_quads[i] = load_quad(reinterpret_cast<const T*>(dy.at), count, aligned.dy);
        position += cut.positions;
        const bool wraps = position >= cut.inner;
        if (wraps) position -= cut.inner;
        x.advance(cut.x, wraps);
        dy.advance(cut.dy, wraps);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        float x_values[kColumns], dy_values[kColumns];
        unpack_quad<T>(x_quads[i], x_values);
        unpack_quad<T>(dy_quads[i], dy_values);
#pragma unroll
        for (int k = 0; k < kColumns; ++k) {
          dy_sums[k] += dy_values[k];
          dy_t_sums[k] = fmaf(dy_values[k], centring[k](x_values[k]), dy_t_sums[k]);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kColumns; ++k) sums[k].add({dy_sums[k], dy_t_sums[k]});
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
  const int64_t block = gridDim.x - 1 - blockIdx.x;
  const int64_t part = block / cut.tiles, tile = block - part * cut.tiles;
  const int lane = threadIdx.x % cut.width, line = threadIdx.x / cut.width;
  const int lines = kThreads / cut.width;
  const int64_t c = (tile * cut.width + lane) * kColumns;
  const int columns = static_cast<int>(max(0L, min(int64_t{kColumns}, problem.channels - c)));
  if (columns == 0) return;
  const int64_t row = part * cut.part + line;
  const int64_t sample = row / cut.inner;
  int64_t position = row - sample * cut.inner;
  Row<const char> x(static_cast<const T*>(buffers.x), problem.x, c, sample, position);
  Row<const char> dy(static_cast<const T*>(buffers.dy), problem.dy, c, sample, position);
  Row<char> dx(static_cast<T*>(buffers.dx), problem.dx, c, sample, position);
  const int rows = rows_of(cut, part, line, lines);
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
#pragma unroll 1
  for (int first = 0; first < rows; first += kBatch) {
    Quad<T> x_quads[kBatch], dy_quads[kBatch];
    bool wraps[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int count = first + i < rows ? columns : 0;
      x_quads[i] =
          load_quad(reinterpret_cast<const T*>(x.at), problem.frozen ? 0 : count, aligned.x);
      dy_quads[i] = load_quad(reinterpret_cast<const T*>(dy.at), count, aligned.dy);
      position += cut.positions;
      wraps[i] = position >= cut.inner;
      if (wraps[i]) position -= cut.inner;
      x.advance(cut.x, wraps[i]);
      dy.advance(cut.dy, wraps[i]);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float x_values[kColumns], dy_values[kColumns], values[kColumns];
      unpack_quad<T>(x_quads[i], x_values);
      unpack_quad<T>(dy_quads[i], dy_values);
#pragma unroll
      for (int k = 0; k < kColumns; ++k) values[k] = scalars[k].dx(x_values[k], dy_values[k]);
      if (wide) {
#pragma unroll
        for (int k = 0; k < kColumns; ++k) {
          if (k >= columns || !channels[c + k].wide) continue;
          values[k] = static_cast<float>(channels[c + k].wide_dx(x_values[k], dy_values[k]));
        }
      }
      if (first + i < rows) store_quad(reinterpret_cast<T*>(dx.at), values, columns, aligned.dx);
      dx.advance(cut.dx, wraps[i]);
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
