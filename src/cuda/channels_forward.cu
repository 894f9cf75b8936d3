// BatchNorm forward.
//
//   mean = mean(x), r = 1 / sqrt(mean((x - mean)^2) + eps), y = (x - mean) * r * gamma + beta
//
// channels_forward: a channel of up to 32 KB stays in the registers of a block, 4 units of 16 bytes
// per thread: 1 read, 1 write. Everything else, also along the
// channels: the moments of parts, a small kernel that puts them together, and y: 2 reads, 1 write.
// With frozen statistics, or the moments of a batch's parts given, only the last two.
#include <algorithm>
#include <bit>

#include "cuda/channels.hpp"
#include "cuda/channels_forward.cuh"
#include "cuda/channels_forward_columns.cuh"
#include "cuda/kernels.hpp"
#include "cuda/launch.cuh"
#include "ops/operands.hpp"

namespace normgrad::cuda {
namespace {

using two_pass::Cut;
using two_pass::kBatch;
using two_pass::kThreads;

// Planes: block (part, channel).
template <class T>
__global__ void __launch_bounds__(kThreads)
    plane_moments_kernel(const __grid_constant__ ChannelsForwardProblem problem,
                         const __grid_constant__ Buffers buffers, const __grid_constant__ Cut cut,
                         Moments* moments) {
  const int64_t c = blockIdx.x / cut.parts, part = blockIdx.x - c * cut.parts;
  const T* x = static_cast<const T*>(buffers.x) + c * problem.x.channel;
  const int64_t begin = part * cut.part, end = min(begin + cut.part, cut.items);
  const int64_t sample = begin / cut.inner;
  const double pivot =
      pivot_of(widen(x[sample * problem.x.sample + (begin - sample * cut.inner) * kUnit<T>]));
  PivotSums sums;
  int64_t item = begin + threadIdx.x, elements = 0;
  Walk walk(item, kThreads, cut.inner);
  while (item < end) {
    uint4 units[kBatch];
    int counts[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      counts[i] = item < end ? unit_count<T>(walk.inner, problem.length) : 0;
      if (counts[i] > 0) {
        units[i] =
            load_unit_at(x + walk.outer * problem.x.sample + walk.inner * kUnit<T>, counts[i]);
      }
      item += kThreads;
      walk.advance();
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float values[kUnit<T>];
      unpack<T>(units[i], values);
#pragma unroll
      for (int e = 0; e < kUnit<T>; ++e) {
        if (e < counts[i]) sums.add(values[e] - pivot);
      }
      elements += counts[i];
    }
  }
  Team<Share::kBlock> team(std::countr_zero(unsigned{kThreads}));
  sums = {team.sum(sums.sum), team.sum(sums.squares)};
  const double count = team.sum(static_cast<double>(elements));
  if (threadIdx.x == 0) moments[blockIdx.x] = sums.moments(pivot, count);
}

// Moments of parts put together: a thread each in turn, around the mean of the first that has
// elements. The others count for nothing, whatever they are.
constexpr int kFinishThreads = 128;
template <class Part>
__device__ Moments put_together(int64_t parts, const Part& part) {
  Team<Share::kBlock> team(std::countr_zero(unsigned{kFinishThreads}));
  int64_t first = 0;
  while (first < parts && part(first).count == 0) ++first;
  const double centre = first < parts ? pivot_of(part(first).mean) : 0;
  double count = 0, sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < parts; i += kFinishThreads) {
    const Moments each = part(i);
    count += each.count;
    if (each.count != 0) sum += each.count * (each.mean - centre);
  }
  count = team.sum(count);
  sum = team.sum(sum);
  if (count == 0) return {};
  const double mean = centre + sum / count;
  for (int64_t i = threadIdx.x; i < parts; i += kFinishThreads) {
    const Moments each = part(i);
    const double distance = each.mean - mean;
    if (each.count != 0) squares += each.squares + each.count * distance * distance;
  }
  return {count, mean, team.sum(squares)};
}

// One block per channel.
__global__ void __launch_bounds__(kFinishThreads)
    finish_forward_kernel(const __grid_constant__ ChannelsForwardProblem problem,
                          const __grid_constant__ Buffers buffers, const __grid_constant__ Cut cut,
                          const Moments* moments, ChannelScale* scales) {
  const int64_t c = blockIdx.x;
  ForwardStatistics statistics;
  Moments total = {};
  if (problem.frozen) {
    statistics = frozen_statistics(problem, buffers, c);
  } else {
    wait_for_previous_kernel();
    const auto given = [&](int64_t i) { return load_moments(problem, buffers, c, i); };
    const auto own = [&](int64_t i) {
      return moments[cut.last ? i * problem.channels + c : c * cut.parts + i];
    };
    total = problem.step == ChannelsStep::kElementwise ? put_together(problem.parts, given)
                                                       : put_together(cut.parts, own);
    statistics.mean = total.mean;
    statistics.set_variance(total.count == 0 ? 0 : total.squares / total.count, problem.eps);
  }
  if (threadIdx.x != 0) return;
  if (problem.step == ChannelsStep::kReduce) return store_moments(problem, buffers, c, total);
  if (!problem.frozen) store_statistics(problem, buffers, c, statistics, total.count);
  scales[c] = scale_of(problem, buffers, c, statistics);
}

// Backwards, to meet what is still in the cache.
template <class T>
__global__ void __launch_bounds__(kThreads)
    plane_y_kernel(const __grid_constant__ ChannelsForwardProblem problem,
                   const __grid_constant__ Buffers buffers, const __grid_constant__ Cut cut,
                   const ChannelScale* scales) {
  const int64_t block = gridDim.x - 1 - blockIdx.x;
  const int64_t c = block / cut.parts, part = block - c * cut.parts;
  const T* x = static_cast<const T*>(buffers.x) + c * problem.x.channel;
  T* y = static_cast<T*>(buffers.y) + c * problem.y.channel;
  const int64_t end = min((part + 1) * cut.part, cut.items);
  int64_t item = part * cut.part + threadIdx.x;
  Walk walk(item, kThreads, cut.inner);
  wait_for_previous_kernel();
  const ChannelScale scale = scales[c];
  while (item < end) {
    uint4 units[kBatch];
    int counts[kBatch];
    int64_t offsets[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      counts[i] = item < end ? unit_count<T>(walk.inner, problem.length) : 0;
      const int64_t position = walk.inner * kUnit<T>;
      offsets[i] = walk.outer * problem.y.sample + position;
      if (counts[i] > 0) {
        units[i] = load_unit_at(x + walk.outer * problem.x.sample + position, counts[i]);
      }
      item += kThreads;
      walk.advance();
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (counts[i] == 0) break;
      float values[kUnit<T>];
      unpack<T>(units[i], values);
      scale.apply(values);
      store_unit_at(y + offsets[i], pack<T>(values), counts[i]);
    }
  }
}

struct ChannelsForwardLaunch {
  ChannelsForwardProblem problem;
  Buffers buffers;
  int team_log2;
  uint32_t inner;  // units of a sample's run
  uint32_t units;  // of a channel
};

// What a team has of a channel: unit i is thread i's, and so on around the team.
template <class T>
struct ChannelUnits {
  const ChannelsForwardLaunch& launch;
  int64_t c;
  uint32_t thread, threads;

