// A row in float64, element by element, from memory: for the few that float32 does not serve.
#pragma once

#include "cuda/rows_gamma.cuh"
#include "cuda/rows_scalars.cuh"
#include "cuda/rows_team.cuh"

namespace normgrad::cuda {

// Writes dx if `wanted` and there is one. All threads of the team's warps come here; the row of
// those that do not want it is not looked at.
template <class T, int kUnits, class AnyTeam>
__device__ Normalizer wide_row(const RowsLaunch& launch, AnyTeam& team, const Gamma<T>& gamma,
                               int64_t row, bool wanted) {
  constexpr int kE = kUnit<T>;
  const RowsProblem& problem = launch.problem;
  const int64_t first = static_cast<int64_t>(team.rank) * launch.geometry.block_units * kE;
  const int64_t columns =
      min(problem.cols - first, static_cast<int64_t>(launch.geometry.block_units) * kE);
  const T* x = static_cast<const T*>(launch.buffers.x) + first;
  const T* dy = static_cast<const T*>(launch.buffers.dy) + first;
  T* dx = static_cast<T*>(launch.buffers.dx) + first;
  if (wanted) {
    x += row_offset<false>(launch, kRowX, row);
    dy += row_offset<false>(launch, kRowDy, row);
    dx += row_offset<false>(launch, kRowDx, row);
  }
  const auto for_columns = [&](const auto& visit) {
#pragma unroll 1
    for (int j = 0; wanted && j < kUnits; ++j) {
#pragma unroll 1
      for (int e = 0; e < kE; ++e) {
        const int c = (j * team.threads() + team.position) * kE + e;
        if (c < columns) visit(c);
      }
    }
  };
  double squares = 0;
  for_columns([&](int c) {
    const double value = widen(x[c]);
    squares += value * value;
  });
  squares = team.sum({squares, 0}).x;
  const Normalizer n = normalizer_of(problem, wanted ? load_stats<false>(launch, row) : RowStats{},
                                     squares * launch.per_col);
  double2 sums = {0, 0};
  for_columns([&](int c) {
    const double g = static_cast<double>(widen(dy[c])) * gamma[c];
    sums.x += g;
    sums.y += g * n.x_hat(widen(x[c]));
  });
  sums = team.sum(sums);
  if (!problem.has_dx) return n;
  const double c1 = is_rms(problem.statistics) ? 0 : sums.x * launch.per_col;
  const double c2 = sums.y * launch.per_col;
  for_columns([&](int c) {
    const double g = static_cast<double>(widen(dy[c])) * gamma[c];
    dx[c] = narrow<T>(static_cast<float>(n.r * (g - c1 - n.x_hat(widen(x[c])) * c2)));
  });
  return n;
}

}  // namespace normgrad::cuda
