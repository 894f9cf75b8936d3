// How rows_across.cu deals columns out to blocks, and rows to the warps of each: a function of the
// number of columns and the dtype. Plain C++, tested without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/problem.hpp"

namespace normgrad::cuda {

struct AcrossDeal {
  static constexpr int kBlocks = 132;       // at most: those of an H200
  static constexpr int kWarps = 16;         // of a block, that sum and write
  static constexpr int kBatch = 2;          // rows of a warp's turn
  static constexpr int kMostSlots = 16;     // rows of a group in shared memory
  static constexpr int kSliceUnits = 8;     // slices start at multiples of 128 bytes
  static constexpr int kRing = 208 * 1024;  // bytes of a block

  int slice = 0;   // units of a row that a block has
  int blocks = 0;  // 0: rows are too long
  int warps = 0;   // that share the slice of a row
  int groups = 0;  // of so many warps, each of which has rows of its own
  int slots = 0;   // rows that a group has room for

  constexpr int workers() const { return warps * groups; }
  constexpr int round_rows() const { return groups * kBatch; }
};

inline AcrossDeal across_deal_of(int64_t cols, DType dtype) {
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  constexpr int kSliceUnits = AcrossDeal::kSliceUnits;
  const int64_t units = ceil(std::max<int64_t>(cols, 1), 16 / static_cast<int64_t>(size_of(dtype)));
  const int64_t slice = ceil(ceil(units, AcrossDeal::kBlocks), kSliceUnits) * kSliceUnits;
  AcrossDeal deal;
  if (slice > 32 * AcrossDeal::kWarps) return deal;
  deal.slice = static_cast<int>(slice);
  deal.blocks = static_cast<int>(ceil(units, slice));
  deal.warps = static_cast<int>(ceil(slice, 32));
  deal.groups = AcrossDeal::kWarps / deal.warps;
  deal.slots = std::min(AcrossDeal::kMostSlots, AcrossDeal::kRing / (deal.workers() * 32 * 32));
  return deal;
}

}  // namespace normgrad::cuda
