// The ring of a crew: rows of x and dy, fetched by bulk copies ahead of the work.
#pragma once

#include "cuda/ptx.cuh"
#include "cuda/rows_scalars.cuh"
#include "cuda/rows_team.cuh"
#include "cuda/rows_units.cuh"

namespace normgrad::cuda {

// Rows in a stage keep the phase of their address, so that whole 16-byte pieces can be copied. Row
// i starts at i * slot_bytes, or right behind its neighbour where rows have no gaps.
template <class T, bool kPlain, bool kShort>
class RowsRing {
 public:
  // columns: of this block.
  __device__ RowsRing(const RowsLaunch& launch, char* memory, const Team<kShort>& team, int columns)
      : launch_(launch),
        full_(team.shared.full[team.crew]),
        source_(team.shared.sources[team.crew]),
        memory_(memory),
        rows_at_(launch.ring_at + team.crew * launch.geometry.stages * 2 * launch.stage_bytes),
        scales_at_(launch.scales_at + team.crew * launch.geometry.scales_bytes()),
        places_at_(launch.places_at + team.crew * launch.geometry.stages * launch.stage_rows *
                                          static_cast<int>(sizeof(RowPlace))),
        column_(static_cast<int>(team.rank) * launch.geometry.block_units * kUnit<T>),
        row_bytes_(columns * static_cast<int>(sizeof(T))),
        lane_(team.lane) {}

  // A stage in use.
  struct Stage {
    uint32_t turn = 0;  // twice its index, and the parity of its barrier's phase
    int scales = 0;     // its place in the table
    __device__ int index() const { return static_cast<int>(turn / 2); }
  };
  __device__ void wait_for(const Stage& stage) const {
    wait(&full_[stage.index()], stage.turn % 2);
  }
  __device__ const RowScales& scales(const Stage& stage, int slot) const {
    return table()[stage.scales + slot];
  }
  __device__ void advance(Stage& stage) const {
    stage.scales = (stage.scales + launch_.stage_rows) & (2 * launch_.geometry.batch - 1);
    stage.turn += 2;
    if (stage.index() == launch_.geometry.stages) stage.turn = ~stage.turn % 2;
  }

  // Where a row of a stage is.
  __device__ RowPlace place(const Stage& stage, int slot) const {
    if constexpr (!kPlain) return places(stage)[slot];
    const int x = rows_at(stage) + slot * launch_.slot_bytes;
    return {x, x + launch_.stage_bytes, nullptr};
  }

  // All stages, before the first row. Rows are fetched by one warp of the crew, described by
  // another, lest the others wait for it.
  __device__ void start_rows(int64_t first) const {
    if (kPlain && lane_ == 0) {
      source_ = {reinterpret_cast<const char*>(data<kRowX>(first)),
                 reinterpret_cast<const char*>(data<kRowDy>(first))};
    }
    Stage stage;
#pragma unroll 1
    for (int i = 0; i < launch_.geometry.stages; ++i) {
      fetch(first + i * launch_.row_stride, stage);
      advance(stage);
    }
  }
  // The statistics of the first two batches are asked for before the rows, and used after.
  struct FirstStats {
    RowStats one, other;
  };
  __device__ FirstStats ask_stats(int64_t first) const {
    const int batch = launch_.geometry.batch;
    if (!kShort) return {stats_of(row_of(first, lane_)), {}};
    if (lane_ >= batch) return {};
    return {stats_of(row_of(first, lane_)), stats_of(row_of(first, batch + lane_))};
  }
  __device__ void start_scales(int64_t first, const FirstStats& stats) const {
    const int batch = launch_.geometry.batch;
    if (lane_ < (kShort ? batch : 2 * batch)) table()[lane_] = make_scales(launch_, stats.one);
    if (lane_ >= batch) return;
    if (kShort) table()[batch + lane_] = make_scales(launch_, stats.other);
    landing() = {};
    send(row_of(first, 2 * batch + lane_));
  }

  // A stage whose rows nobody reads any more gets those from `first` on, in turn. The crew waits
  // for the warp that does it: a piece of each tensor takes 30 instructions, not 90, by addresses
  // that are kept.
  __device__ void fetch(int64_t first, const Stage& stage) const {
    if (first >= launch_.problem.rows) return;
    const int64_t left = launch_.problem.rows - first;
    const int count =
        kShort ? static_cast<int>(min(left, static_cast<int64_t>(launch_.stage_rows))) : 1;
    Barrier* full = &full_[stage.index()];
    if (kPlain && (!kShort || launch_.in_pieces)) {
      if (lane_ != 0) return;
      const uint32_t bytes = count * row_bytes_;
      const RowsSource source = source_;
      char* to = memory_ + rows_at(stage);
      arrive_expecting(full, 2 * bytes);
      bulk_copy(to, source.x, bytes, full);
      bulk_copy(to + launch_.stage_bytes, source.dy, bytes, full);
      source_ = {source.x + launch_.piece_stride[kRowX], source.dy + launch_.piece_stride[kRowDy]};
      return;
    }
    if (kPlain && lane_ == 0) arrive_expecting(full, 2 * count * row_bytes_);
    if (!kPlain && lane_ < count) {
      const int64_t row = first + lane_;
      places(stage)[lane_] = {
          find<kRowX>(first, stage), find<kRowDy>(first, stage),
          static_cast<T*>(launch_.buffers.dx) + column_ + row_offset<kPlain>(launch_, kRowDx, row)};
    }
    __syncwarp();
    copy_rows<kRowX>(first, count, stage);
    copy_rows<kRowDy>(first, count, stage);
    __syncwarp();
    if (!kPlain && lane_ == 0) arrive(full);
  }

