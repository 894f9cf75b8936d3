// How channels_two_pass.cu cuts a problem up: a function of shape, dtype and the axis that is
// contiguous.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/channel.cuh"
#include "cuda/channel_walk.cuh"
#include "cuda/channels.hpp"

namespace normgrad::cuda::two_pass {

inline constexpr int kThreads = 256;
inline constexpr int kColumns =
    4;  // of a row that a thread keeps: with 8, scalars and sums fill the registers
inline constexpr int kBatch = 4;  // units or quads that a thread loads before it uses the first

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

inline Cut cut_of(const ChannelsProblem& problem) {
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
inline Workspace workspace_at(const ChannelsProblem& problem, void* memory) {
  auto* channels = static_cast<Channel*>(memory);
  return {channels, reinterpret_cast<Sums*>(channels + problem.channels)};
}

// Whether every unit or quad that the kernels see starts at a multiple of its size.
struct Aligned {
  bool x, dy, dx;
};
inline Aligned alignment_of(const ChannelsProblem& problem, const Buffers& buffers) {
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

}  // namespace normgrad::cuda::two_pass
