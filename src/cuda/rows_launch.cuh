// What the rows kernel gets.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/rows_geometry.hpp"
#include "normgrad/plan.hpp"
#include "ops/problem.hpp"

namespace normgrad::cuda {

struct RowsLaunch {
  RowsProblem problem;
  Buffers buffers;
  RowsGeometry geometry;
  int64_t strides[6] = {};           // of the rows of x, dy, dx, mean, spread and dh
  const int64_t* offsets = nullptr;  // or the offset of each row in each of them
  double per_col = 0;
  bool x_packed = false, dy_packed = false;  // rows follow each other without gaps
  int64_t row_stride = 0;   // from a row of a crew's stage to the same in its next stage
  int64_t ring_stride = 0;  // and after all stages
  int64_t dx_stride = 0;    // the first of them in dx, in elements
  bool one_phase = false;   // not plain, but all rows of a crew of one tensor have the same phase
  bool one_line = false;    // and mostly the same place in a cache line
  bool in_pieces = false;   // of x and dy, one for each stage: plain, and packed or single rows
  const char *low[2] = {}, *high[2] = {};  // the first byte of x and of dy, and behind the last
  int64_t piece_stride[2] = {};            // bytes from one of a crew to its next, of x and of dy
  int groups = 1;                          // teams of a crew
  int stage_rows = 1, stage_bits = 0;      // a power of 2, and which
  int slot_bytes = 0;                      // of a row in a stage
  int stage_bytes = 0;                     // of one tensor
  float* partials = nullptr;               // parts x {dgamma, dbeta} x padded columns
  int64_t padded_cols = 0;
  // Offsets in shared memory.
  int gamma_at = 0, scales_at = 0, travel_at = 0, places_at = 0, chunks_at = 0, ring_at = 0;
};

// What x is, and so what is summed: RMSNorm's, LayerNorm's or, with no mean to subtract, its x_hat.
enum class RowForm { kRms, kLayer, kXHat };

// Calls visit with the form as a constant.
template <class Visit>
decltype(auto) with_form(RowStatistics statistics, const Visit& visit) {
  if (is_rms(statistics)) return visit(std::integral_constant<RowForm, RowForm::kRms>());
  if (statistics == RowStatistics::kXHatStd) {
    return visit(std::integral_constant<RowForm, RowForm::kXHat>());
  }
  return visit(std::integral_constant<RowForm, RowForm::kLayer>());
}

// A kernel, of one type.
struct RowsVariant {
  RowStatistics statistics;
  int units_per_thread;
  bool plain;     // rows of x, dy, dx, dh: evenly spaced, at multiples of 16 bytes, of whole units
  bool is_short;  // a row is for fewer than 32 lanes
  bool dh;
  bool ahead;  // as RowsGeometry has it; plain, without dh
};
using RowsKernel = void (*)(RowsLaunch);
RowsKernel rows_kernel_f32(const RowsVariant& variant);
RowsKernel rows_kernel_f16(const RowsVariant& variant);
RowsKernel rows_kernel_bf16(const RowsVariant& variant);

}  // namespace normgrad::cuda
