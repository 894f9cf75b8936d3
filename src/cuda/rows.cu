// LayerNorm and RMSNorm on the GPU: which kernel, and how the rows are dealt out.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

#include "cuda/finish.hpp"
#include "cuda/kernels.hpp"
#include "cuda/launch.cuh"
#include "cuda/rows_scalars.cuh"
#include "cuda/rows_split.hpp"
#include "cuda/rows_team.cuh"
#include "ops/operands.hpp"

namespace normgrad::cuda {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// In the order of the workspace: partial sums, then the offsets of rows.
struct RowsWorkspace {
  explicit RowsWorkspace(const RowsProblem& problem, const RowsGeometry& geometry) {
    padded_cols = divide_up(problem.cols, 32) * 32;
    partials = geometry.parts > 1 ? sizeof(float) * 2 * geometry.parts * padded_cols : 0;
    offsets = problem.lead_rank > 1 ? sizeof(int64_t) * kRowTensors * problem.rows : 0;
  }
  int64_t padded_cols;
  size_t partials, offsets;
  size_t bytes() const { return partials + offsets; }
};

constexpr int kBlockWarps = 8, kMaxBlockWarps = 16;
constexpr int kColumnsPerThread = 16;

RowsGeometry geometry_of(const RowsProblem& problem) {
  const int unit = static_cast<int>(16 / size_of(problem.dtype));
  const int64_t units = divide_up(problem.cols, unit);
  const int64_t row_bytes = problem.cols * static_cast<int64_t>(size_of(problem.dtype));
  RowsGeometry g;
  int most = kColumnsPerThread / unit;
  if (units <= 32) {
    g.lanes = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(units)));
    g.crews = kBlockWarps;
    g.block_units = static_cast<int>(units);
  } else {
    g.cluster = static_cast<int>(
        std::bit_ceil(static_cast<uint64_t>(divide_up(units, kMaxBlockWarps * 32 * most))));
    g.block_units = static_cast<int>(divide_up(units, g.cluster));
    // The fewest idle threads; the most columns per thread if that is equal.
    int64_t best = INT64_MAX;
    for (int per_thread = most; per_thread >= 1; per_thread /= 2) {
      const int64_t warps = divide_up(g.block_units, 32 * per_thread);
      const int64_t slots = warps * 32 * per_thread;
      if (warps > kMaxBlockWarps || slots >= best) continue;
      best = slots;
      g.units_per_thread = per_thread;
      g.warps = static_cast<int>(warps);
    }
    g.crews = std::max(1, kBlockWarps / g.warps);
  }
  if (const char* tune = std::getenv("NORMGRAD_TUNE")) {
    int u = 0, w = 0, t = 0, turns = 0, stages = 0, parts = 0, c = 0;
    std::sscanf(tune, "%d,%d,%d,%d,%d,%d,%d", &u, &w, &t, &turns, &stages, &parts, &c);
    if (c) {
      g.cluster = c;
      g.block_units = static_cast<int>(divide_up(units, g.cluster));
    }
    if (u) g.units_per_thread = u;
    if (w) g.warps = w;
    if (t) g.crews = t;
  }
  g.turns = static_cast<int>(std::clamp<int64_t>(
      1024 * g.warps / (32 / g.lanes * std::max<int64_t>(row_bytes, 1)), 1, g.lanes));
  int parts = g.cluster > 1 ? (g.cluster == 2   ? 66
                               : g.cluster == 4 ? 30
                               : g.cluster == 8 ? 15
                                                : 7)
              : g.warps > 8 ? 132
                            : 264;
  if (const char* tune = std::getenv("NORMGRAD_TUNE")) {
    int u = 0, w = 0, t = 0, turns = 0, stages = 0, p = 0, c = 0;
    std::sscanf(tune, "%d,%d,%d,%d,%d,%d,%d", &u, &w, &t, &turns, &stages, &p, &c);
    if (turns) g.turns = turns;
    if (stages) g.stages = stages;
    if (p) parts = p;
  }
  const int64_t steps = divide_up(problem.rows, g.step_rows());
  const int64_t most_rows = static_cast<int64_t>(kChunkRows) * kChunkRows;  // per team
  g.parts = static_cast<int>(std::max<int64_t>(
      {1, std::min<int64_t>(parts, steps), divide_up(problem.rows, g.teams() * most_rows)}));
  g.chunked = divide_up(steps, g.parts) * g.turns > 2 * kChunkRows;
  return g;
}

// Whether all rows of a tensor start at multiples of 16 bytes.
bool has_aligned_rows(const RowsProblem& problem, const RowsProblem::LeadStrides& strides,
                      const void* data) {
  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  bool aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (int axis = 0; axis < problem.lead_rank; ++axis)
    aligned = aligned && strides[axis] % unit == 0;
  return aligned;
}

