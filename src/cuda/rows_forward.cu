// LayerNorm and RMSNorm forward, a row in the registers of its threads:
//
//   h = x + residual, x_hat = (h - mean) * r, y = x_hat * gamma + beta
//
// Everything is read once and written once. 1 to 32 lanes of a warp share a row, or a block of up
// to 512 threads, or a cluster of up to 16 blocks, with up to 4 units of 16 bytes per thread; unit
// i is thread i's, and so on around the team. Which ones depends on the number of columns and the
// type alone, and so does the order of the sums. Rows at any address and of any length are put
// together from aligned pieces: the bits are those of aligned rows.
#include <algorithm>
#include <bit>
#include <string>

#include "cuda/device.hpp"
#include "cuda/kernels.hpp"
#include "cuda/launch.cuh"
#include "cuda/rows_forward.cuh"
#include "ops/operands.hpp"

namespace normgrad::cuda {
namespace {

constexpr int kSmallThreads = 128;  // of a block whose teams are parts of a warp

// What is known of the rows when a kernel is compiled.
enum class Form {
  kAny,
  kPlain,  // evenly spaced, all start at multiples of 16 bytes and have whole units, and so do
           // gamma and beta, which are of one type
  kBare,   // besides, there are x, gamma, LayerNorm's beta and y, a row's statistics, and no more
  kWhole,  // besides, every thread has as many units as it can keep
};

template <class T, bool kRms, int kUnits, Form kForm, Share kShare>
struct RowsForward {
  static constexpr int kE = kUnit<T>;
  static constexpr bool kPlain = kForm != Form::kAny, kBare = kForm >= Form::kBare;
  const RowsForwardLaunch& launch;
  const RowsForwardProblem& problem;
  int thread, threads;

  __device__ int column(int i) const { return kE * (i * threads + thread); }
  // Elements of unit i.
  __device__ int count(int i) const {
    if (kForm == Form::kWhole) return kE;
    const int left = static_cast<int>(problem.cols) - column(i);
    return kPlain ? (left > 0 ? kE : 0) : max(0, min(left, kE));
  }

  // Zeros where there is nothing.
  __device__ void load(const RowPlaces<kPlain>& row, uint4 (&h)[kUnits]) const {
    load(launch.buffers.x, row.x(), h);
    if (kBare || !problem.has_residual) return;
    uint4 residual[kUnits];
    load(launch.buffers.residual, row.residual(), residual);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) h[i] = add_units<T>(h[i], residual[i]);
  }

  __device__ void load(const void* data, int64_t row, uint4 (&units)[kUnits]) const {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      units[i] = {};
      if (count(i) == 0) continue;
      const T* from = static_cast<const T*>(data) + row + column(i);
      if constexpr (kPlain) {
        units[i] = *reinterpret_cast<const uint4*>(from);
      } else {
        units[i] = load_unit_at(from, count(i));
        if (count(i) < kE) units[i] = keep_first<T>(units[i], count(i));
      }
    }
  }

  // Rows that start anywhere are stored by the lanes of a warp together, `active` or not.
  __device__ void store(void* data, int64_t row, const uint4& unit, int i, bool active) const {
    T* to = static_cast<T*>(data) + row;
    if constexpr (kPlain) {
      if (active) *reinterpret_cast<uint4*>(to + column(i)) = unit;
    } else {
      const int lanes = min(1 << launch.team_log2, 32);
      store_shifted(to, i * threads + thread, unit, static_cast<int>(problem.cols), thread % lanes,
                    lanes, active);
    }
  }

