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

  // Before anything else: rows come to the place in a cache line that the first one of x has in
  // memory, mostly that of all. Copies that shift lines are slower: RMSNorm fp32 8192x4095 112.2
  // us, not 109.
  __device__ void align(int64_t first) {
    if (!launch_.one_line) return;
    rows_at_ += reinterpret_cast<uintptr_t>(data(kRowX, offset(kRowX, first))) % 128 / 16 * 16;
  }

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
    if (stage.turn >= 2u * launch_.geometry.stages) stage.turn = ~stage.turn % 2;
  }

  // Where the only row of a stage is, by the phases of x and dy.
  __device__ RowPlace place(const Stage& stage, uint32_t x_phase, uint32_t dy_phase) const {
    const int x = rows_at(stage);
    return {x + static_cast<int>(x_phase), x + launch_.stage_bytes + static_cast<int>(dy_phase), 0};
  }
  // Where a row of a stage is.
  __device__ RowPlace place(const Stage& stage, int slot) const {
    if constexpr (!kPlain) return places(stage)[slot];
    const int x = rows_at(stage) + slot * launch_.slot_bytes;
    return {x, x + launch_.stage_bytes, 0};
  }

  // Of this block's part of a row, in one of the tensors.
  template <RowTensor kTensor>
  __device__ uint32_t phase(int64_t row) const {
    return phase_of(data(kTensor, offset(kTensor, row)));
  }

  // All stages, before the first row. Rows are fetched by one warp of the crew, described by
  // another, lest the others wait for it.
  __device__ void start_rows(int64_t first) const {
    if ((kPlain || launch_.one_phase) && lane_ == 0) {
      source_ = {reinterpret_cast<const char*>(data(kRowX, offset(kRowX, first))),
                 reinterpret_cast<const char*>(data(kRowDy, offset(kRowDy, first)))};
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
    StatsBits one, other;
  };
  __device__ FirstStats ask_stats(int64_t first) const {
    const int batch = launch_.geometry.batch;
    if (!kShort) return {stats_of(row_of(first, lane_)), {}};
    if (lane_ >= batch) return {};
    return {stats_of(row_of(first, lane_)), stats_of(row_of(first, batch + lane_))};
  }
  __device__ void start_scales(int64_t first, const FirstStats& stats) const {
    const int batch = launch_.geometry.batch;
    if (lane_ < (kShort ? batch : 2 * batch)) {
      table()[lane_] = make_scales(launch_, stats.one.values(launch_.problem));
    }
    if (lane_ >= batch) return;
    if (kShort) {
      table()[batch + lane_] = make_scales(launch_, stats.other.values(launch_.problem));
    }
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
    if (!kPlain && !kShort && launch_.one_phase) {
      __syncwarp();  // lane 0 wrote it
      const RowsSource source = source_;
      __syncwarp();
      if (lane_ == 0) {
        source_ = {source.x + launch_.piece_stride[kRowX],
                   source.dy + launch_.piece_stride[kRowDy]};
      }
      if (first > 0 && left > 1) {
        if (lane_ != 0) return;
        const uint32_t x_phase = phase_of(source.x), dy_phase = phase_of(source.dy);
        const uint32_t x_bytes = pieces_of(x_phase), dy_bytes = pieces_of(dy_phase);
        char* to = memory_ + rows_at(stage);
        arrive_expecting(full, x_bytes + dy_bytes);
        bulk_copy(to, source.x - x_phase, x_bytes, full);
        bulk_copy(to + launch_.stage_bytes, source.dy - dy_phase, dy_bytes, full);
        return;
      }
    }
    if constexpr (kPlain) {
      if (lane_ == 0) arrive_expecting(full, 2 * count * row_bytes_);
      __syncwarp();
      copy_plain<kRowX>(first, count, stage);
      copy_plain<kRowDy>(first, count, stage);
    } else {
      if (kShort && lane_ < count) {
        places(stage)[lane_] = {find(kRowX, first, stage), find(kRowDy, first, stage),
                                offset(kRowDx, first + lane_)};
      }
      // Eight lanes for each tensor.
      if (lane_ < 24) copy_rows(static_cast<RowTensor>(lane_ / 8), first, count, stage);
      __syncwarp();
      if (lane_ == 0) arrive(full);
    }
  }

  // The table has two batches of rows. When one is done, its place gets the one after the next, a
  // row per lane. Its statistics were asked for a batch before. `first`: of a stage whose rows are
  // done, scales: its place in the table.
  __device__ void describe(int64_t first, int scales) const {
    const int rows = launch_.stage_rows, batch = launch_.geometry.batch;
    const int next = scales + rows;
    if ((next & (batch - 1)) != 0 || lane_ >= batch) return;
    wait_for_copies();
    const int64_t row = row_of(first, rows + batch + lane_);
    if (row < launch_.problem.rows) {
      table()[next - batch + lane_] =
          make_scales(launch_, received_stats<kPlain>(launch_, row, landing()));
    }
    send(row_of(first, rows + 2 * batch + lane_));
  }

 private:
  __device__ int rows_at(const Stage& stage) const {
    return rows_at_ + stage.index() * 2 * launch_.stage_bytes;
  }
  // Bytes of all 16-byte pieces that have some of a row.
  __device__ uint32_t pieces_of(uint32_t phase) const { return (phase + row_bytes_ + 15) & ~15u; }
  // A single one is in the end of its stage, which has room for it.
  __device__ RowPlace* places(const Stage& stage) const {
    if (!kShort) {
      return reinterpret_cast<RowPlace*>(memory_ + rows_at(stage) + launch_.stage_bytes) - 1;
    }
    return reinterpret_cast<RowPlace*>(memory_ + places_at_) + stage.index() * launch_.stage_rows;
  }
  // Where the row of this lane starts in shared memory; `first` is the first one in the stage.
  __device__ int find(RowTensor tensor, int64_t first, const Stage& stage) const {
    const bool packed = is_packed(tensor);
    const int pitch =
        packed ? static_cast<int>(launch_.problem.cols * sizeof(T)) : launch_.slot_bytes;
    return rows_at(stage) + tensor * launch_.stage_bytes + lane_ * pitch +
           static_cast<int>(phase_of(data(tensor, offset(tensor, packed ? first : first + lane_))));
  }
  __device__ RowScales* table() const { return reinterpret_cast<RowScales*>(memory_ + scales_at_); }
  // Row i of this crew, counted from the stage that starts with row `first`.
  __device__ int64_t row_of(int64_t first, int i) const {
    if (!kShort) return first + i * launch_.row_stride;
    return first + (i >> launch_.stage_bits) * launch_.row_stride + (i & (launch_.stage_rows - 1));
  }
  // Where this lane's statistics of the batch arrive that is the next to be described.
  __device__ RowStats& landing() const {
    return reinterpret_cast<RowStats*>(table() + 2 * launch_.geometry.batch)[lane_];
  }
  __device__ void send(int64_t row) const {
    if (row < launch_.problem.rows) send_stats<kPlain>(launch_, row, landing());
  }
  __device__ StatsBits stats_of(int64_t row) const {
    return row < launch_.problem.rows ? stats_bits<kPlain>(launch_, row) : StatsBits{};
  }

  __device__ bool is_packed(RowTensor tensor) const {
    return tensor == kRowX ? launch_.x_packed : launch_.dy_packed;
  }
  __device__ int64_t offset(RowTensor tensor, int64_t row) const {
    return row_offset<kPlain>(launch_, tensor, row) + column_;
  }
  __device__ const T* data(RowTensor tensor, int64_t offset) const {
    const void* all = tensor == kRowX ? launch_.buffers.x : launch_.buffers.dy;
    return static_cast<const T*>(all) + offset;
  }

  template <RowTensor kTensor>
  __device__ void copy_plain(int64_t first, int count, const Stage& stage) const {
    const bool packed = is_packed(kTensor);
#pragma unroll 1
    for (int i = lane_; i < (packed ? 1 : count); i += 32) {
      bulk_copy(memory_ + rows_at(stage) + kTensor * launch_.stage_bytes + i * launch_.slot_bytes,
                data(kTensor, offset(kTensor, first + i)), packed ? row_bytes_ * count : row_bytes_,
                &full_[stage.index()]);
    }
  }

  // Of one tensor. By eight lanes, lest others wait for it: where there is but a row, they also say
  // where it is.
  __device__ void copy_rows(RowTensor tensor, int64_t first, int count, const Stage& stage) const {
    const int base = rows_at(stage) + tensor * launch_.stage_bytes;
    if constexpr (!kShort) {
      RowPlace& place = *places(stage);
      const int64_t at = offset(tensor, first);
      if (tensor == kRowDx) {
        place.dx = at;
      } else {
        const T* from = data(tensor, at);
        (tensor == kRowX ? place.x : place.dy) = base + static_cast<int>(phase_of(from));
        copy_run(tensor, memory_ + base, from, row_bytes_, &full_[stage.index()]);
      }
    } else if (tensor != kRowDx) {
      const bool packed = is_packed(tensor);
#pragma unroll 1
      for (int i = 0; i < (packed ? 1 : count); ++i) {
        copy_run(tensor, memory_ + base + i * launch_.slot_bytes,
                 data(tensor, offset(tensor, first + i)), packed ? row_bytes_ * count : row_bytes_,
                 &full_[stage.index()]);
      }
    }
  }

  // All 16-byte pieces that have some of a run, with what else lies in the first and the last; but
  // nothing outside of the tensor: there its first and last elements are copied one by one, for
  // which the whole crew waits.
  __device__ void copy_run(RowTensor tensor, char* slot, const T* data, uint32_t bytes,
                           Barrier* full) const {
    const uint32_t phase = phase_of(data);
    const char* first = reinterpret_cast<const char*>(data) - phase;
    const uint32_t end = phase + bytes, pieces = (end + 15) / 16 * 16;
    const bool head = first < launch_.low[tensor];
    const bool tail = first + pieces > launch_.high[tensor];
    const uint32_t begin = head ? 16 : 0, stop = tail ? pieces - 16 : pieces;
    if (lane_ % 8 == 0 && begin < stop) {
      expect_bytes(full, stop - begin);
      bulk_copy(slot + begin, first + begin, stop - begin, full);
    }
    const auto copy_one = [&](uint32_t at) {
      if (at < phase || at >= end) return;
      *reinterpret_cast<T*>(slot + at) = *reinterpret_cast<const T*>(first + at);
    };
    const uint32_t own = lane_ % 8 * sizeof(T);
    if (head && own < 16) copy_one(own);
    if (tail && own < 16) copy_one(pieces - 16 + own);
  }

  const RowsLaunch& launch_;
  Barrier* const full_;
  RowsSource& source_;
  char* const memory_;
  int rows_at_;
  const int scales_at_, places_at_;
  const int column_;          // the first one of this block
  const uint32_t row_bytes_;  // of this block's part
  const int lane_;
};

}  // namespace normgrad::cuda
