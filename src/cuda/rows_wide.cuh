// A row in float64, element by element, from memory: for the few that float32 does not serve.
#pragma once

#include "cuda/rows_scalars.cuh"
#include "cuda/rows_team.cuh"

namespace normgrad::cuda {

// Where its elements lie, for one thread of the team: from the block's first column on.
template <class T, int kUnits>
struct WideRow {
  static constexpr int kE = kUnit<T>;

  template <class AnyTeam>
  __device__ WideRow(const RowsLaunch& launch, const AnyTeam& team, int64_t row)
      : threads(team.threads()), position(team.position) {
    const int64_t first = static_cast<int64_t>(team.rank) * launch.geometry.block_units * kE;
    columns =
        min(launch.problem.cols - first, static_cast<int64_t>(launch.geometry.block_units) * kE);
    x = static_cast<const T*>(launch.buffers.x) + row_offset<false>(launch, kRowX, row) + first;
    dy = static_cast<const T*>(launch.buffers.dy) + row_offset<false>(launch, kRowDy, row) + first;
    dx = static_cast<T*>(launch.buffers.dx) + row_offset<false>(launch, kRowDx, row) + first;
  }

  // One element at a time: this must not cost the kernel registers.
  template <class Visit>
  __device__ void for_columns(const Visit& visit) const {
#pragma unroll 1
    for (int j = 0; j < kUnits; ++j) {
#pragma unroll 1
      for (int e = 0; e < kE; ++e) {
        const int c = (j * threads + position) * kE + e;
        if (c < columns) visit(c);
      }
    }
  }

  const T *x, *dy;
  T* dx;
  int64_t columns;
  const int threads, position;
};

// Its scalars: dx = r * (g - c1 - x_hat * c2).
struct WideScalars {
  Normalizer normalizer;
  double c1 = 0, c2 = 0;
};

// All threads of the team's warps come here; the row of those that do not want it is not looked at.
template <class T, int kUnits, class AnyTeam>
__device__ double wide_mean_square(const RowsLaunch& launch, AnyTeam& team,
                                   const WideRow<T, kUnits>& row, bool wanted) {
  double squares = 0;
  if (wanted) {
    row.for_columns([&](int c) {
      const double value = widen(row.x[c]);
      squares += value * value;
    });
  }
  return team.sum({squares, 0}).x * launch.per_col;
}

// The same.
template <class T, int kUnits, class AnyTeam, class AnyGamma>
__device__ WideScalars wide_scalars(const RowsLaunch& launch, AnyTeam& team, const AnyGamma& gamma,
                                    const WideRow<T, kUnits>& row, RowStats stats, bool wanted) {
  const Normalizer n =
      normalizer_of(launch.problem, stats, wide_mean_square(launch, team, row, wanted));
  double2 sums = {0, 0};
  if (wanted) {
    row.for_columns([&](int c) {
      const double g = static_cast<double>(widen(row.dy[c])) * gamma[c];
      sums.x += g;
      sums.y += g * n.x_hat(widen(row.x[c]));
    });
  }
  sums = team.sum(sums);
  const double c1 = is_rms(launch.problem.statistics) ? 0 : sums.x * launch.per_col;
  return {n, c1, sums.y * launch.per_col};
}

// dh: where this row's is, if any.
template <class T, int kUnits, class AnyGamma>
__device__ void write_wide_dx(const WideRow<T, kUnits>& row, const AnyGamma& gamma,
                              const WideScalars& scalars, const T* dh = nullptr) {
  const Normalizer& n = scalars.normalizer;
  row.for_columns([&](int c) {
    const double g = static_cast<double>(widen(row.dy[c])) * gamma[c];
    const double x_hat = n.x_hat(widen(row.x[c]));
    const double dx = n.r * (g - scalars.c1 - x_hat * scalars.c2);
    row.dx[c] = narrow<T>(static_cast<float>(dh == nullptr ? dx : dx + widen(dh[c])));
  });
}

}  // namespace normgrad::cuda
