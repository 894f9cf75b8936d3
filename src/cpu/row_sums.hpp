// The sums of a row, as kernels and the workspace know them.
#pragma once

#include <cstdint>

namespace normgrad::cpu {

// Rows that are looked at together, at most.
inline constexpr int64_t kMostRows = 32;

// Row sums restart every 8192 columns: a function of the row alone, and a unit that threads can
// share without changing a bit.
inline constexpr int64_t kSegment = 8192;

struct RowSums {
  double first = 0;  // of g; of x^2 if the statistics come from x
  double g_x = 0;    // of g * (x - mean)

  RowSums& operator+=(const RowSums& other) {
    first += other.first;
    g_x += other.g_x;
    return *this;
  }
};

}  // namespace normgrad::cpu
