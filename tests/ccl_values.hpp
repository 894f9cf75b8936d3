// What the tests of infiniccl compare with: data of every type, and what reducing it in the order
// of the ranks gives, one element at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "infiniccl.h"
#include "ops/float16.hpp"

namespace ccl {

inline constexpr infiniDtype_t kTypes[] = {INFINI_DTYPE_F32, INFINI_DTYPE_F16, INFINI_DTYPE_BF16,
                                           INFINI_DTYPE_I32, INFINI_DTYPE_I64, INFINI_DTYPE_U32,
                                           INFINI_DTYPE_U64};
inline constexpr infinicclReduceOp_t kOps[] = {INFINICCL_SUM, INFINICCL_PROD, INFINICCL_MAX,
                                               INFINICCL_MIN, INFINICCL_AVG};

using Bytes = std::vector<unsigned char>;

inline size_t size_of(infiniDtype_t type) {
  const bool half = type == INFINI_DTYPE_F16 || type == INFINI_DTYPE_BF16;
  const bool wide = type == INFINI_DTYPE_I64 || type == INFINI_DTYPE_U64;
  return half ? 2 : wide ? 8 : 4;
}

inline bool is_float(infiniDtype_t type) {
  return type == INFINI_DTYPE_F32 || type == INFINI_DTYPE_F16 || type == INFINI_DTYPE_BF16;
}

// float64 to 16 bits in one rounding: the neighbour that is nearer, the even one of two.
template <class Widen>
uint16_t nearest(double value, uint16_t guess, const Widen& widen) {
  uint16_t best = guess;
  for (const int step : {-1, 1}) {
    const auto other = static_cast<uint16_t>(guess + step);
    const double here = std::fabs(widen(best) - value), there = std::fabs(widen(other) - value);
    if (there < here || (there == here && other % 2 == 0)) best = other;
  }
  return best;
}

inline void put(Bytes& bytes, size_t index, infiniDtype_t type, double value) {
  const auto store = [&](auto v) { std::memcpy(bytes.data() + index * sizeof v, &v, sizeof v); };
  const auto single = static_cast<float>(value);
  switch (type) {
    case INFINI_DTYPE_F16:
      return store(nearest(value, normgrad::f16_from_f32(single), normgrad::f32_from_f16));
    case INFINI_DTYPE_BF16:
      return store(nearest(value, normgrad::bf16_from_f32(single), normgrad::f32_from_bf16));
    case INFINI_DTYPE_I32:
      return store(static_cast<int32_t>(value));
    case INFINI_DTYPE_I64:
      return store(static_cast<int64_t>(value));
    case INFINI_DTYPE_U32:
      return store(static_cast<uint32_t>(value));
    case INFINI_DTYPE_U64:
      return store(static_cast<uint64_t>(value));
    default:
      return store(single);
  }
}

inline double get(const Bytes& bytes, size_t index, infiniDtype_t type) {
  const auto load = [&]<class T>(T v) {
    std::memcpy(&v, bytes.data() + index * sizeof v, sizeof v);
    return v;
  };
  switch (type) {
    case INFINI_DTYPE_F16:
      return normgrad::f32_from_f16(load(uint16_t{}));
    case INFINI_DTYPE_BF16:
      return normgrad::f32_from_bf16(load(uint16_t{}));
    case INFINI_DTYPE_I32:
      return load(int32_t{});
    case INFINI_DTYPE_I64:
      return static_cast<double>(load(int64_t{}));
    case INFINI_DTYPE_U32:
      return load(uint32_t{});
    case INFINI_DTYPE_U64:
      return static_cast<double>(load(uint64_t{}));
    default:
      return load(float{});
  }
}

// Of a rank: floats from 2^-9 to 2^3 of both signs, so that sums are rounded; integers whose
// products of eight ranks are still exact in float64.
inline Bytes data_of(int rank, size_t count, infiniDtype_t type) {
  Bytes bytes(count * size_of(type));
  uint64_t state = 1234567 + static_cast<uint64_t>(rank);
  for (size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t bits = state >> 33;
    double value = static_cast<double>(bits % 29);
    const bool is_signed = is_float(type) || type == INFINI_DTYPE_I32 || type == INFINI_DTYPE_I64;
    if (is_float(type))
      value = std::ldexp(1 + static_cast<double>(bits % 2048) / 2048,
                         static_cast<int>(bits >> 11) % 12 - 9);
    if (is_signed && bits >> 30 != 0) value = -value;
    put(bytes, i, type, value);
  }
  return bytes;
}

inline Bytes reduced(int ranks, size_t count, infiniDtype_t type, infinicclReduceOp_t op) {
  std::vector<double> total(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const Bytes bytes = data_of(rank, count, type);
    for (size_t i = 0; i < count; ++i) {
      const double value = get(bytes, i, type), before = total[i];
      total[i] = rank == 0              ? value
                 : op == INFINICCL_MAX  ? std::fmax(before, value)
                 : op == INFINICCL_MIN  ? std::fmin(before, value)
                 : op == INFINICCL_PROD ? before * value
                                        : before + value;
    }
  }
  Bytes bytes(count * size_of(type));
  for (size_t i = 0; i < count; ++i) {
    double value = op == INFINICCL_AVG ? total[i] / ranks : total[i];
    put(bytes, i, type, is_float(type) ? value : std::trunc(value));
  }
  return bytes;
}

}  // namespace ccl
