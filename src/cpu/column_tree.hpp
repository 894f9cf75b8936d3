// Sums over rows, column by column, in an order that depends on the row's index alone.
//
// Rows 32k to 32k + 31 form chunk k, whose sum the kernel makes. Chunks meet in an aligned
// binary tree in float64: (0+1), (2+3), ((0+1)+(2+3)), ... Whoever owns an aligned block of 2^j
// chunks can sum it without knowing of the others, so work can be dealt out freely and the bits
// stay; rows of zeros appended to a problem add zeros at the tree's right edge and change nothing.
#pragma once

#include <algorithm>
#include <cstdint>

namespace normgrad::cpu {

inline constexpr int64_t kChunkRows = 32;

// How a problem's rows are dealt out, and the float64 partial sums of its two results (dgamma and
// dbeta, side by side in a vector of `width` columns).
struct ColumnTree {
  int64_t rows = 0;
  int64_t width = 0;
  int levels = 1;          // a block has up to 2^(levels - 1) chunks
  int64_t blocks = 0;      // tasks
  double* sums = nullptr;  // blocks x levels x width; the last level of a block holds its sum

  // A block's sums are written and read once, 32 bytes per column in all. With 256 rows that is 2 %
  // of what a 16-bit problem moves; so blocks have at least 256 rows, unless that would leave fewer
  // than 16 tasks. 256 are enough for any machine. The bits depend on none of this.
  ColumnTree(int64_t rows_, int64_t width_) : rows(rows_), width(width_) {
    const int64_t most = std::clamp<int64_t>(rows / 256, 16, 256);
    while ((rows + block_rows() - 1) / block_rows() > most) ++levels;
    blocks = (rows + block_rows() - 1) / block_rows();
  }

  int64_t block_rows() const { return kChunkRows << (levels - 1); }
  int64_t doubles() const { return blocks * levels * width; }
  double* level(int64_t block, int index) const { return sums + (block * levels + index) * width; }
  double* result(int64_t block) const { return level(block, levels - 1); }
};

}  // namespace normgrad::cpu
