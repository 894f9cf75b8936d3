// The ring of a crew: rows of x and dy, fetched by bulk copies ahead of the work.
#pragma once

#include "cuda/async.cuh"
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
        memory_(memory + launch.ring_at +
                team.crew * launch.geometry.stages * 2 * launch.stage_bytes),
        scales_(reinterpret_cast<RowScales*>(memory + launch.scales_at) +
                team.crew * launch.geometry.stages * launch.stage_rows),
        column_(static_cast<int64_t>(team.rank) * launch.geometry.block_units * kUnit<T>),
        lane_(team.lane) {}

  // A stage in use: where its rows and their scales are.
  struct Stage {
    int index = 0;
    uint32_t parity = 0;
    const char* rows;
    const RowScales* scales;
  };
  __device__ Stage first_stage() const { return {0, 0, memory_, scales_}; }
  __device__ void wait_for(const Stage& stage) const { wait(&full_[stage.index], stage.parity); }
  __device__ void advance(Stage& stage) const {
    stage.rows += 2 * launch_.stage_bytes;
    stage.scales += launch_.stage_rows;
    if (++stage.index < launch_.geometry.stages) return;
    stage = {0, stage.parity ^ 1, memory_, scales_};
  }

  // Where a row of a stage starts; `first` is the first row there.
  template <RowTensor kTensor>
  __device__ const char* row(int64_t first, int slot, const Stage& stage) const {
    const char* base = stage.rows + kTensor * launch_.stage_bytes;
    if constexpr (kPlain) return base + slot * launch_.slot_bytes;
    const bool packed = is_packed<kTensor>();
    const int pitch =
        packed ? static_cast<int>(launch_.problem.cols * sizeof(T)) : launch_.slot_bytes;
    return base + slot * pitch + phase_of(data<kTensor>(packed ? first : first + slot));
  }

  // All stages, before the first row.
  __device__ void start(int64_t first, int64_t stride) {
#pragma unroll 1
    for (int i = 0; i < launch_.geometry.stages; ++i) fetch(first + i * stride, i);
    RowStats stats[kMaxStages];
#pragma unroll
    for (int i = 0; i < kMaxStages; ++i) stats[i] = load(first + i * stride);
#pragma unroll
    for (int i = 0; i < kMaxStages; ++i) {
      if (i < launch_.geometry.stages) store(stats[i], i);
    }
  }

  // The stage whose rows nobody reads any more gets those from `first` on. Called by one warp.
  // Their statistics take another turn: loads that nobody waits for.
  __device__ void refill(int64_t first, int stage) {
    fetch(first, stage);
    pending_ = load(first);
    pending_stage_ = stage;
  }
  __device__ void store_statistics() {
    if (pending_stage_ >= 0) store(pending_, pending_stage_);
    pending_stage_ = -1;
  }

 private:
  // One row per lane.
  __device__ RowStats load(int64_t first) const {
    const int64_t row = first + lane_;
    const bool wanted = lane_ < launch_.stage_rows && row < launch_.problem.rows;
    return wanted ? load_stats<kPlain>(launch_, row) : RowStats{};
  }
  __device__ void store(RowStats stats, int stage) const {
    if (launch_.problem.statistics == RowStatistics::kFromX) return;
    const int rows = launch_.stage_rows;
    if (lane_ < rows) scales_[stage * rows + lane_] = make_scales(launch_, stats);
  }

  __device__ void fetch(int64_t first, int stage) const {
    const int64_t left = launch_.problem.rows - first;
    if (left <= 0) return;
    const int count = static_cast<int>(min(left, static_cast<int64_t>(launch_.stage_rows)));
    if constexpr (kPlain) {
      if (lane_ == 0) {
        expect_bytes(&full_[stage], 2 * count * row_bytes());
        arrive(&full_[stage]);
      }
      __syncwarp();
      copy_rows<kRowX>(first, count, stage);
      copy_rows<kRowDy>(first, count, stage);
    } else {
      copy_rows<kRowX>(first, count, stage);
      copy_rows<kRowDy>(first, count, stage);
      __syncwarp();
      if (lane_ == 0) arrive(&full_[stage]);
    }
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
    char* base = memory_ + (2 * stage + kTensor) * launch_.stage_bytes;
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
  RowScales* const scales_;
  RowStats pending_;
  int pending_stage_ = -1;
  const int64_t column_;  // the first one of this block
  const int lane_;
};

}  // namespace normgrad::cuda
