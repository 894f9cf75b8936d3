// LayerNorm and RMSNorm backward on the GPU:
//
//   g = dy * gamma, c1 = r * mean(g), c2 = r * r * mean(g * x_hat); RMSNorm has c1 = 0
//   (with x_hat in the place of x: mean = 0, c2 = r * mean(g * x_hat))
//   dx = (r * dy) * gamma - c1 - (x - mean) * c2
//   dgamma = sum of dy * x_hat, dbeta = sum of dy over the rows
//
// Rows of x and dy come into shared memory ahead of the teams that work on them. A team sums its
// row, exchanges the sums and writes dx; what it adds to dgamma and dbeta stays in its registers
// until the last row. Per element 2 reads and 1 write of the data type, and 8 bytes of partial sums
// per column and block.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/rows_columns.cuh"
#include "cuda/rows_gamma.cuh"
#include "cuda/rows_ring.cuh"
#include "cuda/rows_scalars.cuh"
#include "cuda/rows_team.cuh"
#include "cuda/rows_units.cuh"
#include "cuda/rows_wide.cuh"

namespace normgrad::cuda {

// kPlain: rows are evenly spaced, start at multiples of 16 bytes and have whole units. The others
// take more work; the bits are the same. kShort: several teams in a warp, several rows in a stage.
// kDh: dh is added to dx; it comes by the second-level cache, since the ring has no room for it.
// kAhead: sums travel over a cluster while dx of the row before is written.
template <class T, RowForm kForm, int kUnits, bool kPlain, bool kShort, bool kDh, bool kAhead>
class RowsWork {
 public:
  __device__ RowsWork(const RowsLaunch& launch, RowsShared& shared, char* memory)
      : launch_(launch),
        problem_(launch.problem),
        memory_(memory),
        team_(shared, launch.geometry),
        gamma_(launch, memory),
        columns_(launch, memory, team_),
        ring_(launch, memory, team_, columns_.count),
        dx_(static_cast<T*>(launch.buffers.dx) + columns_.first),
        fetches_(team_.role == 0),
        describes_(team_.role + 1 == team_.warps && problem_.statistics != RowStatistics::kFromX) {}

  __device__ void run(int part) {
    int64_t first = part * launch_.geometry.part_step + team_.crew * launch_.geometry.crew_step;
    if (kPhased) ring_.align(first);
    FirstStats stats;
    if (describes_) stats = ring_.ask_stats(first);
    const auto gamma = gamma_.ask(launch_, columns_.first, columns_.count);
    if (fetches_) {
      ring_.start_rows(first);
      for (int i = 0; kDh && i < launch_.geometry.stages; ++i) {
        prefetch_dh(first + i * launch_.row_stride);
      }
    }
    if (describes_) ring_.start_scales(first, stats);
    columns_.clear();
    gamma_.put(launch_, columns_.first, columns_.count, gamma);
    __syncthreads();
    if (kPlain || launch_.one_phase) dx_ += first * launch_.strides[kRowDx];
    if (kPhased && launch_.one_phase) {
      phases_ = pack_phases(ring_.template phase<kRowX>(first), ring_.template phase<kRowDy>(first),
                            phase_of(dx_));
    }
    if constexpr (kAhead) {
      take_rows_ahead(first);
    } else {
      take_rows(first);
    }
    let_next_kernel_start();
    columns_.finish(part, team_);
  }

 private:
  static constexpr int kE = kUnit<T>;
  static constexpr bool kRms = kForm == RowForm::kRms;
  static constexpr bool kPhased = !kPlain && !kShort;  // all lanes of a warp have one row
  using Stage = typename RowsRing<T, kPlain, kShort>::Stage;
  using FirstStats = typename RowsRing<T, kPlain, kShort>::FirstStats;

  struct Units {  // of this thread
    uint4 x[kUnits], dy[kUnits];
  };

  __device__ int unit(int j) const { return j * team_.threads() + team_.position; }

