// How a thread of BatchNorm's kernels walks through a tensor.
#pragma once

#include <cstdint>

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

}  // namespace normgrad::cuda