  __device__ ForwardStatistics statistics(const uint4 (&h)[kUnits], Team<kShare>& team) const {
    ForwardStatistics result;
    if (!kRms) {
      double sum = 0;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) sum += sum_of<T>(h[i]);
      sum = team.sum(sum);
      // As good as a division by the columns.
      const double quotient = sum * launch.inverse_cols;
      const double rest = fma(-quotient, static_cast<double>(problem.cols), sum);
      result.mean = fma(rest, launch.inverse_cols, quotient);
    }
    const auto centre = static_cast<float>(result.mean);
    double squares = 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (count(i) > 0) squares += squares_of<T>(h[i], kPlain ? kE : count(i), centre);
    }
    result.set_squares(team.sum(squares) * launch.inverse_cols, problem.eps);
    return result;
  }

  __device__ void write(const RowPlaces<kPlain>& row, const uint4 (&h)[kUnits],
                        const ForwardStatistics& statistics, bool active) const {
    const Centre centre(statistics.mean);
    float r = static_cast<float>(statistics.r), rest = -centre.low * r;
    keep_here(r);  // not made again in every branch
    keep_here(rest);
    const auto x_hat = [&](float h) { return kRms ? h * r : fmaf(h - centre.high, r, rest); };
    if (kPlain && sizeof(T) == 2 && has_wide_scales(problem)) {
      write_units<float>(row, h, x_hat, active);
    } else {
      write_units<T>(row, h, x_hat, active);
    }
  }

 private:
  template <class Scale>
  __device__ void load_scales(int column, int count, float (&gamma)[kE], float (&beta)[kE]) const {
    if constexpr (kBare) {
      load_plain(static_cast<const Scale*>(launch.buffers.gamma) + column, gamma);
      if (!kRms) load_plain(static_cast<const Scale*>(launch.buffers.beta) + column, beta);
    } else {
      cuda::load_scales<T, Scale, kPlain>(launch, column, count, gamma, beta);
    }
  }

  // Scale: the type of plain gamma and beta.
  template <class Scale, class XHat>
  __device__ void write_units(const RowPlaces<kPlain>& row, const uint4 (&h)[kUnits],
                              const XHat& x_hat, bool active) const {
    const Buffers& buffers = launch.buffers;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const bool there = active && count(i) > 0;
      if (kPlain && !there) continue;
      float values[kE];
      unpack<T>(h[i], values);
#pragma unroll
      for (int e = 0; e < kE; ++e) values[e] = x_hat(values[e]);
      if (!kBare && problem.has_h) store(buffers.h, row.h(), h[i], i, there);
      if (!kBare && problem.has_x_hat) store(buffers.x_hat, row.x_hat(), pack<T>(values), i, there);
      if (!kBare && !problem.has_y) continue;
      float gamma[kE] = {}, beta[kE] = {};
      if (there) load_scales<Scale>(column(i), count(i), gamma, beta);
#pragma unroll
      for (int e = 0; e < kE; ++e) values[e] = fmaf(values[e], gamma[e], beta[e]);
      store(buffers.y, row.y(), pack<T>(values), i, there);
    }
  }
};

template <int kUnits>
constexpr int kMostThreads = kUnits < kForwardUnits ? kSmallThreads : kForwardThreads;

template <class T, bool kRms, int kUnits, Form kForm, Share kShare>
__global__ void __launch_bounds__(kMostThreads<kUnits>, 1024 / kMostThreads<kUnits>)
    rows_forward_kernel(const __grid_constant__ RowsForwardLaunch launch) {
  const RowsForwardProblem& problem = launch.problem;
  Team<kShare> team(launch.team_log2, launch.cluster_log2);
  const RowsForward<T, kRms, kUnits, kForm, kShare> work = {launch, problem, team.thread(),
                                                            team.threads()};
  const int64_t index = team.index();
  const bool there = kShare != Share::kLanes || index < problem.rows;
  const RowPlaces<kForm != Form::kAny> row(problem, there ? index : 0);
  uint4 h[kUnits] = {};
  if (there) work.load(row, h);
  const ForwardStatistics statistics = work.statistics(h, team);
  const bool wide = there && !statistics.is_served(), served = there && !wide;
  if (served && work.thread == 0) store_statistics(launch, statistics, row.mean(), row.spread());
  work.write(row, h, statistics, served);
  if (__any_sync(~0u, wide)) wide_row<T, kRms>(launch, index, wide, team);
}

// Rows that no cluster has registers for: a block for each.
template <class T, bool kRms>
__global__ void __launch_bounds__(kForwardThreads)
    rows_forward_long_kernel(const __grid_constant__ RowsForwardLaunch launch) {
  wide_row<T, kRms>(launch, blockIdx.x, true, Team<Share::kBlock>(launch.team_log2));
}

// How a row is dealt out.
struct Deal {
  int units = 1, team = 1, cluster = 1;

  explicit Deal(const RowsForwardProblem& problem) {
    const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
    const int64_t row = divide_up(problem.cols, unit);
    units = row <= 8 ? 1 : row <= 16 ? 2 : kForwardUnits;
    const int64_t threads = power_of_two(divide_up(row, units));
    team = static_cast<int>(std::min<int64_t>(threads, kForwardThreads));
    cluster = static_cast<int>(std::min<int64_t>(threads / team, 2 * kForwardCluster));
  }
  static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
  static int64_t power_of_two(int64_t least) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(least)));
  }
};