  // Whether this warp has none of its units j, and whether all of its units are whole. !kShort.
  __device__ bool is_absent(int j) const {
    return (j * team_.warps + team_.role) * 32 * kE >= columns_.count;
  }
  __device__ bool is_whole(int j = kUnits - 1) const {
    return (j * team_.warps + team_.role + 1) * 32 * kE <= columns_.count;
  }
  // 16-bit rows are bound by instructions, fp32 by memory: it gains nothing.
  __device__ bool is_left_out(int j) const {
    return sizeof(T) == 2 && !kShort && j > 0 && is_absent(j);
  }
  // Unit j may be the row's last, with more behind it, or beyond its end.
  __device__ void clear_end(int j, float (&x)[kE], float (&dy)[kE]) const {
    const int left = columns_.count - unit(j) * kE;
    if (left >= kE) return;
    clear_from<T>(left, x);
    clear_from<T>(left, dy);
  }
  __device__ static uint32_t pack_phases(uint32_t x, uint32_t dy, uint32_t dx) {
    return uniform(x * 256 + dy * 16 + dx);
  }

  // Unit u of a row in shared memory; zeros for a row that is not there. Units beyond the end of
  // the row are any others of it: gamma is 0 there.
  __device__ uint4 load(int row, int u, bool there) const {
    if (kShort && !there) return {0, 0, 0, 0};
    const int last = static_cast<int>((columns_.count - 1u) / kE);
    const int at = row + 16 * min(u, last);
    return kPlain ? *reinterpret_cast<const uint4*>(memory_ + at) : load_shifted<T>(memory_, at);
  }

  __device__ Units load_units(const RowPlace& place, bool there) const {
    Units units;
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      units.x[j] = load(place.x, unit(j), there);
      units.dy[j] = load(place.dy, unit(j), there);
    }
    return units;
  }

