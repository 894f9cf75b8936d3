// How the rows of a small LayerNorm or RMSNorm are dealt out: 16 columns of one row to each thread.
// Plain C++, tested without a GPU.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cuda/rows_geometry.hpp"

namespace normgrad::cuda {

// A function of shape and dtype alone. A row has the threads that rows_ring's team has, for the
// same bits of dx, spread over the blocks of a cluster.
struct SmallDeal {
  static constexpr int kMostWarps = 16;    // of a block
  static constexpr int kMostBlocks = 128;  // at once, if there are as many multiprocessors

  int row_threads = 0;  // of rows_ring's team in a block
  int parts = 1;        // its blocks: 1 or 2
  int cluster = 1;
  int threads = 0;  // of a row in a block, some of them perhaps without columns
  int slots = 1;    // their warps: a power of 2
  int teams = 1;    // rows of a block
  int groups = 0;   // of `teams` rows; 0 if the rows are too many or too long
  int items = 1;    // of 4 columns that a block adds up in the end: a power of 2

  int blocks() const { return cluster * groups; }
};

// Measured on an H200, in microseconds of LayerNorm bf16: a cluster that has all the rows spares
// the barrier over the grid (8x4096: 5.8, with it 13); one row gains nothing from more than 8
// blocks. Groups of 8 rows in blocks of one warp per row are best while they have a multiprocessor
// each (64x1024: 7.6, with 4 rows 8.1, with 2 9.1; 128x4096: 8.9, with 4 rows 9.5).
inline SmallDeal small_deal_of(const RowsProblem& problem) {
  const RowsGeometry ring = geometry_of(problem);
  const int unit = static_cast<int>(16 / size_of(problem.dtype));
  if (ring.cluster > 2 || ring.units_per_thread * unit != kColumnsPerThread || problem.rows == 0) {
    return {};
  }
  SmallDeal deal;
  deal.row_threads = ring.lanes * ring.warps;
  deal.parts = ring.cluster;
  const int slots =
      ring.cluster * static_cast<int>(std::bit_ceil(static_cast<unsigned>(ring.warps)));
  const auto fits = [&](int cluster, int teams) {
    deal.cluster = cluster;
    deal.slots = slots / cluster;
    deal.threads = std::min(deal.row_threads, 32) * deal.slots;
    const int whole = std::max(1, 32 / deal.threads);  // teams of a warp
    deal.teams = static_cast<int>(
        std::min<int64_t>(divide_up(problem.rows, whole) * whole, std::max(teams, whole)));
    deal.groups = static_cast<int>(std::min<int64_t>(divide_up(problem.rows, deal.teams),
                                                     SmallDeal::kMostBlocks + int64_t{1}));
    const int warps = deal.threads * deal.teams / 32;
    // Two blocks of 8 warps have room on a multiprocessor; of clusters of larger blocks, not all
    // multiprocessors have one.
    return warps <= SmallDeal::kMostWarps &&
           deal.blocks() <= (warps > 8 && cluster > 2 ? 112 : SmallDeal::kMostBlocks);
  };
  const auto search = [&] {
    const int all = slots > 1 ? 16 : std::min(32, 512 / deal.row_threads);
    if (fits(problem.rows == 1 ? std::min(slots, 8) : slots, all) && deal.groups == 1) return true;
    for (const int teams : {8, 16, 32, 4, 2, 1}) {
      for (int cluster = slots; cluster > 0; cluster /= 2) {
        if (fits(cluster, teams)) return true;
      }
    }
    return false;
  };
  if (!search()) return {};
  const int64_t kinds = is_rms(problem.statistics) ? 1 : 2;
  const int64_t items = divide_up(kinds * divide_up(problem.cols, 32) * 8, deal.blocks());
  deal.items = static_cast<int>(
      std::clamp<int64_t>(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(items))), 4,
                          std::min(32, deal.threads * deal.teams)));
  return deal;
}

}  // namespace normgrad::cuda
