// LayerNorm and RMSNorm backward for very long rows: every block has some columns of all rows.
// Formulas as in rows_kernel.cuh.
//
// 3 elements moved per element (x and dy read, dx written), the least there is; dgamma and dbeta
// stay where their columns are, without partial sums. On an H200, beside a copy of as many bytes:
// 256x262144 bf16 123 us (96), fp32 219 (192); 1024x65536 bf16 123 (96). Without the exchange (and
// with wrong results) these would take 114, 210 and 110: instructions and the travel of the sums
// bound it.
//
// One block per multiprocessor, all at once (a cooperative launch). A thread has one unit of
// columns; the warps that share a slice of a row are a group, and groups take rows in turn, two at
// a time. Rows come by bulk copies into a ring in shared memory that each group has; it sums rows
// some turns ahead of dx, while the sums of those between are on their way. No barrier holds up all
// warps of a block anywhere in the loop.
//
// The sums of the warps meet in warps of their own, which carry rounds of rows (one turn of every
// group): to the block that a row belongs to, which adds up the parts of all blocks, and from there
// to all. That is two trips, but in one every block would read the parts of all: 128 * 128 * 16
// bytes per row.
//
// Order of the sums of a row: a unit in float32, then float64: the lanes of a warp, the warps of
// the slice, the blocks. Of a column: 16 rows of a group in float32, 16 such chunks, then float64:
// over chunks of chunks, then over the groups, then rows that float32 does not serve, which come
// at the end.
#include <cooperative_groups.h>

#include <limits>
#include <string>

#include "cuda/device.hpp"
#include "cuda/kernels.hpp"
#include "cuda/launch.cuh"
#include "cuda/rows_across_carrier.cuh"
#include "cuda/rows_across_worker.cuh"
#include "ops/operands.hpp"

