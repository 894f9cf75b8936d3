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

// Where the sum of the block's next chunk goes; `index` counts chunks from 0 within the block. The
// levels are a binary counter: chunk 0b0111 completes the pairs of levels 0, 1 and 2 and lands in
// level 3.
inline double* chunk_level(const ColumnTree& tree, int64_t block, int64_t index) {
  return tree.level(block, std::countr_one(static_cast<uint64_t>(index)));
}

// Adds to columns [begin, end) there what the chunk completes.
inline void merge_chunk(const ColumnTree& tree, int64_t block, int64_t index, int64_t begin,
                        int64_t end) {
  double* target = chunk_level(tree, block, index) + begin;
  const int merges = std::countr_one(static_cast<uint64_t>(index));
  for (int k = 0; k < merges; ++k) add_left(tree.level(block, k) + begin, target, end - begin);
}

// The same for a chunk of odd index that was summed elsewhere in float32, and for the one before
// it, which nothing was done for: one conversion each is all that half of the chunks cost.
inline void add_chunks(const ColumnTree& tree, int64_t block, int64_t index, const float* even,
                       const float* odd, int64_t begin, int64_t end) {
  const int level = std::countr_one(static_cast<uint64_t>(index));
  double* target = tree.level(block, level);
  for (int64_t c = begin; c < end; ++c) {
    target[c] = static_cast<double>(even[c]) + static_cast<double>(odd[c]);
  }
  for (int k = 1; k < level; ++k) {
    add_left(tree.level(block, k) + begin, target + begin, end - begin);
  }
}
// And for the last one of a block, if its index is even.
inline void add_last_chunk(const ColumnTree& tree, int64_t block, const float* chunk, int64_t begin,
                           int64_t end) {
  std::copy(chunk + begin, chunk + end, tree.level(block, 0) + begin);
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
