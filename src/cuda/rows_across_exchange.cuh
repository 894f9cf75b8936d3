// How the blocks of rows_across.cu tell each other their sums of a row: through memory, 16 bytes
// at a time that say themselves when they are there.
#pragma once

#include "cuda/ptx.cuh"

namespace normgrad::cuda {

// Sums over some columns of a row, and whether dy has anything but zeros there.
struct RowPart {
  double2 sums = {0, 0};
  bool gradient = false;

  __device__ void add(const RowPart& other) {
    sums = {sums.x + other.sums.x, sums.y + other.sums.y};
    gradient |= other.gradient;
  }
};

// The same on all lanes.
__device__ inline RowPart warp_sum(RowPart part) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    part.sums.x += __shfl_xor_sync(~0u, part.sums.x, mask);
    part.sums.y += __shfl_xor_sync(~0u, part.sums.y, mask);
  }
  part.gradient = __any_sync(~0u, part.gradient);
  return part;
}

// A place is used for one row after another. Which of two its sums are of is in the lowest bit of
// both words, 0 in the first turn; the values lose two of their 53 bits. No block sends the next
// ones before it has got what was made of these. At the start all places hold a 1.
__device__ inline unsigned tag_of(unsigned turn) { return turn % 2; }

__device__ inline void clear_place(Words* place) { *place = {~0ull, ~0ull}; }

__device__ inline void send_part(Words* to, const RowPart& part, unsigned tag) {
  const auto bits = [](double value) {
    return static_cast<unsigned long long>(__double_as_longlong(value)) & ~3ull;
  };
  store_relaxed(to, {bits(part.sums.x) | tag, bits(part.sums.y) | (part.gradient ? 2 : 0) | tag});
}

__device__ inline bool is_there(const Words& words, unsigned tag) {
  return words.first % 2 == tag && words.second % 2 == tag;
}
__device__ inline RowPart part_of(const Words& words) {
  const auto value = [](unsigned long long bits) {
    return __longlong_as_double(static_cast<long long>(bits & ~3ull));
  };
  return {{value(words.first), value(words.second)}, (words.second & 2) != 0};
}

__device__ inline RowPart receive_part(const Words* from, unsigned tag) {
  Words words;
  do {
    words = load_relaxed(from);
  } while (!is_there(words, tag));
  return part_of(words);
}

// The sum of the parts of all blocks, by all lanes of a warp.
template <int kMostBlocks>
__device__ RowPart gather_parts(const Words* from, int blocks, unsigned tag) {
  constexpr int kLooks = (kMostBlocks + 31) / 32;
  const int lane = threadIdx.x % 32;
  Words words[kLooks];
  bool all;
  do {
    all = true;
    asm volatile("" : "+l"(from));  // else every address is kept
#pragma unroll
    for (int i = 0; i < kLooks; ++i) {
      if (lane + 32 * i < blocks) words[i] = load_relaxed(from + lane + 32 * i);
    }
#pragma unroll
    for (int i = 0; i < kLooks; ++i) {
      if (lane + 32 * i < blocks) all = all && is_there(words[i], tag);
    }
  } while (!all);
  __syncwarp();
  RowPart part;
#pragma unroll
  for (int i = 0; i < kLooks; ++i) {
    if (lane + 32 * i < blocks) part.add(part_of(words[i]));
  }
  return warp_sum(part);
}

}  // namespace normgrad::cuda
