// The ring of a crew: rows of x and dy, fetched by bulk copies ahead of the work.
#pragma once

#include "cuda/ptx.cuh"
#include "cuda/rows_scalars.cuh"
#include "cuda/rows_team.cuh"
#include "cuda/rows_units.cuh"

namespace normgrad::cuda {

// Rows in a stage keep the phase of their address, so that whole 16-byte pieces can be copied. Row
// i starts at i * slot_bytes, or right behind its neighbour where rows have no gaps.
template <class T, bool kPlain>
class RowsRing {
 public:
  template <class AnyTeam>
  __device__ RowsRing(const RowsLaunch& launch, char* memory, const AnyTeam& team)
      : launch_(launch),
        full_(team.shared.full[team.crew]),
        memory_(memory),
        rows_at_(launch.ring_at + team.crew * launch.geometry.stages * 2 * launch.stage_bytes),
        scales_at_(launch.scales_at + team.crew * launch.geometry.stages * launch.stage_rows *
                                          static_cast<int>(sizeof(RowScales))),
        column_(static_cast<int64_t>(team.rank) * launch.geometry.block_units * kUnit<T>),
        lane_(team.lane) {}

  // A stage in use: where its rows and their scales are.
  struct Stage {
    int index = 0;
    uint32_t parity = 0;
    int rows = 0, scales = 0;  // offsets in shared memory
  };
  __device__ Stage first_stage() const { return {0, 0, rows_at_, scales_at_}; }
  __device__ void wait_for(const Stage& stage) const { wait(&full_[stage.index], stage.parity); }
  __device__ const RowScales& scales(const Stage& stage, int slot) const {
    return reinterpret_cast<const RowScales*>(memory_ + stage.scales)[slot];
  }
  __device__ void advance(Stage& stage) const {
    stage.rows += 2 * launch_.stage_bytes;
    stage.scales += launch_.stage_rows * static_cast<int>(sizeof(RowScales));
    if (++stage.index < launch_.geometry.stages) return;
    stage = {0, stage.parity ^ 1, rows_at_, scales_at_};
  }

  // Where a row of a stage starts; `first` is the first row there.
  template <RowTensor kTensor>
  __device__ const char* row(int64_t first, int slot, const Stage& stage) const {
    const char* base = memory_ + stage.rows + kTensor * launch_.stage_bytes;
    if constexpr (kPlain) return base + slot * launch_.slot_bytes;
    const bool packed = is_packed<kTensor>();
    const int pitch =
        packed ? static_cast<int>(launch_.problem.cols * sizeof(T)) : launch_.slot_bytes;
    return base + slot * pitch + phase_of(data<kTensor>(packed ? first : first + slot));
  }

  // All stages, before the first row. Rows are fetched by one warp of the crew, their statistics by
  // another, lest the others wait for it.
  __device__ void start_rows(int64_t first) const {
#pragma unroll 1
    for (int i = 0; i < launch_.geometry.stages; ++i) fetch(first + i * launch_.row_stride, i);
  }
  __device__ void start_statistics(int64_t first) const {
    const int rows = launch_.stage_rows;
#pragma unroll 1
    for (int i = lane_; i < launch_.geometry.stages * rows; i += 32) {
      const int stage = i / rows, slot = i % rows;
      store(load(first + stage * launch_.row_stride + slot), stage * rows + slot);
    }
  }

