// Units of 16 bytes at any address: put together from two aligned ones, and stored as parts of two.
#pragma once

#include <cstdint>

#include "cuda/types.cuh"

namespace normgrad::cuda {

__device__ inline uint32_t phase_of(const void* pointer) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pointer) % 16);
}

// 16 of 32 bytes, from one below 16 on. All rows of a warp mostly have the same phase: a branch
// takes less than to select every word.
__device__ inline uint4 extract(const uint4& low, const uint4& high, uint32_t byte) {
  const uint32_t bits = byte % 4 * 8;
  const auto from = [&](uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t e) -> uint4 {
    return {__funnelshift_r(a, b, bits), __funnelshift_r(b, c, bits), __funnelshift_r(c, d, bits),
            __funnelshift_r(d, e, bits)};
  };
  switch (byte / 4) {
    case 0:
      return from(low.x, low.y, low.z, low.w, high.x);
    case 1:
      return from(low.y, low.z, low.w, high.x, high.y);
    case 2:
      return from(low.z, low.w, high.x, high.y, high.z);
    default:
      return from(low.w, high.x, high.y, high.z, high.w);
  }
}

// From shared memory at an offset from a multiple of 4 bytes, with up to 3 bytes around what is
// asked for. By words, though four lanes meet in a bank: to pick them from two aligned units takes
// 20 instructions more.
template <class T>
__device__ uint4 load_shifted(const char* memory, int offset) {
  const uint32_t* pieces = reinterpret_cast<const uint32_t*>(memory + (offset & ~3));
  if constexpr (sizeof(T) == 4) return {pieces[0], pieces[1], pieces[2], pieces[3]};
  const int bits = (offset & 3) * 8;
  const uint32_t last = pieces[4];
  return {__funnelshift_r(pieces[0], pieces[1], bits), __funnelshift_r(pieces[1], pieces[2], bits),
          __funnelshift_r(pieces[2], pieces[3], bits), __funnelshift_r(pieces[3], last, bits)};
}

// Zeros from an element on.
template <class T>
__device__ void clear_from(int first, float (&values)[kUnit<T>]) {
#pragma unroll
  for (int e = 0; e < kUnit<T>; ++e) {
    if (e >= first) values[e] = 0;
  }
}

// Unit u of a row of `columns` elements at any address. Neighbouring lanes of a group of `lanes`
// have neighbouring units: each stores an aligned piece, the end of its neighbour's unit and the
// start of its own; where group or row end, single elements. All lanes of a warp come here,
// `active` or not.
template <class T>
__device__ void store_shifted(T* row, int u, const uint4& unit, int columns, int lane, int lanes,
                              bool active) {
  constexpr int kE = kUnit<T>;
  const uint32_t phase = phase_of(row);
  const int over = static_cast<int>(phase / sizeof(T));  // elements of the neighbour's unit
  const uint4 before = {__shfl_up_sync(~0u, unit.x, 1), __shfl_up_sync(~0u, unit.y, 1),
                        __shfl_up_sync(~0u, unit.z, 1), __shfl_up_sync(~0u, unit.w, 1)};
  if (!active) return;
  const auto whole = [&](int piece) { return piece * kE + kE - over <= columns; };
  const bool stores_piece = whole(u) && (over == 0 || lane > 0);
  const bool next_stores = over > 0 && lane + 1 < lanes && whole(u + 1);
  if (stores_piece) {
    *reinterpret_cast<uint4*>(row + u * kE - over) =
        over > 0 ? extract(before, unit, 16 - phase) : unit;
  }
  // What is in no piece.
  const int first = stores_piece ? kE - over : 0;
  const int last = min(next_stores ? kE - over : kE, columns - u * kE);
  if (first >= last) return;
  const uint32_t own[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
  for (int e = 0; e < kE; ++e) {
    if (e < first || e >= last) continue;
    if constexpr (sizeof(T) == 4) {
      row[u * kE + e] = __uint_as_float(own[e]);
    } else {
      reinterpret_cast<uint16_t*>(row)[u * kE + e] =
          static_cast<uint16_t>(own[e / 2] >> (e % 2 * 16));
    }
  }
}

}  // namespace normgrad::cuda
