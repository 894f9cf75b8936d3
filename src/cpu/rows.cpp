// LayerNorm and RMSNorm backward on the CPU:
//
//   x_hat = (x - mean) * scale      g = dy * gamma
//   dx    = r * (g - c1 - x_hat * c2),  c1 = mean(g), c2 = mean(g * x_hat); RMSNorm has c1 = 0
//   dgamma = sum of dy * x_hat, dbeta = sum of dy over the rows
//
// One sweep: a row of x and dy comes from memory once, for the sums; the second look, which writes
// dx and adds to dgamma and dbeta, finds it in cache. Per element 2 reads and 1 write of the data
// type. Elements are float32. Row sums are float64, of exact products, so that dx is within 12
// roundings (numerics, 2.1). Column sums are float32 over 32 rows, then float64 (column_tree.hpp).
#include <algorithm>
#include <cstring>

#include "cpu/parallel.hpp"
#include "cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rows.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "cpu/column_tree-inl.h"
#include "cpu/formula-inl.h"
#include "cpu/io-inl.h"
#include "cpu/normalizer.hpp"
#include "cpu/row_cursor.hpp"
#include "hwy/highway.h"

#ifndef NORMGRAD_CPU_ROWS_ONCE_
#define NORMGRAD_CPU_ROWS_ONCE_
namespace normgrad::cpu {

// gamma as float32, then per block a float32 chunk of column sums, then the tree's float64 sums.
// Vectors over the columns are padded, so that kernels may write whole SIMD vectors.
struct RowsWorkspace {
  int64_t padded;
  bool has_dbeta;
  ColumnTree tree;
  float* gamma = nullptr;
  float* chunks = nullptr;

  explicit RowsWorkspace(const RowsProblem& problem, void* memory = nullptr)
      : padded((problem.cols + 63) / 64 * 64),
        has_dbeta(problem.dbeta.present),
        tree(problem.rows, !problem.dgamma.present && !has_dbeta ? 0 : padded * (1 + has_dbeta)) {
    gamma = static_cast<float*>(memory);
    if (memory == nullptr) return;
    chunks = gamma + padded;
    tree.sums = reinterpret_cast<double*>(chunks + tree.blocks * tree.width);
  }

  size_t bytes() const {
    return static_cast<size_t>(padded + tree.blocks * tree.width) * sizeof(float) +
           static_cast<size_t>(tree.doubles()) * sizeof(double);
  }
};

size_t rows_workspace(const RowsProblem& problem) { return RowsWorkspace(problem).bytes(); }

}  // namespace normgrad::cpu
#endif  // NORMGRAD_CPU_ROWS_ONCE_

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// Row sums restart every 8192 columns: a function of the row alone, and a unit that threads could
// share without changing a bit.
constexpr int64_t kSegment = 8192;

struct RowSums {
  double first = 0;      // of g; of x^2 if the statistics come from x
  double g_centred = 0;  // of g * (x - mean)
};

template <bool kFromX, bool kTail, class T>
HWY_INLINE void add_to_sums(const T* x, const T* dy, const float* gamma, FloatVec mean,
                            int64_t count, DoubleSum& first, DoubleSum& g_centred) {
  const DoublePair centred = promote(hn::Sub(load_some<kTail>(x, count), mean));
  const DoublePair g = promote(hn::Mul(load_some<kTail>(dy, count), load(gamma)));
  if constexpr (kFromX) {
    first.add_product(centred, centred);
  } else {
    first.add(g);
  }
  g_centred.add_product(g, centred);
}

template <bool kFromX, class T>
RowSums row_sums(const T* x, const T* dy, const float* gamma, float mean, int64_t cols) {
  const FloatVec mean_vec = hn::Set(Floats(), mean);
  RowSums sums;
  for (int64_t begin = 0; begin < cols; begin += kSegment) {
    const int64_t end = HWY_MIN(begin + kSegment, cols);
    DoubleSum first, g_centred;
    int64_t c = begin;
    for (; c + lanes() <= end; c += lanes()) {
      add_to_sums<kFromX, false>(x + c, dy + c, gamma + c, mean_vec, 0, first, g_centred);
    }
    if (c < end) {
      add_to_sums<kFromX, true>(x + c, dy + c, gamma + c, mean_vec, end - c, first, g_centred);
    }
    sums.first += first.total();
    sums.g_centred += g_centred.total();
  }
  return sums;
}

template <class T>
struct Row {
  const T* x;
  const T* dy;
  T* dx;
  Normalizer normalizer;
  Scalars scalars;
  bool wide_params;  // x_hat needs float64
  bool wide_dx;      // dx needs float64, if only because x_hat does
};