Status launch_rows(const RowsProblem& problem, const Buffers& buffers, void* workspace,
                   void* stream) {
  const RowsGeometry geometry = geometry_of(problem);
  const RowsWorkspace layout(problem, geometry);
  const int unit = static_cast<int>(16 / size_of(problem.dtype));
  const auto size = static_cast<int64_t>(size_of(problem.dtype));
  const bool plain = problem.cols % unit == 0 && problem.lead_rank <= 1 &&
                     has_aligned_rows(problem, problem.x, buffers.x) &&
                     has_aligned_rows(problem, problem.dy, buffers.dy) &&
                     (!problem.has_dx || has_aligned_rows(problem, problem.dx, buffers.dx));
  RowsLaunch launch;
  launch.problem = problem;
  launch.buffers = buffers;
  launch.geometry = geometry;
  launch.groups = 32 / geometry.lanes;
  launch.stage_rows = geometry.stage_rows();
  launch.row_stride = static_cast<int64_t>(geometry.parts) * geometry.step_rows();
  launch.per_col = 1 / static_cast<double>(problem.cols);
  const auto packed = [&](const RowsProblem::LeadStrides& lead) {
    return geometry.cluster == 1 && problem.lead_rank == 1 && lead[0] == problem.cols;
  };
  launch.x_packed = packed(problem.x);
  launch.dy_packed = packed(problem.dy);
  const int64_t row_bytes = std::min<int64_t>(problem.cols, geometry.block_units * unit) * size;
  launch.slot_bytes = static_cast<int>(plain ? row_bytes : divide_up(row_bytes, 16) * 16 + 32);
  launch.stage_bytes = launch.slot_bytes * geometry.stage_rows();
  if (!plain && launch.x_packed && launch.dy_packed) {
    launch.stage_bytes =
        static_cast<int>(divide_up(row_bytes * geometry.stage_rows(), 16) * 16 + 32);
  }
  launch.partials = static_cast<float*>(workspace);
  launch.padded_cols = layout.padded_cols;
  auto* offsets = reinterpret_cast<int64_t*>(static_cast<char*>(workspace) + layout.partials);
  NORMGRAD_RETURN_IF_ERROR(locate_rows(launch, offsets, stream));

  const int columns = geometry.units_per_thread * unit;
  const auto aligned_up = [](int64_t bytes) {
    return static_cast<int>(divide_up(bytes, 128) * 128);
  };
  launch.gamma_at = aligned_up(sizeof(RowsShared));
  launch.scales_at = aligned_up(launch.gamma_at + 4 * unit * geometry.team_units());
  launch.chunks_at =
      aligned_up(launch.scales_at + static_cast<int>(sizeof(RowScales)) * geometry.crews *
                                        geometry.stages * geometry.stage_rows());
  const int sums = (is_rms(problem.statistics) ? 1 : 2) * columns * geometry.threads();
  launch.ring_at = aligned_up(launch.chunks_at + (geometry.chunked ? 4 * sums : 0));
  const int fold = 8 * columns * geometry.threads();
  Launch shape;
  shape.grid = static_cast<unsigned>(geometry.parts * geometry.cluster);
  shape.block = static_cast<unsigned>(geometry.threads());
  shape.shared =
      launch.ring_at + std::max(2 * geometry.crews * geometry.stages * launch.stage_bytes, fold);
  shape.cluster = static_cast<unsigned>(geometry.cluster);
  const auto find = problem.dtype == DType::kF32   ? rows_kernel_f32
                    : problem.dtype == DType::kF16 ? rows_kernel_f16
                                                   : rows_kernel_bf16;
  const RowsKernel kernel =
      find(is_rms(problem.statistics), geometry.units_per_thread, plain, geometry.lanes < 32);
  NORMGRAD_RETURN_IF_ERROR(launch_kernel(kernel, shape, stream, launch));
  if (geometry.parts == 1 || (!problem.dgamma.present && !problem.dbeta.present)) return {};
  return finish_columns({launch.partials,
                         geometry.parts,
                         problem.cols,
                         layout.padded_cols,
                         {problem.dgamma, problem.dbeta},
                         {buffers.dgamma, buffers.dbeta}},
                        stream);
}

}  // namespace

Status choose_rows(const RowsProblem& problem, Kernel<RowsProblem>& kernel) {
  const RowsGeometry geometry = geometry_of(problem);
  if (geometry.cluster > kMaxCluster) {
    kernel = {"rows_split", split_rows_workspace(problem), &launch_split_rows};
  } else {
    kernel = {geometry.cluster > 1 ? "rows_cluster" : "rows_ring",
              RowsWorkspace(problem, geometry).bytes(), &launch_rows};
  }
  return {};
}

}  // namespace normgrad::cuda