namespace normgrad::cuda {
namespace {

using namespace across;

// In the order of the workspace.
struct AcrossWorkspace {
  AcrossWorkspace(const RowsProblem& problem, const AcrossDeal& deal) {
    const size_t places = static_cast<size_t>(kRounds) * deal.round_rows();
    rounds = divide_up(problem.rows, deal.round_rows());
    parts = sizeof(Words) * places * deal.blocks;
    totals = sizeof(Words) * places * deal.blocks;
    wide = sizeof(Words) * 2 * deal.blocks;
    flags = static_cast<size_t>(divide_up(problem.rows, 64) * 64);
    const size_t columns =
        static_cast<size_t>(deal.blocks) * 32 * deal.workers() * 16 / size_of(problem.dtype);
    folded = rounds > kDeepTurns ? sizeof(double) * 2 * columns : 0;
    offsets = problem.lead_rank > 1 ? sizeof(int64_t) * kRowTensors * problem.rows : 0;
  }
  int64_t rounds;
  size_t parts, totals, wide, flags, folded, offsets;
  size_t bytes() const { return parts + totals + wide + flags + folded + offsets; }
};

// A row in float64, from memory, by all threads of all blocks; `number` of its kind.
template <class T, bool kRms>
__device__ void write_wide_row(const AcrossLaunch& launch, Board& board, double* fold, int64_t row,
                               int number) {
  const RowsLaunch& rows = launch.rows;
  const RowsProblem& problem = rows.problem;
  constexpr int kE = kUnit<T>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * launch.deal.slice * kE;
  const int count = columns_of<T>(launch);
  const T* x = static_cast<const T*>(rows.buffers.x) + row_offset<false>(rows, kRowX, row) + first;
  const T* dy =
      static_cast<const T*>(rows.buffers.dy) + row_offset<false>(rows, kRowDy, row) + first;
  T* dx = static_cast<T*>(rows.buffers.dx) + row_offset<false>(rows, kRowDx, row) + first;
  const auto g_of = [&](int c) {
    const double g = widen(dy[c]);
    return problem.gamma.present ? g * load_value(problem.gamma, rows.buffers.gamma, first + c) : g;
  };
  const bool from_x = problem.statistics == RowStatistics::kFromX;
  const RowStats stats = load_stats<false>(rows, row);
  Normalizer n = from_x ? Normalizer{0, 1, 1} : normalizer_of(problem, stats, 0);
  RowPart part;
  for (int c = threadIdx.x; c < count; c += kThreads) {
    const double value = widen(x[c]), g = g_of(c);
    part.add({{kRms ? value * value : g, g * n.x_hat(value)}});
  }
  part = warp_sum(part);
  if (lane == 0) board.wide[warp] = part;
  __syncthreads();
  if (warp == 0) {
    part = {};
    for (const RowPart& each : board.wide) part.add(each);
    Words* places = launch.wide + number % 2 * launch.deal.blocks;
    if (lane == 0) send_part(&places[blockIdx.x], part, tag_of(number / 2));
    part = gather_parts<Deal::kBlocks>(places, launch.deal.blocks, tag_of(number / 2));
    if (lane == 0) board.wide_total = part;
  }
  __syncthreads();
  const double2 sums = board.wide_total.sums;
  if (from_x) n = normalizer_of(problem, stats, sums.x * rows.per_col);
  const double c1 = kRms ? 0 : sums.x * rows.per_col;
  const double c2 = sums.y * (from_x ? n.scale : 1) * rows.per_col;
  const int pitch = launch.deal.groups * launch.deal.warps * 32;
  for (int c = threadIdx.x; c < count; c += kThreads) {
    const double x_hat = n.x_hat(widen(x[c])), dy_value = widen(dy[c]), g = g_of(c);
    fold[c % kE * pitch + c / kE] += dy_value * x_hat;
    if (!kRms) fold[(kE + c % kE) * pitch + c / kE] += dy_value;
    if (problem.has_dx) {
      dx[c] = narrow<T>(static_cast<float>(n.r * (g - c1 - x_hat * c2)));
    }
  }
}

// All of them, in order: the same ones in every block.
template <class T, bool kRms>
__device__ void write_wide_rows(const AcrossLaunch& launch, Board& board, double* fold) {
  int number = 0;
  for (int64_t first = 0; first < launch.rows.problem.rows; first += 32) {
    const int64_t row = first + threadIdx.x % 32;
    const bool wide = row < launch.rows.problem.rows && launch.flags[row] != 0;
    if (!__any_sync(~0u, wide)) continue;
    for (int i = 0; i < 32; ++i) {
      if (__shfl_sync(~0u, wide ? 1 : 0, i) != 0) {
        write_wide_row<T, kRms>(launch, board, fold, first + i, number++);
      }
    }
  }
  __syncthreads();
}

// The groups' sums in order, to dgamma and dbeta.
template <class T, bool kRms>
__device__ void write_columns(const AcrossLaunch& launch, const double* fold) {
  const RowsProblem& problem = launch.rows.problem;
  constexpr int kE = kUnit<T>;
  const int width = launch.deal.warps * 32, groups = launch.deal.groups;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * launch.deal.slice * kE;
  const int count =
      static_cast<int>(min(problem.cols - first, static_cast<int64_t>(launch.deal.slice) * kE));
  for (int which = 0; which < 2; ++which) {
    const Vector& vector = which == 0 ? problem.dgamma : problem.dbeta;
    void* out = which == 0 ? launch.rows.buffers.dgamma : launch.rows.buffers.dbeta;
    if (!vector.present) continue;
    for (int c = threadIdx.x; c < count; c += kThreads) {
      const double* terms = fold + (which * kE + c % kE) * groups * width + c / kE;
      double sum = 0;
      for (int group = 0; group < groups; ++group) sum += terms[group * width];
      store_value(vector, out, first + c, sum);
    }
  }
}

template <class T, RowForm kForm, bool kPlain>
__global__ void __launch_bounds__(kThreads, 1)
    across_kernel(const __grid_constant__ AcrossLaunch launch) {
#if NORMGRAD_HOPPER
  constexpr bool kRms = kForm == RowForm::kRms;
  auto* ring = dynamic_shared<uint4>();
  auto& board = in_shared<Board>();
  if (threadIdx.x < kWarps * Deal::kMostSlots) {
    init_barrier(&board.full[0][threadIdx.x], 1);
    init_barrier(&board.empty[0][threadIdx.x], launch.deal.warps);
  }
  if (threadIdx.x < kRounds) {
    init_barrier(&board.summed[threadIdx.x], launch.deal.workers());
    init_barrier(&board.known[threadIdx.x], 1);
  }
  if (threadIdx.x == 0) board.any_wide = false;
  fence_barrier_init();
  __syncthreads();
  const int warp = threadIdx.x / 32;
  const auto grid_sync = [] {
    __syncthreads();
    cooperative_groups::this_grid().sync();
  };
  if (warp < kWarps) {
    const bool works = warp < launch.deal.workers();
    AcrossWorker<T, kForm, kPlain> worker(launch, board, ring);
    if (works) worker.start();
    grid_sync();
    if (works) worker.work();
    __syncthreads();
    if (works) worker.put_columns(reinterpret_cast<double*>(ring));
  } else if (warp < kWarps + kCarriers) {
    AcrossCarrier<T, kRms, kPlain> carrier(launch, board, ring);
    carrier.start();
    grid_sync();
    carrier.work();
    __syncthreads();
  } else {
    AcrossFetcher<T> fetcher(launch, board, ring);
    if (kPlain) fetcher.start();
    __syncwarp();
    grid_sync();
    if (kPlain) fetcher.work();
    __syncwarp();
    __syncthreads();
  }
  __syncthreads();
  auto* fold = reinterpret_cast<double*>(ring);
  if (board.any_wide) write_wide_rows<T, kRms>(launch, board, fold);
  write_columns<T, kRms>(launch, fold);
#endif
}

Status launch_across(const RowsProblem& problem, const Buffers& buffers, void* workspace,
                     void* stream) {
  const AcrossDeal deal = across_deal_of(problem.cols, problem.dtype);
  const AcrossWorkspace layout(problem, deal);
  char* memory = static_cast<char*>(workspace);
  AcrossLaunch launch = {};
  launch.rows.problem = problem;
  launch.rows.buffers = buffers;
  launch.rows.per_col = 1 / static_cast<double>(problem.cols);
  launch.deal = deal;
  launch.rounds = static_cast<int>(layout.rounds);
  const auto take = [&](size_t bytes) {
    memory += bytes;
    return memory - bytes;
  };
  launch.parts = reinterpret_cast<Words*>(take(layout.parts));
  launch.totals = reinterpret_cast<Words*>(take(layout.totals));
  launch.wide = reinterpret_cast<Words*>(take(layout.wide));
  launch.flags = reinterpret_cast<uint8_t*>(take(layout.flags));
  launch.folded = reinterpret_cast<double*>(take(layout.folded));
  auto* offsets = reinterpret_cast<int64_t*>(take(layout.offsets));
  NORMGRAD_RETURN_IF_ERROR(locate_rows(launch.rows, offsets, stream));

  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  const auto aligned = [&](const void* data, const RowsProblem::LeadStrides& lead) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && lead[0] % unit == 0;
  };
  const bool plain = problem.cols % unit == 0 && problem.lead_rank <= 1 &&
                     aligned(buffers.x, problem.x) && aligned(buffers.dy, problem.dy) &&
                     (!problem.has_dx || aligned(buffers.dx, problem.dx));
  Launch shape = {static_cast<unsigned>(deal.blocks), kThreads};
  // The ring, or a double per column sum when it is done.
  shape.shared = static_cast<size_t>(deal.workers()) * 32 *
                 std::max<int64_t>(deal.slots * 32, 2 * sizeof(double) * unit);
  shape.cooperative = true;
  return with_type(problem.dtype, [&](auto type) {
    return with_form(problem.statistics, [&](auto form) {
      using T = decltype(type);
      const auto kernel =
          plain ? &across_kernel<T, form(), true> : &across_kernel<T, form(), false>;
      return launch_kernel(kernel, shape, stream, launch);
    });
  });
}

}  // namespace

Status choose_rows_across(const RowsProblem& problem, Kernel<RowsProblem>& kernel) {
  NORMGRAD_RETURN_IF_ERROR(check_hopper("rows_across"));
  NORMGRAD_RETURN_IF_ERROR(check_no_dh("rows_across", problem));
  const AcrossDeal deal = across_deal_of(problem.cols, problem.dtype);
  if (deal.blocks == 0) {
    return {Code::kUnsupportedDevice, "rows_across: expected shorter rows"};
  }
  if (multiprocessors() < deal.blocks) {
    return {Code::kUnsupportedDevice,
            "rows_across: expected a GPU of " + std::to_string(deal.blocks) + " multiprocessors"};
  }
  if (problem.rows > std::numeric_limits<int>::max() / 2) {
    return {Code::kUnsupportedDevice, "rows_across: expected fewer rows"};
  }
  kernel = {"rows_across", AcrossWorkspace(problem, deal).bytes(), &launch_across};
  return {};
}

}  // namespace normgrad::cuda