  // Where unit i of the thread lies; no elements if there is none.
  struct Place {
    int count;
    int64_t sample, position;
  };
  __device__ Place place(int i) const {
    const uint32_t unit = thread + i * threads;
    const uint32_t sample = unit / launch.inner, inner = unit - sample * launch.inner;
    return {unit < launch.units ? unit_count<T>(inner, launch.problem.length) : 0, sample,
            int64_t{inner} * kUnit<T>};
  }
  __device__ const T* x(const Place& place) const {
    const ChannelsShape::Strides& strides = launch.problem.x;
    return static_cast<const T*>(launch.buffers.x) + c * strides.channel +
           place.sample * strides.sample + place.position;
  }
  __device__ T* y(const Place& place) const {
    const ChannelsShape::Strides& strides = launch.problem.y;
    return static_cast<T*>(launch.buffers.y) + c * strides.channel + place.sample * strides.sample +
           place.position;
  }
};

// In float64, from memory.
template <class T>
__device__ __noinline__ double wide_squares(const ChannelUnits<T> channel, double mean) {
  double squares = 0;
  for (int i = 0; i < kForwardUnits; ++i) {
    const auto place = channel.place(i);
    for (int e = 0; e < place.count; ++e) {
      const double centred = widen(channel.x(place)[e]) - mean;
      squares += centred * centred;
    }
  }
  return squares;
}

// A block per channel.
template <class T>
__global__ void __launch_bounds__(kForwardThreads, 1024 / kForwardThreads)
    channels_forward_kernel(const __grid_constant__ ChannelsForwardLaunch launch) {
  constexpr int kE = kUnit<T>;
  const ChannelsForwardProblem& problem = launch.problem;
  Team<Share::kBlock> team(launch.team_log2);
  const ChannelUnits<T> channel = {launch, blockIdx.x, static_cast<uint32_t>(team.thread()),
                                   static_cast<uint32_t>(team.threads())};
  const int64_t c = channel.c;
  const auto count = static_cast<double>(problem.samples * problem.length);
  uint4 units[kForwardUnits];
#pragma unroll
  for (int i = 0; i < kForwardUnits; ++i) {
    const auto place = channel.place(i);
    units[i] = {};
    if (place.count > 0) units[i] = load_unit_at(channel.x(place), place.count);
    if (place.count < kE) units[i] = keep_first<T>(units[i], place.count);
  }
  ForwardStatistics statistics;
  double sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < kForwardUnits; ++i) sum += sum_of<T>(units[i]);
  statistics.mean = team.sum(sum) / count;
  const Centre centre(statistics.mean);
  const double low = statistics.mean - centre.high;
#pragma unroll
  for (int i = 0; i < kForwardUnits; ++i) {
    squares += squares_of<T>(units[i], channel.place(i).count, centre.high);
  }
  squares = fma(-low, low, team.sum(squares) / count);
  if (!is_safe(squares)) squares = team.sum(wide_squares(channel, statistics.mean)) / count;
  statistics.set_variance(squares, problem.eps);
  if (channel.thread == 0) store_statistics(problem, launch.buffers, c, statistics, count);
  if (!problem.has_y) return;
  const ChannelScale scale = scale_of(problem, launch.buffers, c, statistics);
#pragma unroll
  for (int i = 0; i < kForwardUnits; ++i) {
    const auto place = channel.place(i);
    if (place.count == 0) break;
    float values[kE];
    unpack<T>(units[i], values);
    scale.apply(values);
    store_unit_at(channel.y(place), pack<T>(values), place.count);
  }
}

