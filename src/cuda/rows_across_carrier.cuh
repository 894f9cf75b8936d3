// The warps of rows_across.cu that do not work on rows themselves: they fetch them, and carry sums.
#pragma once

#include "cuda/rows_across_board.cuh"

namespace normgrad::cuda::across {

// A few warps fetch for all, each for some groups: a lane for each of them.
template <class T>
class AcrossFetcher {
 public:
  __device__ AcrossFetcher(const AcrossLaunch& launch, Board& board, uint4* ring)
      : launch_(launch),
        board_(board),
        group_(threadIdx.x % 32 * kFetchers + threadIdx.x / 32 - kWarps - kCarriers),
        width_(launch.deal.warps * 32),
        bytes_(columns_of<T>(launch) * sizeof(T)),
        row_(group_ * kBatch),
        ring_(ring + group_ * launch.deal.slots * 2 * width_) {
    const int64_t column = static_cast<int64_t>(blockIdx.x) * launch.deal.slice * kUnit<T>;
    x_ = static_cast<const T*>(launch.rows.buffers.x) + row_ * launch.rows.strides[kRowX] + column;
    dy_ =
        static_cast<const T*>(launch.rows.buffers.dy) + row_ * launch.rows.strides[kRowDy] + column;
  }

  // As many rows as there is room for, then the others.
  __device__ void start() { fetch_until(min(launch_.deal.slots, launch_.rounds * kBatch)); }
  __device__ void work() { fetch_until(launch_.rounds * kBatch); }

 private:
  __device__ void fetch_until(int end) {
    if (group_ >= launch_.deal.groups) return;
#pragma unroll 1
    for (; done_ < end; ++done_) fetch();
  }
  __device__ void fetch() {
    Barrier* full = &board_.full[group_][at_.slot];
    uint4* to = ring_ + at_.slot * 2 * width_;
    if (done_ >= launch_.deal.slots) wait(&board_.empty[group_][at_.slot], at_.parity ^ 1);
    if (row_ < launch_.rows.problem.rows) {
      expect_bytes(full, 2 * bytes_);
      bulk_copy(to, x_, bytes_, full);
      bulk_copy(to + width_, dy_, bytes_, full);
    }
    arrive(full);
    const int step = done_ % kBatch == 0 ? 1 : launch_.deal.round_rows() - (kBatch - 1);
    row_ += step;
    x_ += step * launch_.rows.strides[kRowX];
    dy_ += step * launch_.rows.strides[kRowDy];
    at_.advance(launch_.deal.slots);
  }

  const AcrossLaunch& launch_;
  Board& board_;
  const int group_, width_;
  const uint32_t bytes_;
  int done_ = 0, row_;
  Cursor at_;
  uint4* const ring_;
  const T *x_, *dy_;
};

// Lane i has row i of a round. The statistics of later rows are asked for early: memory is busy.
template <class T, bool kRms, bool kPlain>
class AcrossCarrier {
 public:
  __device__ AcrossCarrier(const AcrossLaunch& launch, Board& board, const uint4* ring)
      : launch_(launch),
        board_(board),
        ring_(ring),
        lane_(threadIdx.x % 32),
        rows_(launch.deal.round_rows()),
        first_(static_cast<int>(threadIdx.x) / 32 - kWarps),
        totals_(launch.totals + static_cast<int64_t>(blockIdx.x) * kRounds * rows_) {}

  // What is known of this carrier's first round, and the places that this block reads or writes.
  __device__ void start() {
    stats_ = stats_of(first_).values(launch_.rows.problem);
    put_mean(first_, stats_);
    const int block = static_cast<int>(blockIdx.x), blocks = launch_.deal.blocks;
    for (int i = threadIdx.x - 32 * kWarps; i < kRounds * rows_; i += 32 * kCarriers) {
      clear_place(&launch_.parts[i * blocks + block]);
      clear_place(&totals_[i]);
      if (i < 2) clear_place(&launch_.wide[i * blocks + block]);
    }
  }

  __device__ void work() {
#pragma unroll 1
    for (int round = first_; round < launch_.rounds; round += kCarriers) carry(round);
  }

 private:
  __device__ int row(int round) const { return round * rows_ + lane_; }
  __device__ bool has_row(int round) const {
    return lane_ < rows_ && row(round) < launch_.rows.problem.rows;
  }
  __device__ StatsBits stats_of(int round) const {
    return has_row(round) ? stats_bits<kPlain>(launch_.rows, row(round)) : StatsBits{};
  }
  __device__ void put_mean(int round, RowStats stats) const {
    if (lane_ < rows_) board_.means[round % kRounds][lane_] = stats.mean;
  }

