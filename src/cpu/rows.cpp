// LayerNorm and RMSNorm backward on the CPU:
//
//   x_hat = (x - mean) * scale      g = dy * gamma
//   dx    = r * (g - c1 - x_hat * c2) + dh,  c1 = mean(g), c2 = mean(g * x_hat); RMSNorm has c1 = 0
//   dgamma = sum of dy * x_hat, dbeta = sum of dy over the rows
//
// One sweep (row_looks-inl.h): a row of x and dy comes from memory once, for the sums
// (row_sums-inl.h); the second look, which writes dx and adds to dgamma and dbeta
// (row_grads-inl.h), finds it in cache. Per element 2 reads and 1 write of the data type. Elements
// are float32; dx is within 11 roundings (docs/numerics.md); column sums are float32 over 32 rows,
// then float64 (column_tree.hpp).
//
// Threads take blocks of rows. Where there are few rows, or four of them do not fit in a core's
// cache, they share the columns of four rows at a time instead. The bits are the same.
#include <algorithm>
#include <type_traits>

#include "cpu/parallel.hpp"
#include "cpu/rows_workspace.hpp"
#include "cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rows.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "cpu/column_tree-inl.h"
#include "cpu/row_looks-inl.h"
#include "cpu/row_params-inl.h"
#include "hwy/highway.h"

#ifndef NORMGRAD_CPU_ROWS_ONCE_
#define NORMGRAD_CPU_ROWS_ONCE_
namespace normgrad::cpu {

size_t rows_workspace(const RowsProblem& problem) { return RowsWorkspace(problem).bytes(); }

}  // namespace normgrad::cpu
#endif  // NORMGRAD_CPU_ROWS_ONCE_

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

template <class T, RowForm kForm, bool kFromX>
void run_form(const RowsProblem& problem, const Buffers& buffers, const RowsWorkspace& workspace) {
  const RowsRun<T, kForm, kFromX> run(problem, buffers, workspace);
  if (run.shares_columns()) return run.by_columns();
  const int64_t bytes = 3 * problem.rows * problem.cols * static_cast<int64_t>(sizeof(T));
  parallel_for(workspace.tree.blocks, bytes, [&](int64_t block) { run.block(block); });
}

template <class T>
void run_type(const RowsProblem& problem, const Buffers& buffers, const RowsWorkspace& workspace) {
  switch (problem.statistics) {
    case RowStatistics::kXHatStd:
      return run_form<T, RowForm::kXHat, false>(problem, buffers, workspace);
    case RowStatistics::kFromX:
      return run_form<T, RowForm::kScaled, true>(problem, buffers, workspace);
    case RowStatistics::kRstd:
      return run_form<T, RowForm::kScaled, false>(problem, buffers, workspace);
    default:
      return run_form<T, RowForm::kCentred, false>(problem, buffers, workspace);
  }
}

HWY_INLINE FloatVec load_rounded(const float* p) { return load(p); }

// What was there, plus the sums, rounded.
HWY_INLINE FloatVec add_rounded(FloatVec old, const float* p) { return hn::Add(old, load(p)); }
HWY_INLINE FloatVec add_rounded(FloatVec old, const double* p) {
  DoubleSum sum(p);
  sum.add(promote(old));
  HWY_ALIGN double sums[HWY_MAX_BYTES / sizeof(float)];
  sum.store(sums);
  return load_rounded(sums);
}

// Columns [begin, end) of a parameter gradient from sums in the order of pairs.
template <class T, class Sum, class P>
void store_params(const Sum* sums, int64_t begin, int64_t end, int64_t cols, const Vector& vector,
                  P* to) {
  const int64_t pairs_end = HWY_MIN(end, cols / pair_lanes() * pair_lanes());
  int64_t c = begin;
  if (vector.stride == 1) {
    for (; c < pairs_end; c += pair_lanes()) {
      FloatPair pair;
      if (vector.accumulate) {
        const FloatPair old = pair_of<T>(load(to + c), load(to + c + lanes()));
        pair = {add_rounded(old.a, sums + c), add_rounded(old.b, sums + c + lanes())};
      } else {
        pair = {load_rounded(sums + c), load_rounded(sums + c + lanes())};
      }
      pair = in_order<T>(pair);
      store(quiet<P>(pair.a), to + c);
      store(quiet<P>(pair.b), to + c + lanes());
    }
  }
  for (; c < end; ++c) {
    P& value = to[c * vector.stride];
    Sum sum = sums[pair_position<T>(c, cols)];
    if (vector.accumulate) sum += static_cast<Sum>(widen(value));
    value = narrow<P>(sum);
  }
}

// Columns [begin, end) of dgamma and dbeta from the blocks' sums.
template <class T>
void finish_columns(const RowsProblem& problem, const Buffers& buffers,
                    const RowsWorkspace& workspace, int64_t begin, int64_t end) {
  const ColumnTree& tree = workspace.tree;
  const auto finish = [&](const Vector& vector, void* data, int64_t offset) {
    if (!vector.present) return;
    with_type(vector.dtype, [&](auto type) {
      auto* values = static_cast<decltype(type)*>(data);
      if (tree.blocks == 0) {
        if (vector.accumulate) return;
        for (int64_t c = begin; c < end; ++c) values[c * vector.stride] = {};
        return;
      }
      if (workspace.one_chunk()) {
        const float* sums = workspace.chunk(0, 0) + offset;
        store_params<T>(sums, begin, end, problem.cols, vector, values);
        return;
      }
      merge_blocks(tree, offset + begin, offset + end);
      store_params<T>(tree.result(0) + offset, begin, end, problem.cols, vector, values);
    });
  };
  finish(problem.dgamma, buffers.dgamma, 0);
  finish(problem.dbeta, buffers.dbeta, workspace.padded);
}

Status launch_rows(const RowsProblem& problem, const Buffers& buffers, void* memory, void*) {
  const DefaultFloatEnvironment environment;
  RowsWorkspace workspace(problem, memory);
  with_type(problem.dtype, [&](auto type) {
    using T = decltype(type);
    workspace.gamma = make_params<T>(problem.gamma, buffers.gamma, 1, problem.cols,
                                     workspace.padded, static_cast<float*>(memory));
    run_type<T>(problem, buffers, workspace);
    if (workspace.tree.width == 0) return;
    constexpr int64_t kTile = 512;
    const int64_t bytes = workspace.tree.blocks * workspace.tree.width * 8;
    parallel_for((problem.cols + kTile - 1) / kTile, bytes, [&](int64_t tile) {
      finish_columns<T>(problem, buffers, workspace, tile * kTile,
                        HWY_MIN((tile + 1) * kTile, problem.cols));
    });
  });
  return {};
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normgrad::cpu {

HWY_EXPORT(launch_rows);

Launch<RowsProblem> rows_launch(int64_t target) {
  return HWY_DISPATCH_TABLE(launch_rows)[table_index(target)];
}

}  // namespace normgrad::cpu
#endif  // HWY_ONCE
