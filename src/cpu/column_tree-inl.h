// The additions of column_tree.hpp, compiled for every instruction set.
#if defined(NORMGRAD_CPU_COLUMN_TREE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMGRAD_CPU_COLUMN_TREE_INL_H_
#undef NORMGRAD_CPU_COLUMN_TREE_INL_H_
#else
#define NORMGRAD_CPU_COLUMN_TREE_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cpu/column_tree.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace normgrad::cpu {
namespace HWY_NAMESPACE {

// sum = left + sum
inline void add_left(const double* left, double* sum, int64_t count) {
  for (int64_t c = 0; c < count; ++c) sum[c] = left[c] + sum[c];
}

// Adds columns [begin, end) of the block's next chunk; `index` counts chunks from 0 within the
// block. The levels are a binary counter: chunk 0b0111 completes the pairs of levels 0, 1 and 2 and
// lands in level 3.
template <class T>
void add_chunk(const ColumnTree& tree, int64_t block, int64_t index, const T* chunk, int64_t begin,
               int64_t end) {
  const int merges = std::countr_one(static_cast<uint64_t>(index));
  double* target = tree.level(block, merges);
  for (int64_t c = begin; c < end; ++c) target[c] = static_cast<double>(chunk[c]);
  for (int k = 0; k < merges; ++k) {
    add_left(tree.level(block, k) + begin, target + begin, end - begin);
  }
}

// After `chunks` chunks: what columns [begin, end) of a block that ended early have in its levels
// meets, small ones first, as it would in a full tree whose other leaves are zero.
inline void finish_block(const ColumnTree& tree, int64_t block, int64_t chunks, int64_t begin,
                         int64_t end) {
  const int lowest = std::countr_zero(static_cast<uint64_t>(chunks));
  double* sum = tree.level(block, lowest) + begin;
  for (int k = lowest + 1; k < tree.levels; ++k) {
    if ((chunks >> k & 1) != 0) add_left(tree.level(block, k) + begin, sum, end - begin);
  }
  if (lowest != tree.levels - 1) std::copy_n(sum, end - begin, tree.result(block) + begin);
}

// Columns [begin, end) of all blocks together, left in the first block's result.
inline void merge_blocks(const ColumnTree& tree, int64_t begin, int64_t end) {
  for (int64_t step = 1; step < tree.blocks; step *= 2) {
    for (int64_t block = 0; block + step < tree.blocks; block += 2 * step) {
      add_left(tree.result(block + step) + begin, tree.result(block) + begin, end - begin);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normgrad::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMGRAD_CPU_COLUMN_TREE_INL_H_
