// How the rows of a LayerNorm or RMSNorm are dealt out to blocks, warps and threads, and what they
// have in shared memory. Plain C++, tested without a GPU.
#pragma once

#include <cstdint>

#include "ops/problem.hpp"

namespace normgrad::cuda {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline constexpr int kMaxWarps = 16;    // of a team
inline constexpr int kMaxCluster = 16;  // blocks
inline constexpr int kMaxStages = 3;
inline constexpr int kClusterCrews = 3;  // at most, where rows are cut
inline constexpr int kLongRow = 8192;    // 16-bit rows beyond it are worked on ahead
inline constexpr int kSumSlots = 48;
inline constexpr int kColumnsPerThread = 16;  // at most; in rows beyond 256 columns exactly

struct alignas(16) RowSums {
  double first = 0, second = 0;
};

// Where a crew's next rows are, if each stage takes one piece of x and one of dy.
struct alignas(16) RowsSource {
  const char *x = nullptr, *dy = nullptr;
};

// Of a row in a stage: where x and dy are in shared memory, and dx in the tensor, in elements. Kept
// for rows that are not plain.
struct alignas(16) RowPlace {
  int x = 0, dy = 0;
  int64_t dx = 0;
};

// At the start of shared memory. The integers are barriers.
struct RowsShared {
  // Of each warp of each crew, then of each block of the cluster for each crew, for rows in turn;
  // zeros where there is none. Crews of 2 or 3 warps have room for 4.
  RowSums sums[2][kSumSlots];
  RowsSource sources[kMaxWarps];         // of each crew
  uint64_t full[kMaxWarps][kMaxStages];  // of the stages of each crew's ring
  uint64_t cluster[kClusterCrews][2];
};

// Of a crew whose sums travel over the cluster while it writes dx of the row before: of its warps,
// then of the cluster's blocks, for rows in turn; zeros where there is none. A block may send those
// of row i + 3 while others still have to read those of row i, but not before they have read those
// of row i - 1: hence four turns.
struct alignas(16) TravellingSums {
  RowSums warps[2][kMaxWarps];
  RowSums blocks[4][kMaxCluster];
  uint64_t arrived[4];
};

struct RowStats {
  float mean = 0, spread = 0;
};

// What is known of a row before its sums are: made once per row, not by each of its threads.
struct alignas(16) RowScales {
  float mean = 0;
  float r = 0, scale = 0;  // of RowScalars
  float moderate = 0;      // 1 if r is near 1, and the row not one element that LayerNorm makes 0
  double c1 = 0, c2 = 0;   // of the sums of g and of g * (x - mean)
};

// A function of shape and dtype alone, so that the order of every sum is.
//
// A row is cut into units of 16 bytes, which a team of threads takes in turn: `lanes` of each of
// `warps` warps. The warps of a team, a crew, have a ring of `stages` in shared memory, each for
// `turns` rows; where a team is part of a warp only, a crew has several and a stage rows for each.
// Rows too long for a block are cut into `cluster` parts, one per block of a cluster.
struct RowsGeometry {
  int units_per_thread = 1;
  int lanes = 32, warps = 1;
  int warp_slots = 4;  // of a crew in RowsShared::sums: 4, 8 or 16
  int crews = 1, turns = 1, stages = 3;
  int batch = 16;  // rows of a crew that are described at once; a power of 2, whole stages
  int cluster = 1;
  int block_units = 0;   // of a row
  int parts = 1;         // blocks, or clusters: each has a row of partial sums
  bool chunked = false;  // more than kChunkRows + kMostChunks rows per team
  bool ahead = false;    // a row's sums travel while dx of the one before is written
  // From the first row of a block or cluster, and of a crew, to that of the next one.
  int64_t part_step = 0, crew_step = 0;

  // Where the slots of a crew's blocks are: 8, or 16 if it is the only one.
  constexpr int block_slots(int crew) const { return crews * warp_slots + crew * 8; }
  constexpr int threads() const { return crews * warps * 32; }
  // Units of a row that a team has room for.
  constexpr int team_units() const { return units_per_thread * warps * lanes; }
  constexpr int teams() const { return crews * (32 / lanes); }
  constexpr int stage_rows() const { return turns * (32 / lanes); }
  constexpr int step_rows() const { return crews * stage_rows(); }
  // Of a crew in shared memory: two batches of rows described, the statistics of a third.
  constexpr int scales_bytes() const {
    return batch * static_cast<int>(2 * sizeof(RowScales) + sizeof(RowStats));
  }
};

// Column sums are fp32 over so many rows in registers, over so many such chunks in shared memory
// and over the crews of a block, and float64 from there on.
inline constexpr int kChunkRows = 16;
inline constexpr int kMostChunks = 10;

// A row too long for any number of blocks has a `cluster` above kMaxCluster, and nothing else.
RowsGeometry geometry_of(const RowsProblem& problem);

// fp32 rows of odd lengths: a crew's lie in the same place of a cache line if they are 128 apart,
// and stages have room for them to keep it. (16-bit rows are bound by instructions, and lose by
// it.)
bool keeps_lines(const RowsProblem& problem, const RowsGeometry& geometry);

// Bytes of a row of one tensor in a stage. plain: rows start at multiples of 16 bytes and have
// whole units; others keep the phase of their address.
int slot_bytes(const RowsProblem& problem, const RowsGeometry& geometry, bool plain);

// Where things are in shared memory, in this order.
struct RowsMemory {
  static constexpr int kMost = 227 * 1024;
  RowsMemory(const RowsProblem& problem, const RowsGeometry& geometry, bool plain);
  int gamma_at, scales_at, travel_at, places_at, chunks_at, ring_at, bytes;
};

}  // namespace normgrad::cuda
