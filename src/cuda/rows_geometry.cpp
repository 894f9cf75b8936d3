#include "cuda/rows_geometry.hpp"

#include <algorithm>
#include <bit>

namespace normgrad::cuda {
namespace {

constexpr int kWarps = 16;  // of a block: one block fills a multiprocessor

int unit_of(DType dtype) { return static_cast<int>(16 / size_of(dtype)); }

// How many blocks or clusters, from everything else.
void deal_parts(const RowsProblem& problem, RowsGeometry& g) {
  // As many as fit on an H200 at once; more where a team would get more rows than chunks hold.
  constexpr int kParts[] = {132, 66, 30, 15, 7};
  const int64_t steps = divide_up(problem.rows, g.step_rows());
  const int64_t most_rows = static_cast<int64_t>(kChunkRows) * kMostChunks;
  const int64_t resident =
      keeps_lines(problem, g) ? 128 : kParts[std::countr_zero(static_cast<unsigned>(g.cluster))];
  g.parts = static_cast<int>(std::max<int64_t>(
      {1, std::min(resident, steps), divide_up(problem.rows, g.teams() * most_rows)}));
  g.chunked = divide_up(steps, g.parts) * g.turns > kChunkRows + kMostChunks;
}

}  // namespace

bool keeps_lines(const RowsProblem& problem, const RowsGeometry& geometry) {
  return problem.dtype == DType::kF32 && problem.cols % 4 != 0 && geometry.cluster == 1 &&
         geometry.warps > 2;
}

RowsGeometry geometry_of(const RowsProblem& problem) {
  const int unit = unit_of(problem.dtype);
  const int64_t units = divide_up(problem.cols, unit);
  RowsGeometry g;
  const auto fits = [&] {
    return RowsMemory(problem, g, /*plain=*/false).bytes <= RowsMemory::kMost;
  };
  g.units_per_thread = kColumnsPerThread / unit;
  if (units <= 16 * g.units_per_thread) {
    const auto all = static_cast<unsigned>(std::max<int64_t>(units, 1));
    g.units_per_thread = std::min(g.units_per_thread, static_cast<int>(std::bit_ceil(all)));
    g.lanes = static_cast<int>(std::bit_ceil(all)) / g.units_per_thread;
    g.block_units = static_cast<int>(units);
    g.crews = kWarps;
    g.stages = 2;
    // As few lanes as there is memory for, whatever the number of rows: the order in which a row is
    // added must not depend on it.
    g.chunked = true;
    while (g.batch = g.stage_rows(), !fits()) {
      g.units_per_thread /= 2;
      g.lanes *= 2;
    }
    g.turns = std::min(4, g.lanes);  // a stage has no more rows than a warp has lanes
    g.batch = g.stage_rows();
  } else {
    // Two crews to a block: one works while the other waits for sums. Clusters of 16 leave 20 of
    // 132 multiprocessors out, so rows for 16 of them are cut into 8, one crew each, if they can.
    const int64_t half = int64_t{kWarps} / 2 * 32 * g.units_per_thread;
    const auto blocks = static_cast<uint64_t>(divide_up(units, half));
    g.cluster = static_cast<int>(std::bit_ceil(blocks <= 8 ? blocks : (blocks + 1) / 2));
    if (g.cluster > kMaxCluster) return g;
    g.block_units = static_cast<int>(divide_up(units, g.cluster));
    g.warps = static_cast<int>(divide_up(g.block_units, 32 * g.units_per_thread));
    g.warp_slots = std::max(4, static_cast<int>(std::bit_ceil(static_cast<unsigned>(g.warps))));
    g.crews = std::max(1, kWarps / g.warps);
    // With more under way, some multiprocessors get more of the memory than others, which then end
    // late: 16384x4096 RMSNorm bf16 105 us with three stages, 101 with two.
    g.stages = g.cluster > 1 ? 3 : 2;
    // Up to kLongRow the rows of other crews fill the time, in fp32 memory takes longer anyway.
    g.ahead = unit == 8 && problem.cols > kLongRow;
    g.batch = g.crews > 1 ? 16 : 8;  // 16 KB at most, and 0.5 KB where little is left
  }
  deal_parts(problem, g);
  while (!fits()) {
    if (g.stages > 2) {
      --g.stages;
    } else {
      g.turns /= 2;
      g.batch = g.stage_rows();
    }
    deal_parts(problem, g);
  }
  // A block's crews have neighbouring stages or, of single rows, each every parts-th row: LayerNorm
  // fp32 32768x1024 100.7 us, not 102.4. Where rows share cache lines they stay neighbours (108.5,
  // not 110.6).
  const bool neighbours = g.lanes < 32 || keeps_lines(problem, g);
  g.part_step = neighbours ? g.step_rows() : 1;
  g.crew_step = neighbours ? g.stage_rows() : g.parts;
  // Rows are described by as many lanes as there is memory for: LayerNorm bf16 1048576x64 103 us by
  // 32, 125 by 8.
  if (g.lanes < 32) {
    g.batch = 32;
    while (!fits()) g.batch /= 2;
  }
  return g;
}

int slot_bytes(const RowsProblem& problem, const RowsGeometry& geometry, bool plain) {
  const auto size = static_cast<int64_t>(size_of(problem.dtype));
  const int64_t bytes = std::min<int64_t>(problem.cols * size, geometry.block_units * 16);
  if (plain) return static_cast<int>(bytes);
  const int64_t pieces = divide_up(bytes, 16) * 16 + 32;
  return static_cast<int>(keeps_lines(problem, geometry) ? divide_up(pieces + 112, 128) * 128
                                                         : pieces);
}

RowsMemory::RowsMemory(const RowsProblem& problem, const RowsGeometry& geometry, bool plain) {
  const auto aligned = [](int offset, int to) {
    return static_cast<int>(divide_up(offset, to)) * to;
  };
  const int unit = unit_of(problem.dtype);
  const int kinds = is_rms(problem.statistics) ? 1 : 2;
  const int sums = 4 * kinds * geometry.units_per_thread * unit * geometry.threads();
  const int rows = geometry.crews * geometry.stages * geometry.stage_rows();
  gamma_at = aligned(sizeof(RowsShared), 16);
  scales_at = gamma_at + 4 * unit * geometry.team_units();
  travel_at = aligned(scales_at + geometry.crews * geometry.scales_bytes(), 16);
  places_at =
      travel_at + (geometry.ahead ? geometry.crews * static_cast<int>(sizeof(TravellingSums)) : 0);
  chunks_at = aligned(places_at + (plain ? 0 : static_cast<int>(sizeof(RowPlace)) * rows), 128);
  ring_at = chunks_at + (geometry.chunked ? sums : 0);
  // A team looks at all units that it has room for.
  const int behind = 16 * (geometry.team_units() - geometry.block_units);
  bytes = std::max(chunks_at + sums,
                   ring_at + 2 * rows * slot_bytes(problem, geometry, plain) + behind);
}

}  // namespace normgrad::cuda
