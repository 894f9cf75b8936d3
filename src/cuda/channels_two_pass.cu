// BatchNorm backward in two passes over memory, for every problem there is.
//
//   dx = gamma * r * (dy - c1 - x_hat * c2),  c1 = mean(dy), c2 = mean(dy * x_hat) over the channel
//   dgamma = sum of dy * x_hat, dbeta = sum of dy; with frozen statistics dx = gamma * r * dy
//
// Three kernels: partial sums (reads x and dy), one small one that makes each channel's scalars of
// them, and dx (reads x and dy again, writes dx; backwards, so that it meets what the first pass
// left in the L2). 5 elements moved where 3 are the least: 0.6 of copy speed at best. On an H200,
// beside a copy of as many bytes as are the least: 2x64x1048576 fp32 638 us (376), 65536x256x1 bf16
// 67 (26), fp32 99 (49).
//
// Order of the sums: 4 units of 16 bytes along the length (or 8 rows of a column) in float32; a
// thread's units, a block's threads and a channel's parts in float64. All of it follows from shape
// and dtype: what is not aligned is loaded element by element.
#include "cuda/channel_sums.cuh"
#include "cuda/channels.hpp"
#include "cuda/channels_two_pass_columns.cuh"
#include "cuda/channels_two_pass_cut.cuh"
#include "cuda/launch.cuh"

namespace normgrad::cuda {
namespace {

using namespace two_pass;

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

// What the first step of a BatchNorm leaves to the second.
__device__ void store_step(const ChannelsProblem& problem, const Buffers& buffers, int64_t c,
                           const Totals& totals) {
  if (problem.sum_dy.present) store_step_value(problem.sum_dy, buffers.sum_dy, c, totals.dy);
  if (problem.sum_dy_xmu.present) {
    store_step_value(problem.sum_dy_xmu, buffers.sum_dy_xmu, c, totals.dy_xmu);
  }
  if (problem.count.present && c == 0) store_count(problem, buffers.count);
}

// What the second gets of it: the sums of all parts, of dy and dy * (x - mean), and the elements.
struct Step {
  Sums sums;
  double count;
};
__device__ Step load_step(const ChannelsProblem& problem, const Buffers& buffers, int64_t c,
                          const Crew& crew, Sums* scratch) {
  Sums sums, counts;
  for (int64_t part = crew.thread; part < problem.parts; part += crew.threads) {
    sums.add({load_part(problem.sum_dy, buffers.sum_dy, part, c),
              load_part(problem.sum_dy_xmu, buffers.sum_dy_xmu, part, c)});
  }
  const Vector& count = problem.count;
  for (int64_t i = crew.thread; i < problem.counts; i += crew.threads) {
    counts.add({load_step_value(count.dtype, buffers.count, i * count.stride), 0});
  }
  sums = crew.sum(sums, scratch);
  return {sums, crew.sum(counts, scratch).dy};
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
  double inverse = inverse_count(problem);
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
    const auto [sums, count] = load_step(problem, buffers, c, crew, scratch);
    inverse = 1 / count;
    totals = {sums.dy, sums.dy_t, n.zero ? 0 : n.scale * sums.dy_t};
    safe = !n.zero && are_safe(n, totals, inverse);
  }
  if (threadIdx.x != 0) return;
  store_totals(problem, buffers, c, totals);
  if (problem.step == ChannelsStep::kReduce) store_step(problem, buffers, c, totals);
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
