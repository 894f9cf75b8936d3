// The workspace of LayerNorm and RMSNorm.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/column_tree.hpp"
#include "cpu/row_sums.hpp"
#include "ops/problem.hpp"

namespace normgrad::cpu {

// gamma as float32, then per block two float32 chunks of column sums, then the tree's float64 sums
// and those of the segments of a batch of rows. Vectors over the columns are padded, so that
// kernels may write whole SIMD vectors.
struct RowsWorkspace {
  int64_t cols, padded;
  bool has_dbeta;
  ColumnTree tree;
  int64_t chunk_width;           // LayerNorm's kernels sum dbeta whether or not it is wanted
  const float* gamma = nullptr;  // in the order of pairs
  float* chunks = nullptr;
  RowSums* segments = nullptr;

  explicit RowsWorkspace(const RowsProblem& problem, void* memory = nullptr)
      : cols(problem.cols),
        padded((problem.cols + 63) / 64 * 64),
        has_dbeta(problem.dbeta.present),
        tree(problem.rows, !problem.dgamma.present && !has_dbeta ? 0 : padded * (1 + has_dbeta)),
        chunk_width(tree.width == 0 ? 0 : padded * (is_rms(problem.statistics) ? 1 : 2)) {
    if (memory == nullptr) return;
    gamma = static_cast<float*>(memory);
    chunks = static_cast<float*>(memory) + padded;
    tree.sums = reinterpret_cast<double*>(chunks + tree.blocks * 2 * chunk_width);
    segments = reinterpret_cast<RowSums*>(tree.sums + tree.doubles());
  }

  // So few rows that their chunk is all there is to sum.
  bool one_chunk() const { return tree.rows <= kChunkRows; }
  // The place of the block's chunks of even or odd index.
  float* chunk(int64_t block, int64_t index) const {
    return chunks + (block * 2 + index % 2) * chunk_width;
  }

  size_t bytes() const {
    return static_cast<size_t>(padded + tree.blocks * 2 * chunk_width) * sizeof(float) +
           static_cast<size_t>(tree.doubles()) * sizeof(double) +
           static_cast<size_t>(kMostRows * (cols / kSegment + 1)) * sizeof(RowSums);
  }
};

}  // namespace normgrad::cpu
