// One launch of the rows kernel: how rows are dealt out to blocks, warps and threads.
#pragma once

#include <cstdint>

#include "normgrad/plan.hpp"
#include "ops/problem.hpp"

namespace normgrad::cuda {

// A function of shape and dtype alone, so that the order of every sum is.
//
// A row is cut into units of 16 bytes, which a team of threads takes in turn: `lanes` of each of
// `warps` warps. The warps of a team, a crew, have a ring of `stages` in shared memory, each for
// `turns` rows; where a team is part of a warp only, a crew has several and a stage rows for each.
// Rows too long for a block are cut into `cluster` parts, one per block of a cluster.
struct RowsGeometry {
  int units_per_thread = 1;
  int lanes = 32, warps = 1;
  int crews = 1, turns = 1, stages = 3;
  int cluster = 1;
  int block_units = 0;   // of a row
  int parts = 1;         // blocks, or clusters: each has a row of partial sums
  bool chunked = false;  // more than 2 * kChunkRows rows per team

  constexpr int threads() const { return crews * warps * 32; }
  // Units of a row that a team has room for.
  constexpr int team_units() const { return units_per_thread * warps * lanes; }
  constexpr int teams() const { return crews * (32 / lanes); }
  constexpr int stage_rows() const { return turns * (32 / lanes); }
  constexpr int step_rows() const { return crews * stage_rows(); }
};

// Column sums are fp32 over so many rows in registers, over as many such chunks in shared memory,
// and float64 from there on.
inline constexpr int kChunkRows = 16;

struct RowsLaunch {
  RowsProblem problem;
  Buffers buffers;
  RowsGeometry geometry;
  int64_t strides[5] = {};           // of the rows of x, dy, dx, mean and spread
  const int64_t* offsets = nullptr;  // or the offset of each row in each of them
  double per_col = 0;
  bool x_packed = false, dy_packed = false;  // rows follow each other without gaps
  int64_t row_stride = 0;  // from a row of a crew's stage to the same in its next stage
  int groups = 1;          // teams of a crew
  int stage_rows = 1;
  int slot_bytes = 0;         // of a row in a stage
  int stage_bytes = 0;        // of one tensor
  float* partials = nullptr;  // parts x {dgamma, dbeta} x padded columns
  int64_t padded_cols = 0;
  // Offsets in shared memory.
  int gamma_at = 0, scales_at = 0, chunks_at = 0, ring_at = 0;
};

// plain: rows of x, dy and dx are evenly spaced, all start at multiples of 16 bytes and have whole
// units. is_short: a row is for fewer than 32 lanes.
using RowsKernel = void (*)(RowsLaunch);
RowsKernel rows_kernel_f32(bool rms, int units_per_thread, bool plain, bool is_short);
RowsKernel rows_kernel_f16(bool rms, int units_per_thread, bool plain, bool is_short);
RowsKernel rows_kernel_bf16(bool rms, int units_per_thread, bool plain, bool is_short);

}  // namespace normgrad::cuda