// Columns c to c + count of R <= 4 rows: dx, and the rows' terms added to the chunk's column sums
// as (t0 + t1) + (t2 + t3): missing rows count as zeros. kParams: 0 none, 1 dgamma, 2 dgamma and
// dbeta.
template <int R, bool kDx, int kParams, bool kTail, class T>
HWY_INLINE void grad_columns(const Row<T>* rows, const float* gamma, float* dgamma, float* dbeta,
                             int64_t c, int64_t count) {
  const FloatVec gamma_vec = load(gamma + c);
  FloatVec dgamma_terms[2], dbeta_terms[2];
  for (int k = 0; k < R; ++k) {
    const ScalarVecs s(rows[k].scalars);
    const FloatVec dy = load_some<kTail>(rows[k].dy + c, count);
    const FloatVec x_hat = s.x_hat(load_some<kTail>(rows[k].x + c, count));
    if constexpr (kParams > 0) {
      FloatVec& terms = dgamma_terms[k / 2];
      terms = k % 2 == 0 ? hn::Mul(dy, x_hat) : hn::MulAdd(dy, x_hat, terms);
    }
    if constexpr (kParams > 1) {
      FloatVec& terms = dbeta_terms[k / 2];
      terms = k % 2 == 0 ? dy : hn::Add(terms, dy);
    }
    if constexpr (kDx) {
      store_some<kTail>(s.dx(hn::Mul(dy, gamma_vec), x_hat), rows[k].dx + c, count);
    }
  }
  if constexpr (R > 2 && kParams > 0) dgamma_terms[0] = hn::Add(dgamma_terms[0], dgamma_terms[1]);
  if constexpr (R > 2 && kParams > 1) dbeta_terms[0] = hn::Add(dbeta_terms[0], dbeta_terms[1]);
  if constexpr (kParams > 0) store(hn::Add(load(dgamma + c), dgamma_terms[0]), dgamma + c);
  if constexpr (kParams > 1) store(hn::Add(load(dbeta + c), dbeta_terms[0]), dbeta + c);
}

template <int R, bool kDx, int kParams, class T>
void grad_rows(const Row<T>* rows, const float* gamma, float* dgamma, float* dbeta, int64_t cols) {
  int64_t c = 0;
  for (; c + lanes() <= cols; c += lanes()) {
    grad_columns<R, kDx, kParams, false>(rows, gamma, dgamma, dbeta, c, 0);
  }
  if (c < cols) grad_columns<R, kDx, kParams, true>(rows, gamma, dgamma, dbeta, c, cols - c);
}

template <class T, bool kDx, int kParams>
class RowsRun {
 public:
  RowsRun(const RowsProblem& problem, const Buffers& buffers, const RowsWorkspace& workspace)
      : problem_(problem), buffers_(buffers), workspace_(workspace) {}

  // One aligned block of rows.
  void block(int64_t index) const {
    const ColumnTree& tree = workspace_.tree;
    const int64_t begin = index * tree.block_rows();
    const int64_t end = HWY_MIN(begin + tree.block_rows(), problem_.rows);
    float* chunk = workspace_.chunks + index * tree.width;
    RowCursor cursor(problem_, begin);
    int64_t chunks = 0;
    for (int64_t row = begin; row < end; row += kChunkRows, ++chunks) {
      std::memset(chunk, 0, static_cast<size_t>(tree.width) * sizeof(float));
      chunk_rows(cursor, HWY_MIN(kChunkRows, end - row), chunk);
      if constexpr (kParams > 0) add_chunk(tree, index, chunks, chunk);
    }
    if constexpr (kParams > 0) finish_block(tree, index, chunks);
  }

 private:
  // Rows are taken four at a time: the column sums are then read and written once for four rows,
  // and a chunk of 32 is 8 additions deep.
  static constexpr int kGroup = 4;

  void chunk_rows(RowCursor& cursor, int64_t rows, float* chunk) const {
    for (int64_t done = 0; done < rows; done += kGroup) {
      const int64_t count = HWY_MIN(kGroup, rows - done);
      Row<T> members[kGroup];
      bool wide = false;
      for (int64_t k = 0; k < count; ++k, cursor.next()) {
        members[k] = analyze(cursor);
        wide = wide || members[k].wide_dx;
      }
      if (wide) {
        wide_group(members, count, chunk);
      } else {
        group<kDx, kParams>(members, count, chunk);
      }
    }
  }