Form form_of(const RowsForwardProblem& problem, const Buffers& buffers, const Deal& deal) {
  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  const auto aligned = [&](bool present, const void* data, const RowsShape::LeadStrides& strides) {
    return !present || (reinterpret_cast<uintptr_t>(data) % 16 == 0 && strides[0] % unit == 0);
  };
  const bool plain = problem.lead_rank <= 1 && problem.cols % unit == 0 &&
                     aligned(true, buffers.x, problem.x) &&
                     aligned(problem.has_residual, buffers.residual, problem.residual) &&
                     aligned(problem.has_y, buffers.y, problem.y) &&
                     aligned(problem.has_h, buffers.h, problem.h) &&
                     aligned(problem.has_x_hat, buffers.x_hat, problem.x_hat) &&
                     has_plain_units(problem.gamma, buffers.gamma, problem.dtype) &&
                     has_plain_units(problem.beta, buffers.beta, problem.dtype) &&
                     (!problem.gamma.present || !problem.beta.present ||
                      problem.gamma.dtype == problem.beta.dtype);
  if (!plain) return Form::kAny;
  const bool bare = problem.has_y && !problem.has_residual && !problem.has_h &&
                    !problem.has_x_hat && problem.gamma.present &&
                    problem.beta.present == !problem.rms;
  if (!bare) return Form::kPlain;
  return problem.cols == unit * deal.units * deal.team * deal.cluster ? Form::kWhole : Form::kBare;
}

using RowsForwardKernel = void (*)(RowsForwardLaunch);

// Short rows have few units to win by a form of their own.
template <class T, bool kRms, Form kForm>
RowsForwardKernel find_kernel(const Deal& deal) {
  constexpr Form kShort = kForm == Form::kAny ? Form::kAny : Form::kPlain;
  if (deal.units == 1) return rows_forward_kernel<T, kRms, 1, kShort, Share::kLanes>;
  if (deal.units == 2) return rows_forward_kernel<T, kRms, 2, kShort, Share::kLanes>;
  constexpr int kMost = kForwardUnits;
  if (deal.cluster > 1) return rows_forward_kernel<T, kRms, kMost, kForm, Share::kCluster>;
  if (deal.team > 32) return rows_forward_kernel<T, kRms, kMost, kForm, Share::kBlock>;
  return rows_forward_kernel<T, kRms, kMost, kForm, Share::kLanes>;
}

template <class T, bool kRms>
RowsForwardKernel find_kernel(const Deal& deal, Form form) {
  if (form == Form::kAny) return find_kernel<T, kRms, Form::kAny>(deal);
  if (form == Form::kPlain) return find_kernel<T, kRms, Form::kPlain>(deal);
  if (form == Form::kBare) return find_kernel<T, kRms, Form::kBare>(deal);
  return find_kernel<T, kRms, Form::kWhole>(deal);
}

int log2_of(int power) { return std::countr_zero(static_cast<unsigned>(power)); }

Status launch_rows_forward(const RowsForwardProblem& problem, const Buffers& buffers, void*,
                           void* stream) {
  const Deal deal(problem);
  const int threads = deal.team <= 32 ? kSmallThreads : deal.team;
  const int64_t blocks = Deal::divide_up(problem.rows, threads / deal.team) * deal.cluster;
  Launch shape = {static_cast<unsigned>(blocks), static_cast<unsigned>(threads)};
  shape.cluster = static_cast<unsigned>(deal.cluster);
  const RowsForwardLaunch launch = {problem, buffers, log2_of(deal.team), log2_of(deal.cluster),
                                    1 / static_cast<double>(problem.cols)};
  return with_type(problem.dtype, [&](auto type) {
    using T = decltype(type);
    const Form form = form_of(problem, buffers, deal);
    const auto kernel =
        problem.rms ? find_kernel<T, true>(deal, form) : find_kernel<T, false>(deal, form);
    return launch_kernel(kernel, shape, stream, launch);
  });
}

Status launch_long_rows_forward(const RowsForwardProblem& problem, const Buffers& buffers, void*,
                                void* stream) {
  const Launch shape = {static_cast<unsigned>(problem.rows), kForwardThreads};
  const RowsForwardLaunch launch = {problem, buffers, log2_of(kForwardThreads)};
  return with_type(problem.dtype, [&](auto type) {
    using T = decltype(type);
    return launch_kernel(
        problem.rms ? rows_forward_long_kernel<T, true> : rows_forward_long_kernel<T, false>, shape,
        stream, launch);
  });
}

}  // namespace

Status choose_rows_forward(const RowsForwardProblem& problem, Kernel<RowsForwardProblem>& kernel) {
  const Deal deal(problem);
  if (deal.cluster > kForwardCluster || (deal.cluster > 1 && !check_hopper("").ok())) {
    kernel = {"rows_forward_long", 0, &launch_long_rows_forward};
  } else {
    kernel = {deal.cluster > 1 ? "rows_forward_cluster" : "rows_forward", 0, &launch_rows_forward};
  }
  return {};
}

}  // namespace normgrad::cuda