// The gradient's way through the tensors, with y in the place of dx.
ChannelsProblem walk_of(const ChannelsForwardProblem& problem) {
  ChannelsProblem walk;
  static_cast<ChannelsShape&>(walk) = problem;
  walk.x = walk.dy = problem.x;
  walk.dx = problem.y;
  walk.has_dx = problem.has_y;
  return walk;
}

template <class T>
Status run_two_pass(const ChannelsForwardProblem& problem, Buffers buffers, void* memory,
                    void* stream) {
  const ChannelsProblem walk = walk_of(problem);
  const Cut cut = two_pass::cut_of(walk);
  buffers.dy = buffers.x;
  buffers.dx = buffers.y;
  const two_pass::Aligned aligned = two_pass::alignment_of(walk, buffers);
  auto* scales = static_cast<ChannelScale*>(memory);
  auto* moments = reinterpret_cast<Moments*>(scales + problem.channels);
  const auto blocks = static_cast<unsigned>(cut.parts * cut.tiles);
  const bool summed = needs_moments(problem) && blocks > 0;
  if (summed) {
    const Launch shape = {blocks, kThreads};
    NORMGRAD_RETURN_IF_ERROR(cut.last ? launch_kernel(&column_moments_kernel<T>, shape, stream,
                                                      problem, buffers, cut, aligned.x, moments)
                                      : launch_kernel(&plane_moments_kernel<T>, shape, stream,
                                                      problem, buffers, cut, moments));
  }
  Launch finish = {static_cast<unsigned>(problem.channels), kFinishThreads};
  finish.dependent = summed;
  NORMGRAD_RETURN_IF_ERROR(launch_kernel(&finish_forward_kernel, finish, stream, problem, buffers,
                                         cut, moments, scales));
  if (!problem.has_y || blocks == 0) return {};
  Launch shape = {blocks, kThreads};
  shape.dependent = true;
  return cut.last ? launch_kernel(&column_y_kernel<T>, shape, stream, problem, buffers, cut,
                                  aligned.x, aligned.dx, scales)
                  : launch_kernel(&plane_y_kernel<T>, shape, stream, problem, buffers, cut, scales);
}