  // What others wait for comes first.
  __device__ void carry(int round) {
    const int place = round % kRounds, blocks = launch_.deal.blocks;
    const unsigned tag = tag_of(round / kRounds);
    const StatsBits asked = stats_of(round + kCarriers);
    wait(&board_.summed[place], round / kRounds & 1);
    RowPart part = {block_sums(place), true};
    if (has_row(round)) {
      if (part.sums.y == 0) part.gradient = has_gradient(round);
      send_part(&launch_.parts[(place * rows_ + lane_) * blocks + blockIdx.x], part, tag);
    }
    __syncwarp();
    // Row by row, those that belong to this block.
    const int first = round * rows_;
    for (int i = (static_cast<int>(blockIdx.x) - first % blocks + blocks) % blocks;
         i < rows_ && first + i < launch_.rows.problem.rows; i += blocks) {
      const RowPart total =
          gather_parts<Deal::kBlocks>(&launch_.parts[(place * rows_ + i) * blocks], blocks, tag);
      for (int block = lane_; block < blocks; block += 32) {  // lest all ask in one place
        send_part(&launch_.totals[(block * kRounds + place) * rows_ + i], total, tag);
      }
    }
    // All warps have summed this round, whose place it takes.
    const RowStats later = asked.values(launch_.rows.problem);
    put_mean(round + kCarriers, later);
    const RowScales scales = make_scales(launch_.rows, stats_);
    bool wide = false;
    if (has_row(round)) {
      wide = know(receive_part(&totals_[place * rows_ + lane_], tag), scales,
                  board_.rows[place][lane_]);
    } else if (lane_ < rows_) {
      board_.rows[place][lane_].skipped = 1;
    }
    __syncwarp();
    if (lane_ == 0) arrive(&board_.known[place]);
    if (has_row(round)) launch_.flags[row(round)] = wide;  // by every block, for itself
    if (wide) board_.any_wide = true;
    stats_ = later;
  }

  // Of this lane's row: over the warps in order. Four lanes have the sums of a group.
  __device__ double2 block_sums(int place) const {
    double2 own = {0, 0};
    const int warps = launch_.deal.warps;
    for (int base = 0; base < launch_.deal.groups; base += 8) {
      const int group = base + lane_ / 4;
      double sum = 0;
      if (group < launch_.deal.groups) {
        const double* terms = &board_.sums[place][group * warps][lane_ % 4];
#pragma unroll 8
        for (int i = 0; i < warps; ++i) sum += terms[4 * i];
      }
      const int from = lane_ * 2 % 32;
      const double first = __shfl_sync(~0u, sum, from), second = __shfl_sync(~0u, sum, from + 1);
      if (lane_ / (8 * kBatch) == base / 8) own = {first, second};
    }
    return own;
  }

  // Whether dy of this lane's row has anything but zeros, where its sum is 0: from the ring.
  __device__ bool has_gradient(int round) const {
    const int width = launch_.deal.warps * 32, slots = launch_.deal.slots;
    const int at = (round * kBatch + lane_ % kBatch) % slots;
    const uint4* units = ring_ + ((lane_ / kBatch * slots + at) * 2 + 1) * width;
    uint32_t bits = 0;
#pragma unroll 1
    for (int i = 0; i < width; ++i) bits |= units[i].x | units[i].y | units[i].z | units[i].w;
    return (bits & (sizeof(T) == 4 ? 0x7FFFFFFFu : 0x7FFF7FFFu)) != 0;  // but for signs
  }

  // True if the row has to be done in float64. Rows of zeros in dy are common and float32 serves
  // them.
  __device__ bool know(const RowPart& total, const RowScales& scales, KnownRow& known) const {
    const double2 sums = total.sums;
    RowScalars s;
    bool wide = false;
    if (!make_scalars<kRms>(launch_.rows, scales, sums, s)) {
      const bool zero = (kRms || sums.x == 0) && sums.y == 0 && is_near_1<26>(s.r);
      wide = !is_served<kRms>(launch_.rows, s, sums) && (total.gradient || !zero);
    }
    known = {s.mean, s.r, s.c1, s.c2, wide};
    return wide;
  }

  const AcrossLaunch& launch_;
  Board& board_;
  const uint4* const ring_;
  const int lane_, rows_;
  const int first_;      // round
  Words* const totals_;  // for this block
  RowStats stats_;       // of the round to come
};

}  // namespace normgrad::cuda::across
