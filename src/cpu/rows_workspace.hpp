// The workspace of LayerNorm and RMSNorm.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/column_tree.hpp"
#include "cpu/row_sums.hpp"
#include "ops/problem.hpp"

namespace normgrad::cpu {

// gamma as float32, then per block a float32 chunk of column sums, then the tree's float64 sums and
// those of the segments of a batch of rows. Vectors over the columns are padded, so that kernels
// may write whole SIMD vectors.
struct RowsWorkspace {
  int64_t cols, padded;
  bool has_dbeta;
  ColumnTree tree;
  float* gamma = nullptr;
  float* chunks = nullptr;
  RowSums* segments = nullptr;

  explicit RowsWorkspace(const RowsProblem& problem, void* memory = nullptr)
      : cols(problem.cols),
        padded((problem.cols + 63) / 64 * 64),
        has_dbeta(problem.dbeta.present),
        tree(problem.rows, !problem.dgamma.present && !has_dbeta ? 0 : padded * (1 + has_dbeta)) {
    gamma = static_cast<float*>(memory);
    if (memory == nullptr) return;
    chunks = gamma + padded;
    tree.sums = reinterpret_cast<double*>(chunks + tree.blocks * tree.width);
    segments = reinterpret_cast<RowSums*>(tree.sums + tree.doubles());
  }

  size_t bytes() const {
    return static_cast<size_t>(padded + tree.blocks * tree.width) * sizeof(float) +
           static_cast<size_t>(tree.doubles()) * sizeof(double) +
           static_cast<size_t>(kMostRows * (cols / kSegment + 1)) * sizeof(RowSums);
  }
};

}  // namespace normgrad::cpu
