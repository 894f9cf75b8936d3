// Element types of the kernels, and single values of a type known only at run time.
#pragma once

#include <cstdint>

#include "normgrad/tensor.hpp"
#include "ops/float16.hpp"
#include "ops/problem.hpp"

namespace normgrad::cpu {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

inline double widen(float value) { return value; }
inline double widen(F16 value) { return f32_from_f16(value.bits); }
inline double widen(BF16 value) { return f32_from_bf16(value.bits); }

inline bool is_nonzero(float value) { return value != 0; }
inline bool is_nonzero(F16 value) { return (value.bits & 0x7FFF) != 0; }
inline bool is_nonzero(BF16 value) { return (value.bits & 0x7FFF) != 0; }

template <class T>
T narrow(double value);
template <>
inline float narrow<float>(double value) {
  return static_cast<float>(value);
}
template <>
inline F16 narrow<F16>(double value) {
  return {f16_from_f32(static_cast<float>(value))};
}
template <>
inline BF16 narrow<BF16>(double value) {
  return {bf16_from_f32(static_cast<float>(value))};
}

// Calls function(T{}) with the T of a dtype: the one list of types that kernels are compiled for.
template <class Function>
decltype(auto) with_type(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::kF16:
      return function(F16{});
    case DType::kBF16:
      return function(BF16{});
    default:
      return function(float{});
  }
}

inline double load_value(DType dtype, const void* data, int64_t index) {
  return with_type(
      dtype, [&](auto type) { return widen(static_cast<const decltype(type)*>(data)[index]); });
}

inline void store_value(DType dtype, void* data, int64_t index, double value) {
  with_type(dtype, [&](auto type) {
    static_cast<decltype(type)*>(data)[index] = narrow<decltype(type)>(value);
  });
}

// Values [begin, begin + count) of a vector: its type is looked at once. Adding nothing changes no
// bit, not even the sign of a zero.
inline void store_values(const Vector& vector, void* data, int64_t begin, int64_t count,
                         const double* values) {
  with_type(vector.dtype, [&](auto type) {
    using T = decltype(type);
    T* to = static_cast<T*>(data) + begin * vector.stride;
    for (int64_t k = 0; k < count; ++k, to += vector.stride) {
      if (!vector.accumulate) {
        *to = narrow<T>(values[k]);
      } else if (values[k] != 0) {
        *to = narrow<T>(values[k] + widen(*to));
      }
    }
  });
}

inline double load_value(const Vector& vector, const void* data, int64_t index) {
  return load_value(vector.dtype, data, index * vector.stride);
}
inline void store_value(const Vector& vector, void* data, int64_t index, double value) {
  store_values(vector, data, index, 1, &value);
}

// What passes between the two steps of a BatchNorm has types that nothing else has. Counts are
// exact up to 2^53.
inline double load_step_value(DType dtype, const void* data, int64_t index) {
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

inline double load_part(const Parts& parts, const void* data, int64_t part, int64_t index) {
  return load_step_value(parts.dtype, data, part * parts.part + index * parts.stride);
}

inline void store_step_value(const Vector& vector, void* data, int64_t index, double value) {
  if (vector.dtype == DType::kF64) {
    static_cast<double*>(data)[index * vector.stride] = value;
  } else {
    store_value(vector, data, index, value);
  }
}

// The first step's count.
inline void store_count(const ChannelsShape& shape, void* data) {
  *static_cast<int64_t*>(data) = shape.samples * shape.length;
}

}  // namespace normgrad::cpu
