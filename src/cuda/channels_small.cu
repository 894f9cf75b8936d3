// BatchNorm backward along the length, little data in few channels: all of x and dy is in the
// registers of one block per multiprocessor. Formulas as in channels_two_pass.cu; 3 elements moved
// per element, the least there is. On an H200, beside a copy of as many bytes: 16x3x50176 bf16
// 11.3 us (6.7), fp32 14.7 (9.7). A cooperative launch costs 1.35 of it, an empty kernel 2.7.
//
// All blocks run at once (a cooperative launch). Each has a part of a channel, and sends its sums
// to the others through the workspace. Every block empties its place there at the start; a barrier
// over the grid is waited for when the first sums leave.
//
// Order of the sums: 5 units of a thread, then the elements of a unit, in float32; then float64: a
// thread's other units, a warp's lanes, a block's warps, the channel's parts. All of it follows
// from shape and dtype.
#include <cooperative_groups.h>

#include <utility>

#include "cuda/channel_exchange.cuh"
#include "cuda/channel_sums.cuh"
#include "cuda/channel_walk.cuh"
#include "cuda/channels.hpp"
#include "cuda/device.hpp"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

namespace normgrad::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWorkers = kThreads - 32;  // threads of a block that have data
constexpr int kFew = 5;                  // units of a thread, in float32 together
constexpr int kMost = 2 * kFew;          // if need be; more would spill

// How a problem is cut up: a function of shape and dtype.
struct Cut {
  int parts;    // of a channel, a block each
  int units;    // of a sample's run
  int step;     // of them, that kWorkers units are beside whole samples
  int channel;  // units of a channel
  int part;     // units of a part
  double inverse_count;
};
// parts = 0: the data do not fit so.
Cut cut_of(const ChannelsProblem& problem) {
  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  if (problem.channels > kMostParts) return {};
  const int64_t units = ceil(problem.length, unit), parts = kMostParts / problem.channels;
  const int64_t most = parts * kWorkers * kMost;
  if (units > most || problem.samples * units > most) return {};
  const auto run = static_cast<int>(units), channel = static_cast<int>(problem.samples * units);
  return {static_cast<int>(parts),
          run,
          kWorkers % run,
          channel,
          static_cast<int>(ceil(channel, parts)),
          1 / static_cast<double>(problem.samples * problem.length)};
}

struct Tensor {
  Pace pace;     // of kWorkers units
  bool aligned;  // all units start at multiples of 16 bytes
};
struct Tensors {
  Tensor x, dy, dx;
};
Tensors tensors_of(const ChannelsProblem& problem, const Buffers& buffers, const Cut& cut) {
  const auto size = static_cast<int64_t>(size_of(problem.dtype));
  const auto tensor = [&](const void* data, const ChannelsProblem::Strides& strides) -> Tensor {
    const int64_t sample = strides.sample * size;
    return {{kWorkers / cut.units * sample + cut.step * 16, sample - int64_t{cut.units} * 16},
            reinterpret_cast<uintptr_t>(data) % 16 == 0 && sample % 16 == 0 &&
                strides.channel * size % 16 == 0};
  };
  return {tensor(buffers.x, problem.x), tensor(buffers.dy, problem.dy),
          tensor(buffers.dx, problem.dx)};
}

// The units of a block's part that are a thread's: every kWorkers-th. kWhole: all are whole and
// start at multiples of 16 bytes.
template <class T, int kUnits, bool kWhole>
struct Way {
  const ChannelsProblem& problem;
  const Cut& cut;
  int unit, end;       // of the channel
  int sample, in_run;  // where the first one is

  __device__ Way(const ChannelsProblem& problem, const Cut& cut) : problem(problem), cut(cut) {
    const int part = static_cast<int>(blockIdx.x) * cut.part;
    unit = part + static_cast<int>(threadIdx.x) - 32;
    end = min(part + cut.part, cut.channel);
    sample = unit / cut.units;
    in_run = unit - sample * cut.units;
  }
  // body(i, at, count) for each in a tensor; no elements, no unit.
  template <class Byte, class Data, class Body>
  __device__ void walk(Data* data, const ChannelsProblem::Strides& strides, const Pace& pace,
                       const Body& body) const {
    Row<Byte> row(data, strides, blockIdx.y * strides.channel + in_run * kUnit<T>, sample, 0);
    int at = in_run;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int there = kWhole ? kUnit<T> : unit_count<T>(at, problem.length);
      body(i, reinterpret_cast<Data*>(row.at), unit + i * kWorkers < end ? there : 0);
      at += cut.step;
      const bool wraps = at >= cut.units;
      if (wraps) at -= cut.units;
      row.advance(pace, wraps);
    }
  }
  __device__ void load(const void* data, const ChannelsProblem::Strides& strides,
                       const Tensor& tensor, uint4 (&units)[kUnits]) const {
    const auto load_one = [&](int i, const T* from, int count) {
      units[i] = {};
      if (!kWhole) units[i] = load_unit(from, count, tensor.aligned);
      if (kWhole && count > 0) units[i] = *reinterpret_cast<const uint4*>(from);
    };
    walk<const char>(static_cast<const T*>(data), strides, tensor.pace, load_one);
  }
};

// What a block shares.
struct Board {
  Sums sums[kWorkers / 32];
  Finished channel;
};

