// LayerNorm and RMSNorm backward on the CPU:
//
//   x_hat = (x - mean) * scale      g = dy * gamma
//   dx    = r * (g - c1 - x_hat * c2),  c1 = mean(g), c2 = mean(g * x_hat); RMSNorm has c1 = 0
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

// Columns [begin, end) of gamma as float32, in the order of pairs; begin is the first of a pair.
template <class T, class G>
void load_gamma(const G* gamma, int64_t stride, int64_t begin, int64_t end, int64_t cols,
                float* to) {
  const int64_t pairs_end = HWY_MIN(end, cols / pair_lanes() * pair_lanes());
  int64_t c = begin;
  if (stride == 1) {
    for (; c < pairs_end; c += pair_lanes()) {
      store_pair(pair_of<T>(load(gamma + c), load(gamma + c + lanes())), to + c);
    }
  }
  for (; c < end; ++c) {
    to[pair_position<T>(c, cols)] = static_cast<float>(widen(gamma[c * stride]));
  }
}

// The same of all columns, and zeros behind them.
template <class T>
void load_gamma(const RowsProblem& problem, const void* data, int64_t padded, float* to) {
  constexpr int64_t kTile = 8192;
  const int64_t cols = problem.cols;
  parallel_for((cols + kTile - 1) / kTile, cols * 8, [&](int64_t tile) {
    const int64_t begin = tile * kTile, end = HWY_MIN(begin + kTile, cols);
    if (!problem.gamma.present) return std::fill(to + begin, to + end, 1.0f);
    with_type(problem.gamma.dtype, [&](auto type) {
      const auto* gamma = static_cast<const decltype(type)*>(data);
      load_gamma<T>(gamma, problem.gamma.stride, begin, end, cols, to);
    });
  });
  std::fill(to + cols, to + padded, 0.0f);
}

// Whether the caller's gamma is what the kernels want: then one row of 8192 needs no copy of it.
template <class T>
bool takes_gamma_as_it_is(const RowsProblem& problem) {
  return !std::is_same_v<T, BF16> && problem.gamma.present && problem.gamma.dtype == DType::kF32 &&
         problem.gamma.stride == 1 && problem.cols % pair_lanes() == 0;
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

// The bits of a NaN that came from float32 data may not survive the rounding to bfloat16; those of
// the library's own NaN are all ones, and do not either.
template <class P>
HWY_INLINE FloatVec quiet(FloatVec v) {
  if constexpr (!std::is_same_v<P, BF16>) return v;
  const FloatVec nan = hn::BitCast(Floats(), hn::Set(Integers(), 0x7FC00000u));
  return hn::IfThenElse(hn::IsNaN(v), nan, v);
}

HWY_INLINE FloatVec load_rounded(const float* p) { return load(p); }

// Columns [begin, end) of a parameter gradient from sums in the order of pairs.
template <class T, class Sum, class P>
void store_params(const Sum* sums, int64_t begin, int64_t end, int64_t cols, int64_t stride,
                  P* to) {
  const int64_t pairs_end = HWY_MIN(end, cols / pair_lanes() * pair_lanes());
  int64_t c = begin;
  if (stride == 1) {
    for (; c < pairs_end; c += pair_lanes()) {
      const FloatPair pair =
          in_order<T>({load_rounded(sums + c), load_rounded(sums + c + lanes())});
      store(quiet<P>(pair.a), to + c);
      store(quiet<P>(pair.b), to + c + lanes());
    }
  }
  for (; c < end; ++c) to[c * stride] = narrow<P>(sums[pair_position<T>(c, cols)]);
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
        for (int64_t c = begin; c < end; ++c) values[c * vector.stride] = {};
        return;
      }
      if (workspace.one_chunk()) {
        const float* sums = workspace.chunk(0, 0) + offset;
        store_params<T>(sums, begin, end, problem.cols, vector.stride, values);
        return;
      }
      merge_blocks(tree, offset + begin, offset + end);
      store_params<T>(tree.result(0) + offset, begin, end, problem.cols, vector.stride, values);
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
    if (takes_gamma_as_it_is<T>(problem)) {
      workspace.gamma = static_cast<const float*>(buffers.gamma);
    } else {
      load_gamma<T>(problem, buffers.gamma, workspace.padded, static_cast<float*>(memory));
    }
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
