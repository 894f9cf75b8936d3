// Element types on the GPU: units of 16 bytes, and single values of a type known only at run time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ops/problem.hpp"

namespace normgrad::cuda {

using F16 = __half;
using BF16 = __nv_bfloat16;

// Calls function(T{}) with the T of a dtype: the one list of types that kernels are compiled for.
template <class Function>
__host__ __device__ decltype(auto) with_type(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::kF16:
      return function(F16{});
    case DType::kBF16:
      return function(BF16{});
    default:
      return function(float{});
  }
}

template <class T>
constexpr DType dtype_of() {
  return std::is_same_v<T, float> ? DType::kF32
         : std::is_same_v<T, F16> ? DType::kF16
                                  : DType::kBF16;
}

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(F16 value) { return __half2float(value); }
__device__ inline float widen(BF16 value) { return __bfloat162float(value); }

template <class T>
__device__ T narrow(float value) {
  if constexpr (sizeof(T) == 4) return value;
  if constexpr (std::is_same_v<T, F16>) return __float2half_rn(value);
  if constexpr (std::is_same_v<T, BF16>) return __float2bfloat16_rn(value);
}

// A number of 2 or 4 bytes as it comes from memory. Whoever makes a value of it waits for it; made
// after others have been asked for, all come in one trip, which takes a microsecond and more.
struct Halves {
  uint16_t low = 0, high = 0;

  Halves() = default;
  __device__ Halves(DType dtype, const void* data, int64_t index) {
    const bool whole = dtype == DType::kF32;
    const auto* at = static_cast<const uint16_t*>(data) + (whole ? 2 * index : index);
    low = at[0];
    if (whole) high = at[1];
  }
  __device__ float value(DType dtype) const {
    if (dtype == DType::kF16) return __half2float(__ushort_as_half(low));
    if (dtype == DType::kBF16) return __uint_as_float(uint32_t{low} << 16);
    return __uint_as_float(uint32_t{high} << 16 | low);
  }
};

// 16 bytes: what a thread loads and stores at once.
template <class T>
inline constexpr int kUnit = 16 / sizeof(T);

template <class T>
__device__ void unpack(const uint4& unit, float (&values)[kUnit<T>]) {
  const uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      values[i] = __uint_as_float(words[i]);
    } else if constexpr (std::is_same_v<T, BF16>) {  // the upper half of a float32
      values[2 * i] = __uint_as_float(words[i] << 16);
      values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
    } else {
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(words[i]));
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    }
  }
}

template <class T>
__device__ uint4 pack(const float (&values)[kUnit<T>]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      words[i] = __float_as_uint(values[i]);
    } else if constexpr (std::is_same_v<T, BF16>) {
      const auto pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
      words[i] = reinterpret_cast<const uint32_t&>(pair);
    } else {
      const auto pair = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
      words[i] = reinterpret_cast<const uint32_t&>(pair);
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// The elements of one unit, pairwise: log2 of their number are the roundings.
template <int kCount>
__device__ float tree_sum(const float* values) {
  if constexpr (kCount == 1) {
    return values[0];
  } else {
    return tree_sum<kCount / 2>(values) + tree_sum<kCount / 2>(values + kCount / 2);
  }
}
template <int kCount>
__device__ float tree_sum(const float (&values)[kCount]) {
  return tree_sum<kCount>(&values[0]);
}
// Of products: as many roundings for half of the additions.
template <int kCount>
__device__ float tree_sum(const float (&a)[kCount], const float (&b)[kCount]) {
  float pairs[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    pairs[i] = fmaf(a[2 * i + 1], b[2 * i + 1], a[2 * i] * b[2 * i]);
  }
  return tree_sum(pairs);
}

__device__ inline double load_value(DType dtype, const void* data, int64_t index) {
  return with_type(dtype, [&](auto type) -> double {
    return widen(static_cast<const decltype(type)*>(data)[index]);
  });
}

__device__ inline void store_value(DType dtype, void* data, int64_t index, double value) {
  with_type(dtype, [&](auto type) {
    static_cast<decltype(type)*>(data)[index] = narrow<decltype(type)>(static_cast<float>(value));
  });
}

__device__ inline double load_value(const Vector& vector, const void* data, int64_t index) {
  return load_value(vector.dtype, data, index * vector.stride);
}

// What is added up is rounded once; nothing added changes nothing, not even the sign of a zero.
__device__ inline void store_value(const Vector& vector, void* data, int64_t index, double value) {
  if (vector.accumulate) {
    if (value == 0) return;
    value += load_value(vector, data, index);
  }
  store_value(vector.dtype, data, index * vector.stride, value);
}

// What passes between the two steps of a BatchNorm has types that nothing else has. Counts are
// exact up to 2^53.
__device__ inline double load_step_value(DType dtype, const void* data, int64_t index) {
  switch (dtype) {
    case DType::kF64:
      return static_cast<const double*>(data)[index];
    case DType::kI64:
      return static_cast<double>(static_cast<const int64_t*>(data)[index]);
    case DType::kI32:
      return static_cast<const int32_t*>(data)[index];
    default:
      return load_value(dtype, data, index);
  }
}

__device__ inline double load_part(const Parts& parts, const void* data, int64_t part,
                                   int64_t index) {
  return load_step_value(parts.dtype, data, part * parts.part + index * parts.stride);
}

__device__ inline void store_step_value(const Vector& vector, void* data, int64_t index,
                                        double value) {
  if (vector.dtype == DType::kF64) {
    static_cast<double*>(data)[index * vector.stride] = value;
  } else {
    store_value(vector, data, index, value);
  }
}

// The first step's count.
__device__ inline void store_count(const ChannelsShape& shape, void* data) {
  *static_cast<int64_t*>(data) = shape.samples * shape.length;
}

}  // namespace normgrad::cuda
