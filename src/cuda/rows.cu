// LayerNorm and RMSNorm on the GPU: which kernel, and how the rows are dealt out.
#include <algorithm>
#include <bit>
#include <string>

#include "cuda/device.hpp"
#include "cuda/finish.hpp"
#include "cuda/kernels.hpp"
#include "cuda/launch.cuh"
#include "cuda/rows_scalars.cuh"
#include "cuda/rows_small_deal.hpp"
#include "cuda/rows_team.cuh"
#include "ops/operands.hpp"

namespace normgrad::cuda {
namespace {

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

// Sets the bounds of a tensor.
void bound(const RowsProblem& problem, const RowsProblem::LeadStrides& strides, const void* data,
           const char*& low, const char*& high) {
  const auto size = static_cast<int64_t>(size_of(problem.dtype));
  low = static_cast<const char*>(data);
  high = low + problem.cols * size;
  for (int axis = 0; axis < problem.lead_rank; ++axis) {
    const int64_t last = (problem.lead_extent[axis] - 1) * strides[axis] * size;
    (last < 0 ? low : high) += last;
  }
}

Status launch_rows(const RowsProblem& problem, const Buffers& buffers, void* workspace,
                   void* stream) {
  const RowsGeometry geometry = geometry_of(problem);
  const RowsWorkspace layout(problem, geometry);
  const int unit = static_cast<int>(16 / size_of(problem.dtype));
  const bool plain = problem.cols % unit == 0 && problem.lead_rank <= 1 &&
                     has_aligned_rows(problem, problem.x, buffers.x) &&
                     has_aligned_rows(problem, problem.dy, buffers.dy) &&
                     (!problem.has_dx || has_aligned_rows(problem, problem.dx, buffers.dx)) &&
                     (!problem.has_dh || has_aligned_rows(problem, problem.dh, buffers.dh));
  RowsLaunch launch;
  launch.problem = problem;
  launch.buffers = buffers;
  launch.geometry = geometry;
  launch.groups = 32 / geometry.lanes;
  launch.stage_rows = geometry.stage_rows();
  launch.stage_bits = std::countr_zero(static_cast<unsigned>(launch.stage_rows));
  launch.row_stride = static_cast<int64_t>(geometry.parts) * geometry.step_rows();
  launch.ring_stride = geometry.stages * launch.row_stride;
  launch.per_col = 1 / static_cast<double>(problem.cols);
  const auto packed = [&](const RowsProblem::LeadStrides& lead) {
    return geometry.cluster == 1 && problem.lead_rank == 1 && lead[0] == problem.cols;
  };
  launch.x_packed = packed(problem.x);
  launch.dy_packed = packed(problem.dy);
  launch.in_pieces = launch.stage_rows == 1 || (launch.x_packed && launch.dy_packed);
  bound(problem, problem.x, buffers.x, launch.low[kRowX], launch.high[kRowX]);
  bound(problem, problem.dy, buffers.dy, launch.low[kRowDy], launch.high[kRowDy]);
  launch.slot_bytes = slot_bytes(problem, geometry, plain);
  launch.stage_bytes = launch.slot_bytes * launch.stage_rows;
  launch.partials = static_cast<float*>(workspace);
  launch.padded_cols = layout.padded_cols;
  auto* offsets = reinterpret_cast<int64_t*>(static_cast<char*>(workspace) + layout.partials);
  NORMGRAD_RETURN_IF_ERROR(locate_rows(launch, offsets, stream));

  launch.dx_stride = launch.row_stride * launch.strides[kRowDx];
  // And only the first and the last row are next to the ends of their tensor.
  const auto keeps_phase = [&](RowTensor tensor) {
    const int64_t bytes = launch.strides[tensor] * (16 / unit);
    return launch.row_stride * bytes % 16 == 0 && std::abs(bytes) >= 16;
  };
  launch.one_phase = !plain && geometry.lanes == 32 && problem.lead_rank == 1 &&
                     keeps_phase(kRowX) && keeps_phase(kRowDy) &&
                     (!problem.has_dx || keeps_phase(kRowDx));
  launch.one_line = launch.one_phase && keeps_lines(problem, geometry);
  for (const RowTensor tensor : {kRowX, kRowDy}) {
    launch.piece_stride[tensor] = launch.row_stride * launch.strides[tensor] * (16 / unit);
  }

  const RowsMemory memory(problem, geometry, plain);
  launch.gamma_at = memory.gamma_at;
  launch.scales_at = memory.scales_at;
  launch.travel_at = memory.travel_at;
  launch.places_at = memory.places_at;
  launch.chunks_at = memory.chunks_at;
  launch.ring_at = memory.ring_at;
  Launch shape;
  shape.grid = static_cast<unsigned>(geometry.parts * geometry.cluster);
  shape.block = static_cast<unsigned>(geometry.threads());
  shape.shared = static_cast<size_t>(memory.bytes);
  shape.cluster = static_cast<unsigned>(geometry.cluster);
  const auto find = problem.dtype == DType::kF32   ? rows_kernel_f32
                    : problem.dtype == DType::kF16 ? rows_kernel_f16
                                                   : rows_kernel_bf16;
  const RowsKernel kernel = find({.statistics = problem.statistics,
                                  .units_per_thread = geometry.units_per_thread,
                                  .plain = plain,
                                  .is_short = geometry.lanes < 32,
                                  .dh = problem.has_dh,
                                  .ahead = geometry.ahead && plain && !problem.has_dh});
  NORMGRAD_RETURN_IF_ERROR(launch_kernel(kernel, shape, stream, launch));
  if (layout.partials == 0 || (!problem.dgamma.present && !problem.dbeta.present)) return {};
  return finish_columns({launch.partials,
                         geometry.parts,
                         problem.cols,
                         layout.padded_cols,
                         {problem.dgamma, problem.dbeta},
                         {buffers.dgamma, buffers.dbeta}},
                        stream);
}

// Where rows_across is the fastest (measured on an H200): rows too long for a cluster, and 16-bit
// ones for which it takes 16 blocks. Not by the number of rows: a row's bits must not depend on it.
bool suits_across(const RowsProblem& problem, const RowsGeometry& geometry) {
  const int64_t size = static_cast<int64_t>(size_of(problem.dtype));
  return geometry.cluster > kMaxCluster ||
         (size == 2 && geometry.cluster == kMaxCluster && problem.cols * size % 16 == 0);
}

}  // namespace

bool has_aligned_rows(const RowsProblem& problem, const RowsProblem::LeadStrides& strides,
                      const void* data) {
  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  bool aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (int axis = 0; axis < problem.lead_rank; ++axis)
    aligned = aligned && strides[axis] % unit == 0;
  return aligned;
}

Status check_no_dh(const char* kernel, const RowsProblem& problem) {
  if (!problem.has_dh) return {};
  return {Code::kUnsupportedDevice, std::string(kernel) + ": expected no dh"};
}

Status choose_rows(const RowsProblem& problem, Kernel<RowsProblem>& kernel) {
  if (is_small(problem) && choose_small_rows(problem, kernel).ok()) return {};
  return choose_ring_rows(problem, kernel);
}

Status choose_ring_rows(const RowsProblem& problem, Kernel<RowsProblem>& kernel) {
  const RowsGeometry geometry = geometry_of(problem);
  if (suits_across(problem, geometry) && choose_rows_across(problem, kernel).ok()) return {};
  const bool short_dh = problem.has_dh && geometry.lanes < 32;
  if (short_dh || geometry.cluster > kMaxCluster || !check_hopper("").ok()) {
    return choose_split_rows(problem, kernel);
  }
  kernel = {geometry.cluster > 1 ? "rows_cluster" : "rows_ring",
            RowsWorkspace(problem, geometry).bytes(), &launch_rows};
  return {};
}

}  // namespace normgrad::cuda
