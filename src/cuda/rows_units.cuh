// Units of 16 bytes at any address: put together from two aligned pieces, and stored as parts of
// two.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/ptx.cuh"
#include "cuda/types.cuh"

namespace normgrad::cuda {

__device__ inline uint32_t phase_of(const void* pointer) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pointer) % 16);
}

// Calls visit with the phase of an address, in elements, as a constant: for lanes that have the
// same, one branch per row instead of selections per unit.
template <class T, class Visit>
__device__ void with_phase(uint32_t address, const Visit& visit) {
  const auto call = [&]<int kPhase>() {
    if constexpr (kPhase < kUnit<T>) visit(std::integral_constant<int, kPhase>());
  };
  switch (address % 16 / sizeof(T)) {
    case 0:
      return call.template operator()<0>();
    case 1:
      return call.template operator()<1>();
    case 2:
      return call.template operator()<2>();
    case 3:
      return call.template operator()<3>();
    case 4:
      return call.template operator()<4>();
    case 5:
      return call.template operator()<5>();
    case 6:
      return call.template operator()<6>();
    case 7:
      return call.template operator()<7>();
  }
}

// Two neighbouring aligned pieces as words.
struct Pieces {
  uint32_t words[8];
  Pieces() = default;
  __device__ Pieces(const uint4& low, const uint4& high)
      : words{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w} {}
};

// The unit that starts with element kPhase of its pieces.
template <class T, int kPhase>
__device__ void unpack(const Pieces& pieces, float (&values)[kUnit<T>]) {
#pragma unroll
  for (int e = 0; e < kUnit<T>; ++e) {
    constexpr int kPerWord = 4 / sizeof(T);
    const uint32_t word = pieces.words[(kPhase + e) / kPerWord];
    const bool upper = (kPhase + e) % kPerWord == 1;
    if constexpr (std::is_same_v<T, float>) {
      values[e] = __uint_as_float(word);
    } else if constexpr (std::is_same_v<T, BF16>) {
      values[e] = __uint_as_float(upper ? word & 0xFFFF0000u : word << 16);
    } else {
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
      values[e] = upper ? pair.y : pair.x;
    }
  }
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

// The units of a warp, u on this lane, all of them whole, in a row whose address has the phase
// kOver. Each lane stores an aligned piece, the end of its neighbour's unit and the start of its
// own. The first lane has those of its warp's last unit and of its own, and stores them by words.
template <class T, int kOver>
__device__ void store_units(T* row, int u, const uint4& unit, int lane) {
  constexpr int kPerWord = 4 / sizeof(T);
  constexpr int kWords = (kOver + kPerWord - 1) / kPerWord;  // that have some of the neighbour's
  char* piece = reinterpret_cast<char*>(row + u * kUnit<T> - kOver);
  if constexpr (kOver == 0) {
    *reinterpret_cast<uint4*>(piece) = unit;
  } else {
    const uint32_t own[4] = {unit.x, unit.y, unit.z, unit.w};
    uint32_t words[kWords + 4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= 4 - kWords) words[i - (4 - kWords)] = __shfl_sync(~0u, own[i], (lane + 31) % 32);
      words[kWords + i] = own[i];
    }
    if constexpr (kOver % kPerWord != 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], 16);
    }
    if (lane > 0) {
      *reinterpret_cast<uint4*>(piece) = {words[0], words[1], words[2], words[3]};
      return;
    }
    // Words from i on have their place behind the last unit, or before this one.
    const auto place = [&](int i) { return piece + 4 * i + (i * kPerWord < kOver ? 32 * 16 : 0); };
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      if (i * kPerWord >= kOver || (i + 2) * kPerWord <= kOver) {
        *reinterpret_cast<uint2*>(place(i)) = {words[i], words[i + 1]};
        continue;
      }
#pragma unroll
      for (int k = i; k < i + 2; ++k) {
        if (k * kPerWord >= kOver || (k + 1) * kPerWord <= kOver) {
          *reinterpret_cast<uint32_t*>(place(k)) = words[k];
        } else {  // half of each
          *reinterpret_cast<uint16_t*>(place(k)) = static_cast<uint16_t>(words[k]);
          *reinterpret_cast<uint16_t*>(piece + 4 * k + 2) = static_cast<uint16_t>(words[k] >> 16);
        }
      }
    }
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