  // This thread's units of a row of any phase, less mean; beyond the row's end they are anything.
  __device__ void load_phased(int row, uint32_t phase, float mean,
                              float (&values)[kUnits][kE]) const {
    Pieces pieces[kUnits];
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const auto* at = reinterpret_cast<const uint4*>(memory_ + (row & ~15)) + unit(j);
      pieces[j] = {at[0], at[1]};
    }
    with_phase<T>(phase, [&](auto constant) {
#pragma unroll
      for (int j = 0; j < kUnits; ++j) {
        unpack<T, constant()>(pieces[j], values[j]);
#pragma unroll
        for (int e = 0; e < kE; ++e) {
          values[j][e] -= mean;
          // Here, lest it be done behind the branches, to what they have moved.
          if (sizeof(T) == 4) keep_here(values[j][e]);
        }
      }
    });
  }

  __device__ void take_rows(int64_t first) {
    Stage stage;
#pragma unroll 1
    for (; first < problem_.rows; first += launch_.row_stride) {
      ring_.wait_for(stage);
      const int turns = kShort ? launch_.geometry.turns : 1;
#pragma unroll 1
      for (int turn = 0; turn < turns; ++turn) {
        work(first, kShort ? turn * launch_.groups + team_.group : 0, stage, turn + 1 == turns);
      }
      ring_.advance(stage);
      if (kPlain || launch_.one_phase) dx_ += launch_.dx_stride;
    }
  }

  // The data of a row wait in registers for its sums, as they came: its stage is free for another.
  // RMSNorm bf16 2048x32768 115 to 106 us.
  __device__ void take_rows_ahead(int64_t first) {
    auto& travel = reinterpret_cast<TravellingSums*>(memory_ + launch_.travel_at)[team_.crew];
    Stage stage, held_stage;
    Units held;
#pragma unroll 1
    for (uint32_t n = 0;; ++n, first += launch_.row_stride) {
      asm volatile("" : "+r"(team_.position));  // as below
      const bool more = first < problem_.rows;
      Units next;
      if (more) {
        ring_.wait_for(stage);
        next = load_units(ring_.place(stage, 0), true);
        float centred[kUnits][kE], dy[kUnits][kE];
        double2 sums = {0, 0};
        open(next, ring_.scales(stage, 0).mean, centred, dy, sums);
        team_.send_sum(sums, travel, n);
        if (fetches_ || describes_) __syncwarp();
        if (fetches_) ring_.fetch(first + launch_.ring_stride, stage);
        if (describes_ && n > 1) {
          // The table's place of row n - 2, the last that is done.
          const int done = (stage.scales - 2) & (2 * launch_.geometry.batch - 1);
          ring_.describe(first - 2 * launch_.row_stride, done);
        }
      }
      if (n > 0) {
        const double2 sums = team_.receive_sum(travel, n - 1);
        const RowScales scales = ring_.scales(held_stage, 0);
        float centred[kUnits][kE], dy[kUnits][kE];
        double2 unused;
        open(held, scales.mean, centred, dy, unused);
        write(first - launch_.row_stride, true, dx_, n - 1, scales, sums, centred, dy);
        dx_ += launch_.dx_stride;
      }
      if (!more) break;
      held = next;
      held_stage = stage;
      ring_.advance(stage);
    }
  }

  // One row; `last` in its stage.
  __device__ __forceinline__ void work(int64_t first, int slot, const Stage& stage, bool last) {
    // What follows from it is worked out anew for each row: kept in registers, it would spill
    // others.
    asm volatile("" : "+r"(team_.position));
    const int64_t row = first + slot;
    bool there = !kShort || row < problem_.rows;
    RowPlace place;
    T* dx_row = dx_;
    if (kPhased && launch_.one_phase) {
      place = ring_.place(stage, phases_ / 256, phases_ / 16 % 16);
    } else {
      place = ring_.place(stage, there ? slot : 0);
      if (!kPlain) dx_row = static_cast<T*>(launch_.buffers.dx) + place.dx;
      if (kPhased) phases_ = pack_phases(place.x % 16, place.dy % 16, phase_of(dx_row));
    }
    const RowScales scales = ring_.scales(stage, slot);
    const int nth = kShort ? rows_++ : stage.scales;
    const float mean = there ? scales.mean : 0;
    float centred[kUnits][kE], dy[kUnits][kE];
    double2 sums = {0, 0};
    Units units;
    if constexpr (kPhased) {
      load_phased(place.x, phases_ / 256, kForm == RowForm::kLayer ? mean : 0, centred);
      load_phased(place.dy, phases_ / 16, 0, dy);
      if (!is_whole()) {
#pragma unroll
        for (int j = 0; j < kUnits; ++j) clear_end(j, centred[j], dy[j]);
      }
    } else {
      units = load_units(place, there);
    }
    open(units, mean, centred, dy, sums);
    sums = team_.sum(sums);
    if (last) refill(first, stage);
    if (kPlain && kShort) dx_row += slot * launch_.strides[kRowDx];
    write(row, there, dx_row, nth, scales, sums, centred, dy);
  }

  // Of a row: values, x less mean, and the sums of this thread's units. kPhased: they are there.
  __device__ __forceinline__ void open(const Units& units, float mean, float (&centred)[kUnits][kE],
                                       float (&dy)[kUnits][kE], double2& sums) const {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      if (is_left_out(j)) continue;
      if constexpr (!kPhased) {
        unpack<T>(units.x[j], centred[j]);
        unpack<T>(units.dy[j], dy[j]);
      }
      if (kShort && !kPlain) clear_end(j, centred[j], dy[j]);
      float2 unit_sums = look(unit(j), mean, centred[j], dy[j]);
      if (kRms && unit(j) * kE >= columns_.count) unit_sums.x = 0;
      sums = j == 0 ? double2{unit_sums.x, unit_sums.y}
                    : double2{sums.x + unit_sums.x, sums.y + unit_sums.y};
    }
  }

  // What follows from a row's sums: dx, and its terms of the column sums, of which it is the nth.
  __device__ __forceinline__ void write(int64_t row, bool there, T* dx_row, int nth,
                                        const RowScales& scales, double2 sums,
                                        float (&centred)[kUnits][kE], float (&dy)[kUnits][kE]) {
    uint4 dh_units[kUnits];
    if constexpr (kDh) {
#pragma unroll
      for (int j = 0; j < kUnits; ++j) dh_units[j] = load_dh(row, unit(j));
    }

    RowScalars scalars;
    const bool fine = make_scalars<kRms>(launch_, scales, sums, scalars) || !there;
    if (__builtin_expect(kShort ? __any_sync(~0u, !fine) : !fine, 0)) {
      const bool served = fine || is_served<kRms>(launch_, scalars, sums);
      const bool zero = (kRms || sums.x == 0) && sums.y == 0 && is_near_1<26>(scalars.r);
      if (examine(row, !served, zero, dy)) {
        if (!kShort) return columns_.end_row(nth);
        there = false;
#pragma unroll
        for (int i = 0; i < kUnits * kE; ++i) centred[i / kE][i % kE] = dy[i / kE][i % kE] = 0;
      }
    }
    if (kShort && !there) scalars = {};
    if (kPhased) asm volatile("" : "+r"(team_.position));  // as above
    uint4 dx_units[kUnits];
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      if (is_left_out(j)) continue;
      dx_units[j] = grads(j, centred[j], dy[j], scalars, dh_units[j]);
      if (!kPhased && problem_.has_dx) store(dx_row, unit(j), dx_units[j], there);
    }
    if (kPhased && problem_.has_dx) store_phased(dx_row, dx_units);
    columns_.end_row(nth);
  }

  // The sums of unit u, whose x becomes x - mean.
  __device__ float2 look(int u, float mean, float (&x)[kE], const float (&dy)[kE]) const {
    float gamma[kE], g[kE];
    gamma_.unit(u, gamma);
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      g[e] = dy[e] * gamma[e];
      if constexpr (kForm == RowForm::kLayer && !kPhased) x[e] -= mean;
    }
    return {kRms ? tree_sum(x, x) : tree_sum(g), tree_sum(g, x)};
  }

  // dx of one unit; adds to the column sums.
  __device__ uint4 grads(int j, const float (&centred)[kE], const float (&dy)[kE],
                         const RowScalars& scalars, const uint4& dh_unit) {
    float gamma[kE], dx[kE], dh[kE];
    gamma_.unit(unit(j), gamma);
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      const float scaled_dy = kForm == RowForm::kXHat ? dy[e] : dy[e] * scalars.r;
      dx[e] = scalars.dx(dy[e], gamma[e], centred[e]);
      columns_.add(j * kE + e, dy[e], scaled_dy, centred[e]);
    }
    if constexpr (kDh) {
      unpack<T>(dh_unit, dh);
#pragma unroll
      for (int e = 0; e < kE; ++e) dx[e] += dh[e];
    }
    return pack<T>(dx);
  }

  __device__ const T* dh_row(int64_t row) const {
    return static_cast<const T*>(launch_.buffers.dh) + row_offset<kPlain>(launch_, kRowDh, row) +
           columns_.first;
  }
  __device__ void prefetch_dh(int64_t row) const {
    if (!kPlain || team_.lane != 0 || row >= problem_.rows) return;
    prefetch_bulk(dh_row(row), columns_.count * static_cast<int>(sizeof(T)));
  }
  // Unit u; zeros beyond the end of the row.
  __device__ uint4 load_dh(int64_t row, int u) const {
    const T* from = dh_row(row) + u * kE;
    if constexpr (kPlain) {
      return u * kE < columns_.count ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
    } else {
      T values[kE];
#pragma unroll
      for (int e = 0; e < kE; ++e) values[e] = u * kE + e < columns_.count ? from[e] : T(0.0f);
      return reinterpret_cast<const uint4&>(values);
    }
  }

  __device__ void store(T* dx_row, int u, const uint4& unit, bool active) const {
    if constexpr (kPlain) {
      if (active && u * kE < columns_.count) reinterpret_cast<uint4*>(dx_row)[u] = unit;
    } else {
      store_shifted(dx_row, u, unit, columns_.count, team_.lane % team_.lanes, team_.lanes, active);
    }
  }

  __device__ void store_phased(T* dx_row, const uint4 (&units)[kUnits]) const {
    with_phase<T>(phases_, [&](auto phase) {
#pragma unroll
      for (int j = 0; j < kUnits; ++j) {
        if (is_whole(j)) store_units<T, phase()>(dx_row, unit(j), units[j], team_.lane);
      }
    });
    if (is_whole()) return;
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      if (!is_whole(j) && !is_absent(j)) store(dx_row, unit(j), units[j], true);
    }
  }

  // After a sum, which no warp of the crew leaves before all have come: nobody reads the stage any
  // more.
  __device__ void refill(int64_t first, const Stage& stage) {
    if (!fetches_ && !describes_) return;
    __syncwarp();
    if (fetches_) {
      ring_.fetch(first + launch_.ring_stride, stage);
      if (kDh) prefetch_dh(first + launch_.ring_stride);
    }
    if (describes_) ring_.describe(first, stage.scales);
  }

  // Rows of zeros in dy are common and float32 serves them; the others are done here in float64,
  // and the answer is true. All threads of a warp come here if one of its rows `needs` it. zero:
  // the sums with g are.
  __device__ bool examine(int64_t row, bool needs, bool zero, const float (&dy)[kUnits][kE]) {
    bool any = false;
#pragma unroll
    for (int i = 0; i < kUnits * kE; ++i) {
      any |= !is_left_out(i / kE) && dy[i / kE][i % kE] != 0;
    }
    Team<kShort> team = team_.stranger();
    const bool gradient = team.any(any);
    team_.sums = team.sums;
    const bool wide = needs && (gradient || !zero);
    if (!__any_sync(~0u, wide)) return false;
    const WideRow<T, kUnits> own(launch_, team, wide ? row : 0);
    const RowStats stats = wide ? load_stats<kPlain>(launch_, row) : RowStats{};
    const WideScalars scalars = wide_scalars(launch_, team, gamma_, own, stats, wide);
    team_.sums = team.sums;
    if (!wide) return false;
      // The parameters first, since dx may lie on x or dy; one at a time, which spares registers.
#pragma unroll
    for (int i = 0; i < kUnits * kE; ++i) {
      const int c = unit(i / kE) * kE + i % kE;
      asm volatile("" ::: "memory");
      if (c >= columns_.count) continue;
      const float dy = widen(own.dy[c]);
      const double x_hat = scalars.normalizer.x_hat(widen(own.x[c]));
      columns_.add_product(i, dy, static_cast<float>(dy * x_hat));
    }
    if (problem_.has_dx) write_wide_dx(own, gamma_, scalars, kDh ? dh_row(row) : nullptr);
    return true;
  }

  const RowsLaunch& launch_;
  const RowsProblem& problem_;
  char* const memory_;
  Team<kShort> team_;
  Gamma<T> gamma_;
  RowsColumns<T, kRms, kUnits, kShort> columns_;
  RowsRing<T, kPlain, kShort> ring_;
  T* dx_;                           // of the first row of a stage, if evenly spaced
  uint32_t phases_ = 0;             // of dx, dy and x; kPhased
  int rows_ = 0;                    // done, where a stage has several
  const bool fetches_, describes_;  // what this warp does for its crew
};