  // The table has two batches of rows. When one is done, its place gets the one after the next, a
  // row per lane. Its statistics were asked for a batch before. `first`: of the stage just read.
  __device__ void describe(int64_t first, const Stage& stage) const {
    const int rows = launch_.stage_rows, batch = launch_.geometry.batch;
    const int next = stage.scales + rows;
    if ((next & (batch - 1)) != 0 || lane_ >= batch) return;
    wait_for_copies();
    table()[next - batch + lane_] = make_scales(launch_, landing());
    send(row_of(first, rows + 2 * batch + lane_));
  }

 private:
  __device__ int rows_at(const Stage& stage) const {
    return rows_at_ + stage.index() * 2 * launch_.stage_bytes;
  }
  __device__ RowPlace* places(const Stage& stage) const {
    return reinterpret_cast<RowPlace*>(memory_ + places_at_) + stage.index() * launch_.stage_rows;
  }
  // Where the row of this lane starts in shared memory; `first` is the first one in the stage.
  template <RowTensor kTensor>
  __device__ int find(int64_t first, const Stage& stage) const {
    const bool packed = is_packed<kTensor>();
    const int pitch =
        packed ? static_cast<int>(launch_.problem.cols * sizeof(T)) : launch_.slot_bytes;
    return rows_at(stage) + kTensor * launch_.stage_bytes + lane_ * pitch +
           static_cast<int>(phase_of(data<kTensor>(packed ? first : first + lane_)));
  }
  __device__ RowScales* table() const { return reinterpret_cast<RowScales*>(memory_ + scales_at_); }
  // Row i of this crew, counted from the stage that starts with row `first`.
  __device__ int64_t row_of(int64_t first, int i) const {
    const int rows = launch_.stage_rows;
    return kShort ? first + i / rows * launch_.row_stride + i % rows
                  : first + i * launch_.row_stride;
  }
  // Where this lane's statistics of the batch arrive that is the next to be described.
  __device__ RowStats& landing() const {
    return reinterpret_cast<RowStats*>(table() + 2 * launch_.geometry.batch)[lane_];
  }
  __device__ void send(int64_t row) const {
    if (row < launch_.problem.rows) send_stats<kPlain>(launch_, row, landing());
  }
  __device__ RowStats stats_of(int64_t row) const {
    return row < launch_.problem.rows ? load_stats<kPlain>(launch_, row) : RowStats{};
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

  template <RowTensor kTensor>
  __device__ void copy_rows(int64_t first, int count, const Stage& stage) const {
    const uint32_t bytes = row_bytes_;
    char* base = memory_ + rows_at(stage) + kTensor * launch_.stage_bytes;
    Barrier* full = &full_[stage.index()];
    const bool packed = is_packed<kTensor>();
    const int runs = packed ? 1 : count;
    if constexpr (kPlain) {
#pragma unroll 1
      for (int i = lane_; i < runs; i += 32) {
        bulk_copy(base + i * launch_.slot_bytes, data<kTensor>(first + i),
                  packed ? bytes * count : bytes, full);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < runs; ++i) {
        copy_run<kTensor>(base + i * launch_.slot_bytes, data<kTensor>(first + i),
                          packed ? bytes * count : bytes, full);
      }
    }
  }

  // All 16-byte pieces that have some of a run, with what else lies in the first and the last; but
  // nothing outside of the tensor: there its first and last elements are copied one by one, for
  // which the whole crew waits.
  template <RowTensor kTensor>
  __device__ void copy_run(char* slot, const T* data, uint32_t bytes, Barrier* full) const {
    const char* from = reinterpret_cast<const char*>(data);
    const char* first = from - phase_of(data);
    const uint32_t end = phase_of(data) + bytes, pieces = (end + 15) / 16 * 16;
    const bool head = first < launch_.low[kTensor];
    const bool tail = first + pieces > launch_.high[kTensor];
    const uint32_t begin = head ? 16 : 0, stop = tail ? pieces - 16 : pieces;
    if (lane_ == 0 && begin < stop) {
      expect_bytes(full, stop - begin);
      bulk_copy(slot + begin, first + begin, stop - begin, full);
    }
    if (!head && !tail) return;
    const uint32_t at = (lane_ < 8 ? 0 : pieces - 16) + lane_ % 8 * sizeof(T);
    if (lane_ < 16 && (lane_ < 8 ? head : tail) && at >= phase_of(data) && at < end) {
      *reinterpret_cast<T*>(slot + at) = *reinterpret_cast<const T*>(first + at);
    }
  }

  const RowsLaunch& launch_;
  Barrier* const full_;
  RowsSource& source_;
  char* const memory_;
  const int rows_at_, scales_at_, places_at_;
  const int column_;          // the first one of this block
  const uint32_t row_bytes_;  // of this block's part
  const int lane_;
};

}  // namespace normgrad::cuda