  // A stage whose rows nobody reads any more gets those from `first` on, in turn.
  __device__ void fetch(int64_t first, int stage) const {
    if (first >= launch_.problem.rows) return;
    const int64_t left = launch_.problem.rows - first;
    const int count = static_cast<int>(min(left, static_cast<int64_t>(launch_.stage_rows)));
    if (kPlain && ((launch_.x_packed && launch_.dy_packed) || launch_.stage_rows == 1)) {
      const uint32_t bytes = count * row_bytes();
      char* to = memory_ + rows_at_ + 2 * stage * launch_.stage_bytes;
      if (lane_ == 0) {
        expect_bytes(&full_[stage], 2 * bytes);
        arrive(&full_[stage]);
        bulk_copy(to, data<kRowX>(first), bytes, &full_[stage]);
        bulk_copy(to + launch_.stage_bytes, data<kRowDy>(first), bytes, &full_[stage]);
      }
      return;
    }
    if (kPlain && lane_ == 0) {
      expect_bytes(&full_[stage], 2 * count * row_bytes());
      arrive(&full_[stage]);
    }
    __syncwarp();
    copy_rows<kRowX>(first, count, stage);
    copy_rows<kRowDy>(first, count, stage);
    __syncwarp();
    if (!kPlain && lane_ == 0) arrive(&full_[stage]);
  }
  // Loads that nobody waits for: they are stored a row later. One row per lane.
  __device__ void load_statistics(int64_t first, int stage) {
    pending_ = load(lane_ < launch_.stage_rows ? first + lane_ : launch_.problem.rows);
    pending_stage_ = stage;
  }
  __device__ void store_statistics() {
    const int rows = launch_.stage_rows;
    if (pending_stage_ >= 0 && lane_ < rows) store(pending_, pending_stage_ * rows + lane_);
    pending_stage_ = -1;
  }

 private:
  __device__ RowStats load(int64_t row) const {
    return row < launch_.problem.rows ? load_stats<kPlain>(launch_, row) : RowStats{};
  }
  __device__ void store(RowStats stats, int index) const {
    if (launch_.problem.statistics == RowStatistics::kFromX) return;
    reinterpret_cast<RowScales*>(memory_ + scales_at_)[index] = make_scales(launch_, stats);
  }

  template <RowTensor kTensor>
  __device__ bool is_packed() const {
    return kTensor == kRowX ? launch_.x_packed : launch_.dy_packed;
  }
  template <RowTensor kTensor>
  __device__ const T* data(int64_t row) const {
    const void* all = kTensor == kRowX ? launch_.buffers.x : launch_.buffers.dy;
    return static_cast<const T*>(all) + row_offset<kPlain>(launch_, kTensor, row) + column_;
  }

  // Of this block's part.
  __device__ uint32_t row_bytes() const {
    const int64_t most = static_cast<int64_t>(launch_.geometry.block_units) * kUnit<T>;
    return static_cast<uint32_t>(min(launch_.problem.cols - column_, most) * sizeof(T));
  }

  template <RowTensor kTensor>
  __device__ void copy_rows(int64_t first, int count, int stage) const {
    const uint32_t bytes = row_bytes();
    char* base = memory_ + rows_at_ + (2 * stage + kTensor) * launch_.stage_bytes;
    const bool packed = is_packed<kTensor>();
    const int runs = packed ? 1 : count;
    if constexpr (kPlain) {
#pragma unroll 1
      for (int i = lane_; i < runs; i += 32) {
        bulk_copy(base + i * launch_.slot_bytes, data<kTensor>(first + i),
                  packed ? bytes * count : bytes, &full_[stage]);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < runs; ++i) {
        copy_run(base + i * launch_.slot_bytes, data<kTensor>(first + i),
                 packed ? bytes * count : bytes, &full_[stage]);
      }
    }
  }

  // Whole 16-byte pieces in bulk, what sticks out by elements: 8 lanes for each end.
  __device__ void copy_run(char* slot, const T* data, uint32_t bytes, Barrier* full) const {
    const char* from = reinterpret_cast<const char*>(data);
    char* to = slot + phase_of(data);
    const uint32_t head = min(bytes, (16 - phase_of(data)) % 16), body = (bytes - head) / 16 * 16;
    if (lane_ == 0 && body > 0) {
      expect_bytes(full, body);
      bulk_copy(to + head, from + head, body, full);
    }
    const bool tail = lane_ >= 8;
    const uint32_t at = (tail ? head + body : 0) + lane_ % 8 * sizeof(T);
    if (lane_ < 16 && at < (tail ? bytes : head)) {
      *reinterpret_cast<T*>(to + at) = *reinterpret_cast<const T*>(from + at);
    }
  }

  const RowsLaunch& launch_;
  Barrier* const full_;
  char* const memory_;
  const int rows_at_, scales_at_;
  RowStats pending_;
  int pending_stage_ = -1;
  const int64_t column_;  // the first one of this block
  const int lane_;
};

}  // namespace normgrad::cuda