// A block of 16 warps fills a multiprocessor.
constexpr int kRegisters = 128;

template <class T, RowForm kForm, int kUnits, bool kPlain, bool kShort, bool kDh, bool kAhead>
__global__ void __maxnreg__(kRegisters) rows_kernel(const __grid_constant__ RowsLaunch launch) {
#if NORMGRAD_HOPPER
  char* memory = dynamic_shared<char>();
  RowsShared& shared = *reinterpret_cast<RowsShared*>(memory);
  const RowsGeometry& geometry = launch.geometry;
  // A warp for each crew: the lanes of one would do it in turn, 1 us for all.
  const int crew = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x % 32 == 0 && crew < geometry.crews) {
    for (Barrier& barrier : shared.full[crew]) init_barrier(&barrier, 1);
    if (geometry.cluster > 1) {
      for (Barrier& barrier : shared.cluster[crew]) init_barrier(&barrier, 1);
    }
    if constexpr (kAhead) {
      auto& travel = reinterpret_cast<TravellingSums*>(memory + launch.travel_at)[crew];
      travel = {};
      for (Barrier& barrier : travel.arrived) init_barrier(&barrier, 1);
    }
  }
  if (threadIdx.x < 2 * kSumSlots) {
    shared.sums[threadIdx.x / kSumSlots][threadIdx.x % kSumSlots] = {};
  }
  fence_barrier_init();
  if (geometry.cluster > 1) {
    sync_cluster();
  } else {
    __syncthreads();
  }
  RowsWork<T, kForm, kUnits, kPlain, kShort, kDh, kAhead>(launch, shared, memory)
      .run(blockIdx.x / geometry.cluster);
  // No block leaves while others may still send to it.
  if (geometry.cluster > 1) sync_cluster();
#endif
}

// The kernels of one type.
template <class T>
RowsKernel find_rows_kernel(const RowsVariant& variant) {
  RowsKernel found = nullptr;
  const auto add = [&]<int kUnits, bool kShort, bool kDh = false, bool kAhead = false>() {
    if (variant.units_per_thread != kUnits || variant.is_short != kShort || variant.dh != kDh ||
        variant.ahead != kAhead) {
      return;
    }
    with_form(variant.statistics, [&](auto form) {
      found = &rows_kernel<T, form(), kUnits, true, kShort, kDh, kAhead>;
      if constexpr (!kAhead) {
        if (!variant.plain) found = &rows_kernel<T, form(), kUnits, false, kShort, kDh, false>;
      }
    });
  };
  constexpr int kMost = kColumnsPerThread / kUnit<T>;
  add.template operator()<1, true>();
  add.template operator()<2, true>();
  if constexpr (kMost == 4) add.template operator()<4, true>();
  add.template operator()<kMost, false>();
  add.template operator()<kMost, false, true>();
  if constexpr (sizeof(T) == 2) add.template operator()<kMost, false, false, true>();
  return found;
}

}  // namespace normgrad::cuda