// The first warp carries the sums and has no data: the barrier would hold up its loads.
template <class T, int kUnits, bool kWhole>
__global__ void __launch_bounds__(kThreads, 1)
    small_kernel(const __grid_constant__ ChannelsProblem problem,
                 const __grid_constant__ Buffers buffers, const __grid_constant__ Cut cut,
                 const __grid_constant__ Tensors tensors, Sums* exchange) {
#if NORMGRAD_HOPPER
  auto& board = in_shared<Board>();
  const int rank = blockIdx.x, c = blockIdx.y, lane = threadIdx.x % 32;
  const bool carries = threadIdx.x < 32;
  Sums* places = exchange + c * cut.parts;
  const double nothing = __longlong_as_double(static_cast<long long>(kNothing));
  if (threadIdx.x == 0) places[rank] = {nothing, nothing};
  auto token = cooperative_groups::this_grid().barrier_arrive();
  const GivenBits given(problem, buffers, c);
  const Way<T, kUnits, kWhole> way(problem, cut);
  uint4 x[kUnits], dy[kUnits];
  Factors factors;
  if (carries) {
    factors = factors_of(problem, given.values(problem), cut.inverse_count);
  } else {
    way.load(buffers.x, problem.x, tensors.x, x);
    way.load(buffers.dy, problem.dy, tensors.dy, dy);
    const Centring centring = centring_of(problem, given.values(problem));
    Sums sums;
#pragma unroll
    for (int first = 0; first < kUnits; first += kFew) {
      UnitSums<T> some;
#pragma unroll
      for (int i = first; i < first + kFew; ++i) {
        some.add(x[i], dy[i], [&](int) { return centring; });
      }
      sums.add(some.total());
    }
    sums = warp_sum(sums);
    if (lane == 0) board.sums[threadIdx.x / 32 - 1] = sums;
  }
  cooperative_groups::this_grid().barrier_wait(std::move(token));
  __syncthreads();
  Sums total;
  if (carries) {
    total = warp_sum(lane < kWorkers / 32 ? board.sums[lane] : Sums{});
    if (lane == 0) send_sums(&places[rank], total);
    total = receive_sums(places, cut.parts);
    const Finished channel = finish_channel(problem, factors, total);
    if (lane == 0) board.channel = channel;
  }
  __syncthreads();
  const Finished& channel = board.channel;
  if (carries) {
    if (rank == 0 && lane == 0 && !channel.wide) {
      store_sums(problem, buffers, c, factors, total);
    }
  } else if (!channel.wide) {
    const DxScalars scalars = channel.scalars;
    const auto write = [&](int i, T* dx, int count) {
      float x_values[kUnit<T>], dy_values[kUnit<T>], values[kUnit<T>];
      unpack<T>(problem.frozen ? uint4{} : x[i], x_values);
      unpack<T>(dy[i], dy_values);
#pragma unroll
      for (int k = 0; k < kUnit<T>; ++k) values[k] = scalars.dx(x_values[k], dy_values[k]);
      if (count > 0) store_unit(dx, values, count, kWhole || tensors.dx.aligned);
    };
    way.template walk<char>(static_cast<T*>(buffers.dx), problem.dx, tensors.dx.pace, write);
  } else if (rank == 0) {
    const Crew crew = {static_cast<int>(threadIdx.x) - 32, kWorkers, 1};
    wide_channel<T>(problem, buffers, c, crew, board.sums);
  }
#endif
}

Status launch_small(const ChannelsProblem& problem, const Buffers& buffers, void* memory,
                    void* stream) {
  const Cut cut = cut_of(problem);
  const Tensors tensors = tensors_of(problem, buffers, cut);
  const bool whole = tensors.x.aligned && tensors.dy.aligned && tensors.dx.aligned &&
                     problem.length * static_cast<int64_t>(size_of(problem.dtype)) % 16 == 0;
  Launch launch = {dim3(cut.parts, static_cast<unsigned>(problem.channels)), kThreads};
  launch.cooperative = true;
  return with_type(problem.dtype, [&](auto type) {
    using T = decltype(type);
    const auto kernel =
        cut.part <= kWorkers * kFew
            ? (whole ? &small_kernel<T, kFew, true> : &small_kernel<T, kFew, false>)
            : (whole ? &small_kernel<T, kMost, true> : &small_kernel<T, kMost, false>);
    return launch_kernel(kernel, launch, stream, problem, buffers, cut, tensors,
                         static_cast<Sums*>(memory));
  });
}

}  // namespace

Status choose_channels_small(const ChannelsProblem& problem, Kernel<ChannelsProblem>& kernel) {
  const Status fused = check_fused("channels_small", problem);
  if (!fused.ok()) return fused;
  if (walks_channels(problem)) {
    return {Code::kUnsupportedDevice, "channels_small: expected data contiguous along the length"};
  }
  if (multiprocessors() < kMostParts) {
    return {Code::kUnsupportedDevice, "channels_small: expected a GPU of 128 multiprocessors"};
  }
  const Cut cut = cut_of(problem);
  if (cut.parts == 0) {
    return {Code::kUnsupportedDevice,
            "channels_small: expected x of up to 9 MB in up to 128 channels"};
  }
  kernel = {"channels_small", static_cast<size_t>(problem.channels * cut.parts) * sizeof(Sums),
            &launch_small};
  return {};
}

}  // namespace normgrad::cuda
