// How rows are dealt out on a GPU, for shapes that nobody thought of: everything fits, every column
// has a thread, and no sum in float32 gets too long. No GPU is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "cuda/channels_team_deal.hpp"
#include "cuda/rows_across_deal.hpp"
#include "cuda/rows_geometry.hpp"
#include "cuda/rows_small_deal.hpp"

namespace normgrad::cuda {
namespace {

void expect_sound(const RowsProblem& problem) {
  SCOPED_TRACE(testing::Message() << problem.rows << "x" << problem.cols << " "
                                  << name_of(problem.dtype));
  const RowsGeometry g = geometry_of(problem);
  if (g.cluster > kMaxCluster) {  // for another kernel
    ASSERT_GT(problem.cols, 65536);
    return;
  }
  const int unit = static_cast<int>(16 / size_of(problem.dtype));
  const int64_t units = divide_up(problem.cols, unit);
  ASSERT_GE(g.team_units(), g.block_units);
  ASSERT_GE(int64_t{g.block_units} * g.cluster, units);
  ASSERT_LT(int64_t{g.block_units} * (g.cluster - 1), units);  // no block is without columns
  ASSERT_LE(g.crews * g.warps, kMaxWarps);
  ASSERT_GE(g.warp_slots, g.warps);
  ASSERT_TRUE(g.warps == 1 || g.crews * g.warp_slots <= kSumSlots);
  ASSERT_TRUE(g.cluster <= 8 || g.crews == 1);
  ASSERT_TRUE(g.cluster == 1 || g.block_slots(g.crews - 1) + std::max(8, g.cluster) <= kSumSlots);
  ASSERT_TRUE(g.cluster == 1 || g.crews <= kClusterCrews);
  ASSERT_LE(g.units_per_thread * unit, 16);
  ASSERT_TRUE(!g.ahead || (g.cluster > 1 && g.warps > 1));
  ASSERT_LE(g.stage_rows(), 32);  // a lane for the statistics of each
  ASSERT_LE(g.batch, 32);
  ASSERT_TRUE(std::has_single_bit(unsigned(g.batch)) && g.batch % g.stage_rows() == 0);
  ASSERT_TRUE(g.lanes < 32 || 2 * g.batch % kChunkRows == 0);
  ASSERT_GE(g.turns, 1);
  ASSERT_GE(g.stages, 2);
  ASSERT_LE(g.stages, kMaxStages);
  // What the kernel takes for granted.
  ASSERT_TRUE(g.lanes < 32 || (g.stage_rows() == 1 && g.units_per_thread * unit == 16));
  ASSERT_TRUE(g.lanes == 32 || g.warps * g.cluster == 1);
  for (const bool plain : {false, true}) {
    ASSERT_LE(RowsMemory(problem, g, plain).bytes, RowsMemory::kMost);
  }
  // Every row is one crew's.
  if (problem.rows <= 1000 && g.lanes == 32) {
    std::vector<int> taken(static_cast<size_t>(problem.rows));
    for (int part = 0; part < g.parts; ++part) {
      for (int crew = 0; crew < g.crews; ++crew) {
        int64_t row = part * g.part_step + crew * g.crew_step;
        for (; row < problem.rows; row += int64_t{g.parts} * g.step_rows()) ++taken[row];
      }
    }
    ASSERT_EQ(std::count(taken.begin(), taken.end(), 1), problem.rows);
  }
  // Roundings of a column sum: over a chunk in registers, over the chunks, over the crews.
  const int64_t rows_per_team =
      divide_up(divide_up(problem.rows, g.step_rows()), g.parts) * g.turns;
  const int64_t additions =
      (g.chunked ? kChunkRows + divide_up(rows_per_team, kChunkRows) : rows_per_team) + 2 +
      divide_up(g.crews, 4) - 1;
  ASSERT_LE(additions, 2 * kChunkRows);
}

void expect_sound_deal(const RowsProblem& problem) {
  const SmallDeal deal = small_deal_of(problem);
  if (deal.row_blocks == 0) {  // for another kernel
    ASSERT_TRUE(problem.rows > 4096 || problem.rows * problem.cols > SmallDeal::kMost ||
                (problem.cols > 4096 && problem.rows > 1024) || problem.cols <= 32 ||
                problem.cols > 8192);
    return;
  }
  SCOPED_TRACE(testing::Message() << problem.rows << "x" << problem.cols << " "
                                  << name_of(problem.dtype));
  // Rows: the ring's teams.
  const RowsGeometry ring = geometry_of(problem);
  const int unit = static_cast<int>(16 / size_of(problem.dtype));
  ASSERT_EQ(deal.rows.team_units(), ring.team_units());
  ASSERT_EQ(deal.rows.cluster, ring.cluster);
  ASSERT_GE(deal.rows.crews, 1);
  ASSERT_LE(deal.rows.threads(), SmallDeal::kThreads);
  ASSERT_GE(int64_t{deal.row_blocks} * deal.rows.teams(), problem.rows);
  ASSERT_LT(int64_t{deal.row_blocks - 1} * deal.rows.teams(), problem.rows);
  // Columns: all of them, in few roundings.
  ASSERT_TRUE(std::has_single_bit(unsigned(deal.parts)));
  ASSERT_GE(int64_t{deal.tiles} * SmallDeal::kLanes * unit, problem.cols);
  ASSERT_LT(int64_t{deal.tiles - 1} * SmallDeal::kLanes * unit, problem.cols);
  ASSERT_TRUE(deal.cluster() == deal.parts || deal.parts == 1);
  ASSERT_LE(deal.cluster(), 8);
  const int64_t steps = divide_up(problem.rows, deal.step_rows());
  ASSERT_LE(steps * SmallDeal::kRowsAtOnce + SmallDeal::kSlices / 4 + 2, 32);
}

TEST(CudaGeometry, EveryLengthOfRows) {
  RowsProblem problem;
  problem.lead_rank = 1;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    problem.dtype = dtype;
    for (problem.cols = 1; problem.cols < 140000; problem.cols += problem.cols < 4200 ? 1 : 61) {
      for (const int64_t rows : {int64_t{1}, int64_t{1000}, int64_t{10000000}}) {
        problem.rows = rows;
        expect_sound(problem);
        if (HasFatalFailure()) return;
      }
      for (const int64_t rows : {1, 2, 8, 17, 70, 128, 300, 1024, 4000}) {
        problem.rows = rows;
        expect_sound_deal(problem);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The same for blocks that have some columns of all rows.
TEST(CudaGeometry, ColumnsOfAnyLength) {
  for (int64_t cols = 1; cols < 600000; cols += 1 + cols / 50) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(testing::Message() << cols << " " << name_of(dtype));
      const AcrossDeal deal = across_deal_of(cols, dtype);
      const int64_t units = divide_up(cols, static_cast<int64_t>(16 / size_of(dtype)));
      if (deal.blocks == 0) {  // for another kernel
        ASSERT_GT(units, 132 * 512);
        continue;
      }
      ASSERT_LE(deal.blocks, AcrossDeal::kBlocks);
      ASSERT_GE(int64_t{deal.blocks} * deal.slice, units);
      ASSERT_LT(int64_t{deal.blocks - 1} * deal.slice, units);  // no block is without columns
      ASSERT_GE(deal.warps * 32, deal.slice);
      ASSERT_LE(deal.workers(), AcrossDeal::kWarps);
      ASSERT_GE(deal.groups, 1);
      ASSERT_LE(deal.round_rows(), 32);  // a lane for each
      ASSERT_GE(deal.slots, 13);
      ASSERT_LE(deal.slots, AcrossDeal::kMostSlots);
      ASSERT_LE(deal.workers() * deal.slots * 32 * 32, AcrossDeal::kRing);
    }
  }
}

TEST(CudaGeometry, AnyShape) {
  std::mt19937_64 random(1);
  const auto up_to = [&](double exponent) {
    return static_cast<int64_t>(std::exp2(std::uniform_real_distribution<>(0, exponent)(random)));
  };
  for (int i = 0; i < 200000; ++i) {
    RowsProblem problem;
    problem.lead_rank = 1;
    problem.dtype = static_cast<DType>(random() % 3);
    problem.statistics = random() % 2 ? RowStatistics::kFromX : RowStatistics::kMeanRstd;
    problem.rows = up_to(33);
    problem.cols = up_to(21);
    expect_sound(problem);
    problem.rows = up_to(13);
    expect_sound_deal(problem);
    if (HasFatalFailure()) return;
  }
}

// How channels are dealt out to teams: every chunk has a warp, every ring room, and sums that run
// ahead of dx have slots and carriers.
TEST(CudaGeometry, TeamsForAnyChannels) {
  std::mt19937_64 random(1);
  const auto any = [&](int bits) {
    return static_cast<int64_t>(1 + random() % (uint64_t{1} << (1 + random() % bits)));
  };
  int deals = 0;
  for (int i = 0; i < 20000; ++i) {
    ChannelsProblem problem;
    problem.dtype = i % 2 ? DType::kF32 : DType::kBF16;
    problem.samples = any(16);
    problem.channels = any(12);
    problem.length = any(22);
    const Deal deal = deal_of(problem);
    if (deal.blocks == 0) continue;
    ++deals;
    SCOPED_TRACE(testing::Message() << problem.samples << "x" << problem.channels << "x"
                                    << problem.length << " " << name_of(problem.dtype));
    ASSERT_LE(deal.teams * deal.blocks, Deal::kBlocks);
    ASSERT_EQ(int64_t{deal.rounds} * deal.teams + deal.longer, problem.channels);
    ASSERT_GE(deal.rounds, 1);
    ASSERT_LE(deal.in_all, int64_t{deal.blocks} * Deal::kWarps * deal.share);
    ASSERT_LE(deal.chunk, Deal::kChunk);
    ASSERT_LE(deal.slots * Deal::kWarps * 2 * 16 * deal.chunk, Deal::kShared);
    ASSERT_GE(deal.first_room, 1);
    ASSERT_GE(deal.others_room, 1);
    ASSERT_LE(deal.first_room + deal.others_room * (deal.share - 1), deal.slots);
    ASSERT_LE(deal.slots, Deal::kMostSlots);
    ASSERT_LT(deal.ahead, Deal::kCarriers);
    ASSERT_LE(deal.ahead, deal.first_room);
    ASSERT_TRUE(deal.share == 1 || deal.ahead < deal.others_room);
    ASSERT_TRUE(!deal.clustered || deal.blocks <= Deal::kMostCluster);
  }
  ASSERT_GT(deals, 1000);
}

}  // namespace
}  // namespace normgrad::cuda
