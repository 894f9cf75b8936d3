// LayerNorm and RMSNorm backward for calls that are over before a ring is set up. dx and the
// parameters' gradients are made by different blocks of one launch, which do not wait for each
// other: both read x and dy, from memory once. On an H200 a launch alone takes 2.7 us, and what
// blocks told each other over the whole grid cost 3: 1.3 of them because it takes a cooperative
// launch. LayerNorm bf16, cold caches: 8x4096 4.9 us, 128x4096 5.9, 1024x1024 7.6; by the grid 5.8,
// 8.8 and 9.9.
//
// Where RMSNorm takes r from x, a kernel before this one writes the rows' means of squares, for
// which only the columns wait: 128x4096 6.8 us. The only row of a call has a kernel of its own,
// which makes everything: LayerNorm bf16 1x8192 4.6 us, not 5.6.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>
#include <utility>

#include "cuda/device.hpp"
#include "cuda/kernels.hpp"
#include "cuda/launch.cuh"
#include "cuda/rows_small_columns.cuh"
#include "cuda/rows_small_deal.hpp"
#include "cuda/rows_small_only.cuh"
#include "cuda/rows_small_rows.cuh"
#include "ops/operands.hpp"

namespace normgrad::cuda {
namespace {

// Blocks that a multiprocessor has room for: where three had, fp32 would wait for one half of its
// loads before it asks for the other.
template <class T>
constexpr int kBlocks = sizeof(T) == 4 ? 2 : 3;

template <class T, bool kRms, SmallForm kForm, bool kShort>
__global__ void __launch_bounds__(SmallDeal::kThreads, kBlocks<T>)
    small_kernel(const __grid_constant__ SmallLaunch launch,
                 const __grid_constant__ RowsLaunch rest) {
#if NORMGRAD_HOPPER
  char* memory = dynamic_shared<char>();
  if (blockIdx.x < launch.column_blocks) {
    SmallColumns<T, kRms, kForm != SmallForm::kAny>(launch, rest, memory).run();
  } else {
    RowsShared& shared = *reinterpret_cast<RowsShared*>(memory);
    SmallRows<T, kRms, kForm, kShort>(launch, rest, shared, blockIdx.x - launch.column_blocks)
        .write_dx();
  }
#endif
}

template <class T, bool kRms, bool kFloatGamma>
__global__ void __launch_bounds__(SpreadTeam::kBlockWarps * 32)
    only_row_kernel(const __grid_constant__ SmallLaunch launch,
                    const __grid_constant__ RowsLaunch rest) {
#if NORMGRAD_HOPPER
  OnlyRow<T, kRms, kFloatGamma>(launch, rest, *dynamic_shared<RowsShared>()).run();
#endif
}

template <class T, SmallForm kForm, bool kShort>
__global__ void __launch_bounds__(SmallDeal::kThreads, 4)
    squares_kernel(const __grid_constant__ SmallLaunch launch,
                   const __grid_constant__ RowsLaunch rest) {
#if NORMGRAD_HOPPER
  let_next_kernel_start();
  RowsShared& shared = *dynamic_shared<RowsShared>();
  SmallRows<T, true, kForm, kShort>(launch, rest, shared, blockIdx.x).write_mean_square();
#endif
}

using SmallKernel = void (*)(SmallLaunch, RowsLaunch);

struct SmallKernels {
  SmallKernel all = nullptr, squares = nullptr, only_row = nullptr;
};

template <class T, bool kRms, SmallForm kForm, bool kShort>
SmallKernels find_kernels() {
  constexpr SmallForm kData = kForm == SmallForm::kAny ? SmallForm::kAny : SmallForm::kPlain;
  SmallKernels kernels = {&small_kernel<T, kRms, kForm, kShort>};
  if constexpr (kRms) kernels.squares = &squares_kernel<T, kData, kShort>;
  if constexpr (kForm != SmallForm::kAny && !kShort) {
    kernels.only_row = &only_row_kernel<T, kRms, kForm == SmallForm::kFloatGamma>;
  }
  return kernels;
}
template <class T, bool kRms, bool kShort>
SmallKernels find_kernels(SmallForm form) {
  if (form == SmallForm::kAny) return find_kernels<T, kRms, SmallForm::kAny, kShort>();
  if constexpr (sizeof(T) == 2) {
    if (form == SmallForm::kFloatGamma) {
      return find_kernels<T, kRms, SmallForm::kFloatGamma, kShort>();
    }
  }
  return find_kernels<T, kRms, SmallForm::kPlain, kShort>();
}
template <class T>
SmallKernels find_kernels(bool rms, SmallForm form, bool is_short) {
  if (rms) return is_short ? find_kernels<T, true, true>(form) : find_kernels<T, true, false>(form);
  return is_short ? find_kernels<T, false, true>(form) : find_kernels<T, false, false>(form);
}

bool is_float(const RowsProblem::RowScalar& statistic) { return statistic.dtype == DType::kF32; }

SmallForm form_of(const RowsProblem& problem, const Buffers& buffers, const RowsLaunch& rest) {
  const Vector& gamma = problem.gamma;
  const bool units = problem.cols % static_cast<int64_t>(16 / size_of(problem.dtype)) == 0;
  const bool plain = units && problem.lead_rank <= 1 &&
                     has_aligned_rows(problem, problem.x, buffers.x) &&
                     has_aligned_rows(problem, problem.dy, buffers.dy) &&
                     (!problem.has_dx || has_aligned_rows(problem, problem.dx, buffers.dx)) &&
                     (!gamma.present ||
                      (gamma.stride == 1 && reinterpret_cast<uintptr_t>(buffers.gamma) % 16 == 0 &&
                       (gamma.dtype == problem.dtype || gamma.dtype == DType::kF32))) &&
                     (problem.spread.dtype == problem.dtype || is_float(problem.spread)) &&
                     (problem.mean.dtype == problem.dtype || is_float(problem.mean)) &&
                     std::all_of(rest.strides, rest.strides + kRowTensors, [&](int64_t stride) {
                       return std::abs(stride) <= std::numeric_limits<int>::max() / problem.rows;
                     });
  return !plain                                          ? SmallForm::kAny
         : gamma.present && gamma.dtype != problem.dtype ? SmallForm::kFloatGamma
                                                         : SmallForm::kPlain;
}

// In the order of the workspace.
struct SmallWorkspace {
  explicit SmallWorkspace(const RowsProblem& problem)
      : squares(problem.statistics == RowStatistics::kFromX ? 2 * sizeof(double) * problem.rows
                                                            : 0),
        offsets(problem.lead_rank > 1 ? sizeof(int64_t) * kRowTensors * problem.rows : 0) {}
  size_t squares, offsets;  // means of squares, and r
};

SmallLaunch make_launch(const RowsProblem& problem, const Buffers& buffers, const SmallDeal& deal,
                        const RowsLaunch& rest, void* workspace) {
  SmallLaunch launch = {};
  launch.x = buffers.x;
  launch.dy = buffers.dy;
  const auto bits = [](int number) { return std::countr_zero(static_cast<unsigned>(number)); };
  launch.part_bits = bits(deal.parts);
  launch.tiles = deal.tiles;
  launch.problem = {static_cast<int>(problem.rows), static_cast<int>(problem.cols),
                    problem.statistics, problem.eps};
  for (int i = 0; i < kRowTensors; ++i) launch.strides[i] = static_cast<int>(rest.strides[i]);
  launch.geometry = deal.rows;
  launch.warp_share = static_cast<int>(divide_up(256, deal.rows.warps));
  launch.row_lane_bits = bits(deal.rows.lanes);
  launch.has_scales = problem.statistics != RowStatistics::kMeanVariance &&
                      problem.statistics != RowStatistics::kXHatStd;
  launch.mean = has_mean(problem.statistics) ? buffers.mean : nullptr;
  launch.spread = buffers.spread;
  launch.mean_is_float = is_float(problem.mean);
  launch.spread_is_float = is_float(problem.spread);
  launch.gamma = problem.gamma.present ? buffers.gamma : nullptr;
  launch.per_col = rest.per_col;
  launch.dx = problem.has_dx ? buffers.dx : nullptr;
  launch.mean_squares = static_cast<double*>(workspace);
  launch.scales = reinterpret_cast<float*>(launch.mean_squares + problem.rows);
  const auto output = [&](const Vector& vector, void* data) {
    const bool in_units = vector.dtype == problem.dtype && vector.stride == 1 &&
                          !vector.accumulate && reinterpret_cast<uintptr_t>(data) % 16 == 0;
    return vector.present
               ? SmallOutput{data, vector.stride, vector.dtype, in_units, vector.accumulate}
               : SmallOutput{};
  };
  launch.outputs[0] = output(problem.dgamma, buffers.dgamma);
  launch.outputs[1] = output(problem.dbeta, buffers.dbeta);
  return launch;
}

Status launch_small(const RowsProblem& problem, const Buffers& buffers, void* workspace,
                    void* stream) {
  const SmallDeal deal = small_deal_of(problem);
  RowsLaunch rest;
  rest.problem = problem;
  rest.buffers = buffers;
  rest.geometry = deal.rows;
  rest.per_col = 1 / static_cast<double>(problem.cols);
  auto* offsets =
      reinterpret_cast<int64_t*>(static_cast<char*>(workspace) + SmallWorkspace(problem).squares);
  NORMGRAD_RETURN_IF_ERROR(locate_rows(rest, offsets, stream));
  SmallLaunch launch = make_launch(problem, buffers, deal, rest, workspace);

  const bool rms = is_rms(problem.statistics), is_short = deal.rows.lanes < 32;
  const SmallForm form = form_of(problem, buffers, rest);
  const auto [kernels, column_bytes] = with_type(problem.dtype, [&](auto type) {
    using T = decltype(type);
    return std::pair(find_kernels<T>(rms, form, is_short),
                     rms ? SmallColumns<T, true, true>::shared_bytes(deal)
                         : SmallColumns<T, false, true>::shared_bytes(deal));
  });
  Launch shape;
  shape.block = SmallDeal::kThreads;
  shape.shared = std::max(sizeof(RowsShared), static_cast<size_t>(column_bytes));
  shape.cluster = static_cast<unsigned>(deal.cluster());
  const auto run = [&](SmallKernel kernel, int columns, int rows) -> Status {
    const auto whole = [&](int blocks) {
      return static_cast<int>(divide_up(blocks, deal.cluster()) * deal.cluster());
    };
    launch.column_blocks = whole(columns);
    shape.grid = static_cast<unsigned>(launch.column_blocks + whole(rows));
    if (shape.grid.x == 0) return {};
    return launch_kernel(kernel, shape, stream, launch, rest);
  };

  launch.is_only_row = problem.rows == 1 && kernels.only_row != nullptr &&
                       std::all_of(launch.outputs, launch.outputs + 2, [](const auto& output) {
                         return output.data == nullptr || output.in_units;
                       });
  if (launch.is_only_row) {
    const auto blocks = static_cast<unsigned>(SpreadTeam::blocks_of(deal.rows));
    shape = {blocks, SpreadTeam::kBlockWarps * 32};
    shape.shared = sizeof(RowsShared);
    shape.cluster = blocks;
    return launch_kernel(kernels.only_row, shape, stream, launch, rest);
  }
  const int row_blocks = deal.row_blocks * deal.rows.cluster;
  const bool sums = problem.dgamma.present || problem.dbeta.present;
  const int columns = sums ? deal.tiles * deal.parts : 0, rows = problem.has_dx ? row_blocks : 0;
  if (sums && problem.statistics == RowStatistics::kFromX) {
    NORMGRAD_RETURN_IF_ERROR(run(kernels.squares, 0, row_blocks));
    shape.dependent = true;
  }
  // dx must not be written where x or dy is still to be read.
  const bool in_place = problem.has_dx && (buffers.dx == buffers.x || buffers.dx == buffers.dy);
  if (!in_place) return run(kernels.all, columns, rows);
  NORMGRAD_RETURN_IF_ERROR(run(kernels.all, columns, 0));
  shape.dependent = false;
  return run(kernels.all, 0, rows);
}

}  // namespace

Status choose_small_rows(const RowsProblem& problem, Kernel<RowsProblem>& kernel) {
  NORMGRAD_RETURN_IF_ERROR(check_hopper("rows_small"));
  NORMGRAD_RETURN_IF_ERROR(check_no_dh("rows_small", problem));
  if (small_deal_of(problem).row_blocks == 0) {
    return {Code::kUnsupportedDevice, "rows_small: expected fewer rows, or shorter ones"};
  }
  const SmallWorkspace layout(problem);
  kernel = {"rows_small", layout.squares + layout.offsets, &launch_small};
  return {};
}

}  // namespace normgrad::cuda
