// How a thread of BatchNorm's kernels walks through a tensor.
#pragma once

#include <cstdint>

#include "cuda/types.cuh"
#include "ops/problem.hpp"

namespace normgrad::cuda {

// From a thread's place in a tensor to its next, in bytes, and what is added where that leads into
// a further sample.
struct Pace {
  int64_t step, wrap;
};

// Its place, where it walks along the channels.
template <class Byte>
struct Row {
  Byte* at;

  template <class Data>
  __device__ Row(Data* data, const ChannelsProblem::Strides& strides, int64_t c, int64_t sample,
                 int64_t position)
      : at(reinterpret_cast<Byte*>(data + c + sample * strides.sample +
                                   position * strides.position)) {}
  __device__ void advance(const Pace& pace, bool wraps) {
    at += wraps ? pace.step + pace.wrap : pace.step;
  }
};

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

// The elements of unit `inner` of a run.
template <class T>
__device__ int unit_count(int64_t inner, int64_t length) {
  const int64_t left = length - inner * kUnit<T>;
  return left < kUnit<T> ? static_cast<int>(left) : kUnit<T>;
}

}  // namespace normgrad::cuda
