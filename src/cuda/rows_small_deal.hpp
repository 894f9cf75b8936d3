// How a small LayerNorm or RMSNorm is dealt out: blocks for its columns, and blocks for its rows.
// Plain C++, tested without a GPU.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cuda/rows_geometry.hpp"

namespace normgrad::cuda {

// A function of shape and dtype alone.
struct SmallDeal {
  static constexpr int kThreads = 256;  // of a block: a row of 4096 columns
  static constexpr int kLanes = 8, kSlices = kThreads / kLanes;
  static constexpr int kRowsAtOnce = 4;
  static constexpr int kMostParts = 8;
  static constexpr int kMostSteps = 4;
  static constexpr int64_t kMost = 1 << 22;  // elements

  // Rows have rows_ring's teams, for the same bits of dx: this is its geometry, but for the crews,
  // as many as a block has room for.
  RowsGeometry rows;
  int row_blocks = 0;  // of rows.cluster blocks each; 0 if there are too many rows or columns

  // Columns: a block has a tile of kLanes units of columns, 128 bytes of a row, and one of `parts`
  // parts of the rows, of which each thread takes every kSlices-th, kRowsAtOnce at once, in some
  // steps. The parts of a tile are a cluster.
  int parts = 1, tiles = 0;

  int step_rows() const { return kSlices * kRowsAtOnce * parts; }
  int cluster() const { return std::max(rows.cluster, parts); }
};

// Measured on an H200, in microseconds of LayerNorm bf16, columns alone. 128x4096: lines of 128
// bytes 4.9, of 64 5.1, of 32 5.5. 1024x1024: eight parts of 64 columns 6.0, four 6.2, one part of
// 16 columns 6.5. More than 128 blocks for columns are too many: fp32 1024x2048 with two steps for
// half as many takes 13.3, not 15.6.
inline SmallDeal small_deal_of(const RowsProblem& problem) {
  SmallDeal deal;
  deal.rows = geometry_of(problem);
  RowsGeometry& rows = deal.rows;
  const int unit = static_cast<int>(16 / size_of(problem.dtype));
  if (rows.cluster > 2 || rows.units_per_thread * unit != kColumnsPerThread || problem.rows == 0 ||
      problem.rows > SmallDeal::kMost / problem.cols) {
    return {};
  }
  rows.crews = SmallDeal::kThreads / 32 / rows.warps;
  deal.tiles = static_cast<int>(divide_up(problem.cols, SmallDeal::kLanes * unit));
  const auto steps = [&] { return divide_up(problem.rows, deal.step_rows()); };
  const int most = rows.cluster > 1 ? rows.cluster : SmallDeal::kMostParts;
  while (deal.parts < most && (steps() > 2 || (steps() > 1 && deal.tiles * deal.parts < 128))) {
    deal.parts *= 2;
  }
  if (steps() > SmallDeal::kMostSteps) return {};
  deal.row_blocks = static_cast<int>(divide_up(problem.rows, rows.teams()));
  return deal;
}

// Where it is the fastest kernel. Everything is read twice, or three times, mostly from the
// second-level cache, and odd rows by elements. 4096x1000 on an H200: LayerNorm bf16 14.5 us, fp32
// 23.9, rows_ring 19.9 and 23.5; RMSNorm bf16 that takes r from x 20.2, rows_ring 18.2.
inline bool is_small(const RowsProblem& problem) {
  const auto size = static_cast<int64_t>(size_of(problem.dtype));
  const bool from_x = problem.statistics == RowStatistics::kFromX;
  const int64_t most =
      problem.cols * size % 16 != 0 ? 1 << 20 : (from_x ? 1 << 22 : 1 << 23) / size;
  return problem.cols > 0 && problem.rows <= most / problem.cols;
}

}  // namespace normgrad::cuda
