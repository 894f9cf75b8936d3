// Units of 16 bytes at any address, and parameters in any type and stride: what the forward kernels
// load and store.
#pragma once

#include "cuda/rows_units.cuh"
#include "cuda/types.cuh"

namespace normgrad::cuda {

// The first `count` elements of a unit, at least one, from the one or two aligned pieces of 16
// bytes that hold some of them; the others may be anything.
template <class T>
__device__ uint4 load_unit_at(const T* from, int count) {
  const uint32_t phase = phase_of(from);
  const auto* pieces = reinterpret_cast<const uint4*>(reinterpret_cast<uintptr_t>(from) - phase);
  const uint4 first = pieces[0];
  if (phase == 0) return first;
  uint4 second = first;
  if (phase + count * sizeof(T) > 16) second = pieces[1];
  return extract(first, second, phase);
}

// The first `count` elements, and no others.
template <class T>
__device__ void store_unit_at(T* to, const uint4& unit, int count) {
  if (count == kUnit<T>) {
    const uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
    switch (phase_of(to)) {
      case 0:
        *reinterpret_cast<uint4*>(to) = unit;
        return;
      case 8:
        reinterpret_cast<uint2*>(to)[0] = {words[0], words[1]};
        reinterpret_cast<uint2*>(to)[1] = {words[2], words[3]};
        return;
      case 4:
      case 12:
        for (int i = 0; i < 4; ++i) reinterpret_cast<uint32_t*>(to)[i] = words[i];
        return;
    }
  }
  const T* elements = reinterpret_cast<const T*>(&unit);
#pragma unroll
  for (int e = 0; e < kUnit<T>; ++e) {
    if (e < count) to[e] = elements[e];
  }
}

// Zeros in the place of what lies behind the first `count` elements.
template <class T>
__device__ uint4 keep_first(const uint4& unit, int count) {
  uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int left = (count * static_cast<int>(sizeof(T)) - 4 * i) * 8;  // bits
    if (left < 32) words[i] = left <= 0 ? 0 : words[i] & ((1u << left) - 1);
  }
  return {words[0], words[1], words[2], words[3]};
}

// The mean as two floats. Where x is next to it, x - high is exact, and the rest counts.
struct Centre {
  float high = 0, low = 0;

  Centre() = default;
  __device__ explicit Centre(double mean)
      : high(static_cast<float>(mean)), low(static_cast<float>(mean - high)) {}
  __device__ float operator()(float x) const { return (x - high) - low; }
};

// The sum of a unit: in float64, or in float32 where that has room for all bits of eight 16-bit
// numbers (but for some that are thousands of times smaller than others), since a conversion takes
// as long as eight additions.
template <class T>
__device__ double sum_of(const uint4& unit) {
  float values[kUnit<T>];
  unpack<T>(unit, values);
  if constexpr (sizeof(T) == 2) return tree_sum(values);
  double sum = 0;
#pragma unroll
  for (int e = 0; e < kUnit<T>; e += 2) {
    const double pair = static_cast<double>(values[e]) + static_cast<double>(values[e + 1]);
    sum = e == 0 ? pair : sum + pair;
  }
  return sum;
}

// The sum of the squares of x - centre of its first `count` elements; pairwise in float32.
template <class T>
__device__ float squares_of(const uint4& unit, int count, float centre) {
  float values[kUnit<T>];
  unpack<T>(unit, values);
#pragma unroll
  for (int e = 0; e < kUnit<T>; ++e) values[e] -= centre;
  if (count < kUnit<T>) clear_from<T>(count, values);
  return tree_sum(values, values);
}

// Side by side, from a multiple of 16 bytes on.
template <class T, int kCount>
__device__ void load_plain(const T* from, float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += kUnit<T>) {
    float unit[kUnit<T>];
    unpack<T>(*reinterpret_cast<const uint4*>(from + i), unit);
#pragma unroll
    for (int e = 0; e < kUnit<T>; ++e) values[i + e] = unit[e];
  }
}

// What a thread has of a vector of parameters: those of a unit's columns.
template <class T>
__device__ void load_parameters(const Vector& vector, const void* data, int64_t column, int count,
                                float (&values)[kUnit<T>]) {
  if (sizeof(T) == 2 && vector.dtype == DType::kF32 && vector.stride == 1) {
    const float* from = static_cast<const float*>(data) + column;
#pragma unroll
    for (int half = 0; half < kUnit<T> / 4; ++half) {
      if (half * 4 >= count) continue;
      float quad[4];
      unpack<float>(load_unit_at(from + half * 4, min(count - half * 4, 4)), quad);
#pragma unroll
      for (int e = 0; e < 4; ++e) values[half * 4 + e] = quad[e];
    }
    return;
  }
  if (vector.dtype == dtype_of<T>() && vector.stride == 1) {
    return unpack<T>(load_unit_at(static_cast<const T*>(data) + column, count), values);
  }
  with_type(vector.dtype, [&](auto type) {
    const auto* strided = static_cast<const decltype(type)*>(data) + column * vector.stride;
#pragma unroll
    for (int e = 0; e < kUnit<T>; ++e) {
      if (e < count) values[e] = widen(strided[e * vector.stride]);
    }
  });
}

// Whether load_plain may take them.
inline bool has_plain_units(const Vector& vector, const void* data, DType dtype) {
  return !vector.present ||
         (vector.stride == 1 && (vector.dtype == dtype || vector.dtype == DType::kF32) &&
          reinterpret_cast<uintptr_t>(data) % 16 == 0);
}

}  // namespace normgrad::cuda
