// What nvcc knows by itself, for a C++ compiler: included before every CUDA source.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "machine.hpp"
#include "runtime.hpp"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __grid_constant__
#undef __launch_bounds__
#undef __noinline__
#define __global__
#define __device__
#define __host__
#define __shared__ static  // of kernels whose blocks run one after another
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __noinline__

using std::fma;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;

inline double rsqrt(double value) { return 1 / std::sqrt(value); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline uint32_t __float_as_uint(float value) { return std::bit_cast<uint32_t>(value); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }
inline long long __double_as_longlong(double value) { return std::bit_cast<long long>(value); }
inline int __double2hiint(double value) {
  return static_cast<int>(std::bit_cast<uint64_t>(value) >> 32);
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}

inline void __syncthreads() { normgrad::emulator::sync_block(); }
inline void __syncwarp() { normgrad::emulator::sync_warp(); }

namespace normgrad::emulator {

// The value of lane from(lane), after all lanes have given theirs.
template <class T, class From>
T shuffle(T value, const From& from) {
  static_assert(sizeof(T) <= 8);
  uint64_t* places = exchange();
  std::memcpy(&places[lane()], &value, sizeof(T));
  sync_warp();
  T other;
  std::memcpy(&other, &places[from(lane())], sizeof(T));
  return other;
}

}  // namespace normgrad::emulator

template <class T>
T __shfl_sync(unsigned, T value, unsigned source) {
  return normgrad::emulator::shuffle(value, [&](unsigned) { return source % 32; });
}
template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  return normgrad::emulator::shuffle(value, [&](unsigned lane) { return lane ^ mask; });
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned distance) {
  return normgrad::emulator::shuffle(
      value, [&](unsigned lane) { return lane >= distance ? lane - distance : lane; });
}
inline bool __any_sync(unsigned, bool value) {
  uint64_t* places = normgrad::emulator::exchange();
  places[normgrad::emulator::lane()] = value;
  normgrad::emulator::sync_warp();
  return std::find(places, places + 32, 1) != places + 32;
}
inline int __syncthreads_or(int value) {
  auto& any = *reinterpret_cast<int*>(
      normgrad::emulator::variable(reinterpret_cast<const void*>(&__syncthreads_or), sizeof(int)));
  __syncthreads();
  any = 0;
  __syncthreads();
  if (value != 0) any = 1;
  __syncthreads();
  return any;
}

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  namespace emulator = normgrad::emulator;
  const auto index = [](const dim3& d) { return emulator::Index{d.x, d.y, d.z}; };
  emulator::Shape shape = {index(config->gridDim), index(config->blockDim),
                           config->dynamicSmemBytes};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      shape.cluster = attribute.val.clusterDim.x;
    }
    if (attribute.id == cudaLaunchAttributeCooperative) shape.cooperative = true;
  }
  return emulator::enqueue(config->stream,
                           [=] { emulator::run(shape, [&] { kernel(arguments...); }); });
}

// Behind everything that has members of these names.
#define threadIdx (normgrad::emulator::thread_index())
#define blockIdx (normgrad::emulator::block_index())
#define blockDim (normgrad::emulator::block_shape())
#define gridDim (normgrad::emulator::grid_shape())