  template <bool kGroupDx, int kGroupParams>
  void group(const Row<T>* rows, int64_t count, float* chunk) const {
    float* dbeta = chunk + workspace_.padded;
    const auto run = [&](auto grad) { grad(rows, workspace_.gamma, chunk, dbeta, problem_.cols); };
    if (count == 4) run(grad_rows<4, kGroupDx, kGroupParams, T>);
    if (count == 3) run(grad_rows<3, kGroupDx, kGroupParams, T>);
    if (count == 2) run(grad_rows<2, kGroupDx, kGroupParams, T>);
    if (count == 1) run(grad_rows<1, kGroupDx, kGroupParams, T>);
  }

  // A group with a row whose dx needs float64. Parameter gradients come first, since dx may
  // overwrite x or dy; rows whose x_hat is fine stay together on the vector path, so that a NaN in
  // one column leaves the bits of the others alone.
  void wide_group(const Row<T>* rows, int64_t count, float* chunk) const {
    if constexpr (kParams > 0) {
      Row<T> narrow_rows[kGroup];
      int64_t narrow_count = 0;
      for (int64_t k = 0; k < count; ++k) {
        if (!rows[k].wide_params) narrow_rows[narrow_count++] = rows[k];
      }
      group<false, kParams>(narrow_rows, narrow_count, chunk);
      for (int64_t k = 0; k < count; ++k) {
        if (rows[k].wide_params) add_params_in_f64(rows[k], chunk, chunk + workspace_.padded);
      }
    }
    if constexpr (kDx) {
      for (int64_t k = 0; k < count; ++k) {
        if (rows[k].wide_dx) {
          write_dx_in_f64(rows[k]);
        } else {
          grad_rows<1, true, 0>(&rows[k], workspace_.gamma, nullptr, nullptr, problem_.cols);
        }
      }
    }
  }

  Row<T> analyze(const RowCursor& cursor) const {
    Row<T> row;
    row.x = static_cast<const T*>(buffers_.x) + cursor.x;
    row.dy = static_cast<const T*>(buffers_.dy) + cursor.dy;
    row.dx = static_cast<T*>(buffers_.dx) + (kDx ? cursor.dx : 0);
    const bool from_x = problem_.statistics == RowStatistics::kFromX;
    RowSums sums;
    if (from_x) {
      sums = row_sums<true>(row.x, row.dy, workspace_.gamma, 0, problem_.cols);
      row.normalizer = Normalizer::from_variance(0, mean(sums.first) + problem_.eps);
    } else {
      row.normalizer = given_statistics(cursor);
      if constexpr (kDx) {
        const float row_mean = static_cast<float>(row.normalizer.mean);
        sums = row_sums<false>(row.x, row.dy, workspace_.gamma, row_mean, problem_.cols);
      }
    }
    const Normalizer& n = row.normalizer;
    const double c1 = is_rms(problem_.statistics) ? 0 : mean(sums.first);
    const double c2 = n.scale * mean(sums.g_centred);
    row.scalars = {static_cast<float>(n.mean), static_cast<float>(n.scale), static_cast<float>(n.r),
                   static_cast<float>(c1), static_cast<float>(c2)};
    // A row of zeros in RMSNorm is a padded token: common, and float32 gets its zeros right.
    row.wide_params = n.zero ? !from_x : !is_safe(n.scale);
    row.wide_dx = row.wide_params || !(n.zero || is_safe(n.r)) || !are_safe(c1, c2) ||
                  (kDx && c1 == 0 && c2 == 0 && !n.zero && has_gradient(row));
    return row;
  }

  // Whether any g is not 0. If both means are, either it was a row of zeros, or g cancels, or every
  // dy * gamma was too small for float32.
  bool has_gradient(const Row<T>& row) const {
    bool found = false;
    for (int64_t c = 0; c < problem_.cols; ++c) {
      found |= is_nonzero(row.dy[c]) && workspace_.gamma[c] != 0;
    }
    return found;
  }

  double mean(double sum) const { return sum / static_cast<double>(problem_.cols); }

  Normalizer given_statistics(const RowCursor& cursor) const {
    const double spread = load_value(problem_.spread.dtype, buffers_.spread, cursor.spread);
    if (problem_.statistics == RowStatistics::kXHatStd) return Normalizer::from_std(spread);
    if (problem_.statistics == RowStatistics::kRstd) return Normalizer::from_rstd(0, spread);
    const double mean = load_value(problem_.mean.dtype, buffers_.mean, cursor.mean);
    if (problem_.statistics == RowStatistics::kMeanRstd) return Normalizer::from_rstd(mean, spread);
    return Normalizer::from_variance(mean, spread + problem_.eps);
  }

