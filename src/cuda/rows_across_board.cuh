// What the parts of rows_across.cu share: constants, what the kernel gets, what the warps of a
// block have in common.
#pragma once

#include "cuda/channel_sums.cuh"
#include "cuda/ptx.cuh"
#include "cuda/rows_across_deal.hpp"
#include "cuda/rows_across_exchange.cuh"
#include "cuda/rows_scalars.cuh"

namespace normgrad::cuda::across {

using Deal = AcrossDeal;
constexpr int kWarps = Deal::kWarps;
constexpr int kBatch = Deal::kBatch;
constexpr int kMostRows = kWarps * kBatch;  // of a round
constexpr int kAhead = 4;                   // turns that are summed before dx of one
constexpr int kCarriers = kAhead + 1;       // warps that exchange, a round each
constexpr int kRounds = kCarriers;          // on their way in a block
constexpr int kFetchers = 3;                // warps; a bulk copy takes one about 50 ns to start
constexpr int kThreads = 32 * (kWarps + kCarriers + kFetchers);
static_assert(kBatch == 2);
constexpr int kChunkTurns = kChunkRows / kBatch, kDeepTurns = kChunkTurns * kChunkRows;

struct AcrossLaunch {
  RowsLaunch rows;  // the problem, the buffers and where rows lie
  AcrossDeal deal;
  int rounds;
  Words* parts;    // of a row by every block: kRounds x rows of a round x blocks
  Words* totals;   // for every block: blocks x kRounds x rows of a round
  Words* wide;     // of a row in float64 by every block: 2 x blocks
  uint8_t* flags;  // of each row, whether it has to be done in float64
  double* folded;  // column sums, where there are too many rows for float32
};

// A row whose sums are known: what its RowScalars need for dx, as it is read.
struct alignas(16) KnownRow {
  float mean, r, c1, c2;
  int skipped;  // there is none, or it has to be done in float64
};

// What the warps of a block share.
struct Board {
  Barrier full[kWarps][Deal::kMostSlots], empty[kWarps][Deal::kMostSlots];  // of each group
  Barrier summed[kRounds], known[kRounds];
  float means[kRounds][kMostRows];
  double sums[kRounds][kWarps][4];  // of one row and another, the first and the second sum
  KnownRow rows[kRounds][kMostRows];
  // For the end.
  bool any_wide;
  RowPart wide[kThreads / 32], wide_total;
};

// A place in a group's ring, which has one for each of some rows, and the parity of its barriers.
struct Cursor {
  int slot = 0;
  uint32_t parity = 0;

  __device__ void advance(int slots) {
    if (++slot < slots) return;
    slot = 0;
    parity ^= 1;
  }
};

// The columns of this block.
template <class T>
__device__ int columns_of(const AcrossLaunch& launch) {
  const int64_t most = static_cast<int64_t>(launch.deal.slice) * kUnit<T>;
  return static_cast<int>(min(launch.rows.problem.cols - blockIdx.x * most, most));
}

}  // namespace normgrad::cuda::across