Status launch_two_pass_forward(const ChannelsForwardProblem& problem, const Buffers& buffers,
                               void* memory, void* stream) {
  return with_type(problem.dtype, [&](auto type) {
    return run_two_pass<decltype(type)>(problem, buffers, memory, stream);
  });
}

// The units of a channel, a run of each sample after the other.
int64_t units_of(const ChannelsForwardProblem& problem) {
  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  return problem.samples * ((problem.length + unit - 1) / unit);
}

// Threads of a channel: a power of two.
int threads_of(const ChannelsForwardProblem& problem) {
  const int64_t threads = (units_of(problem) + kForwardUnits - 1) / kForwardUnits;
  return std::max(32, static_cast<int>(std::bit_ceil(static_cast<uint64_t>(threads))));
}

Status launch_channels_forward(const ChannelsForwardProblem& problem, const Buffers& buffers, void*,
                               void* stream) {
  const int team = threads_of(problem);
  const Launch shape = {static_cast<unsigned>(problem.channels), static_cast<unsigned>(team)};
  const int64_t units = units_of(problem);
  const ChannelsForwardLaunch launch = {
      problem, buffers, std::countr_zero(static_cast<unsigned>(team)),
      static_cast<uint32_t>(units / problem.samples), static_cast<uint32_t>(units)};
  return with_type(problem.dtype, [&](auto type) {
    return launch_kernel(&channels_forward_kernel<decltype(type)>, shape, stream, launch);
  });
}

// Whether a channel fits the registers of a block. (In those of a cluster it takes longer than two
// reads: 32x256x3136 fp32 183 us instead of 101.)
bool is_resident(const ChannelsForwardProblem& problem) {
  const int64_t units = units_of(problem);
  return !problem.frozen && problem.step == ChannelsStep::kAll && units > 0 &&
         units <= int64_t{kForwardThreads} * kForwardUnits && !walks_channels(problem);
}

}  // namespace

Status choose_channels_forward(const ChannelsForwardProblem& problem,
                               Kernel<ChannelsForwardProblem>& kernel) {
  if (is_resident(problem)) {
    kernel = {"channels_forward", 0, &launch_channels_forward};
    return {};
  }
  const Cut cut = two_pass::cut_of(walk_of(problem));
  const int64_t moments = needs_moments(problem) ? problem.channels * cut.parts : 0;
  kernel = {"channels_forward_two_pass",
            static_cast<size_t>(problem.channels) * sizeof(ChannelScale) +
                static_cast<size_t>(moments) * sizeof(Moments),
            &launch_two_pass_forward};
  return {};
}

}  // namespace normgrad::cuda