  void add_params_in_f64(const Row<T>& row, float* dgamma, float* dbeta) const {
    for (int64_t c = 0; c < problem_.cols; ++c) {
      const double dy = widen(row.dy[c]);
      dgamma[c] += static_cast<float>(dy * row.normalizer.x_hat(widen(row.x[c])));
      if constexpr (kParams > 1) dbeta[c] += static_cast<float>(dy);
    }
  }

  void write_dx_in_f64(const Row<T>& row) const {
    const Normalizer& n = row.normalizer;
    double sum_g = 0, sum_g_x_hat = 0;
    for (int64_t c = 0; c < problem_.cols; ++c) {
      const double g = widen(row.dy[c]) * workspace_.gamma[c];
      sum_g += g;
      sum_g_x_hat += g * n.x_hat(widen(row.x[c]));
    }
    const double c1 = is_rms(problem_.statistics) ? 0 : mean(sum_g);
    const double c2 = mean(sum_g_x_hat);
    for (int64_t c = 0; c < problem_.cols; ++c) {
      const double g = widen(row.dy[c]) * workspace_.gamma[c];
      row.dx[c] = narrow<T>(n.r * (g - c1 - n.x_hat(widen(row.x[c])) * c2));
    }
  }

  const RowsProblem& problem_;
  const Buffers& buffers_;
  const RowsWorkspace& workspace_;
};

template <class T, bool kDx, int kParams>
void run_blocks(const RowsProblem& problem, const Buffers& buffers,
                const RowsWorkspace& workspace) {
  const RowsRun<T, kDx, kParams> run(problem, buffers, workspace);
  const int64_t bytes = 3 * problem.rows * problem.cols * static_cast<int64_t>(sizeof(T));
  parallel_for(workspace.tree.blocks, bytes, [&](int64_t block) { run.block(block); });
}

template <class T>
void run_type(const RowsProblem& problem, const Buffers& buffers, const RowsWorkspace& workspace) {
  const int params = problem.dbeta.present ? 2 : problem.dgamma.present ? 1 : 0;
  if (problem.has_dx) {
    if (params == 2) return run_blocks<T, true, 2>(problem, buffers, workspace);
    if (params == 1) return run_blocks<T, true, 1>(problem, buffers, workspace);
    return run_blocks<T, true, 0>(problem, buffers, workspace);
  }
  if (params == 2) return run_blocks<T, false, 2>(problem, buffers, workspace);
  return run_blocks<T, false, 1>(problem, buffers, workspace);
}

// Columns [begin, end) of dgamma and dbeta from the blocks' sums.
void finish_columns(const RowsProblem& problem, const Buffers& buffers,
                    const RowsWorkspace& workspace, int64_t begin, int64_t end) {
  const ColumnTree& tree = workspace.tree;
  const auto finish = [&](const Vector& vector, void* data, int64_t offset) {
    if (!vector.present) return;
    if (tree.blocks > 0) merge_blocks(tree, offset + begin, offset + end);
    for (int64_t c = begin; c < end; ++c) {
      store_value(vector, data, c, tree.blocks > 0 ? tree.result(0)[offset + c] : 0);
    }
  };
  finish(problem.dgamma, buffers.dgamma, 0);
  finish(problem.dbeta, buffers.dbeta, workspace.padded);
}

Status launch_rows(const RowsProblem& problem, const Buffers& buffers, void* memory, void*) {
  const DefaultFloatEnvironment environment;
  const RowsWorkspace workspace(problem, memory);
  for (int64_t c = 0; c < problem.cols; ++c) {
    const bool present = problem.gamma.present;
    workspace.gamma[c] =
        present ? static_cast<float>(load_value(problem.gamma, buffers.gamma, c)) : 1.0f;
  }
  std::fill(workspace.gamma + problem.cols, workspace.gamma + workspace.padded, 0.0f);

  with_type(problem.dtype,
            [&](auto type) { run_type<decltype(type)>(problem, buffers, workspace); });

  if (workspace.tree.width > 0) {
    constexpr int64_t kTile = 512;
    const int64_t bytes = workspace.tree.blocks * workspace.tree.width * 8;
    parallel_for((problem.cols + kTile - 1) / kTile, bytes, [&](int64_t tile) {
      finish_columns(problem, buffers, workspace, tile * kTile,
                     HWY_MIN((tile + 1) * kTile, problem.cols));
    });
  }
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
