// LayerNorm and RMSNorm backward for very long rows: every block has some columns of all rows.
// Formulas as in rows_kernel.cuh.
//
// 3 elements moved per element (x and dy read, dx written), the least there is; dgamma and dbeta
// stay where their columns are, without partial sums. On an H200, beside a copy of as many bytes:
// 256x262144 bf16 123 us (96), fp32 219 (192); 1024x65536 bf16 123 (96). Without the exchange (and
// with wrong results) these would take 114, 210 and 110: instructions and the travel of the sums
// bound it.
//
// One block per multiprocessor, all at once (a cooperative launch). A thread has one unit of
// columns; the warps that share a slice of a row are a group, and groups take rows in turn, two at
// a time. Rows come by bulk copies into a ring in shared memory that each group has; it sums rows
// some turns ahead of dx, while the sums of those between are on their way. No barrier holds up all
// warps of a block anywhere in the loop.
//
// The sums of the warps meet in warps of their own, which carry rounds of rows (one turn of every
// group): to the block that a row belongs to, which adds up the parts of all blocks, and from there
// to all. That is two trips, but in one every block would read the parts of all: 128 * 128 * 16
// bytes per row.
//
// Order of the sums of a row: a unit in float32, then float64: the lanes of a warp, the warps of
// the slice, the blocks. Of a column: 16 rows of a group in float32, 16 such chunks, then float64:
// over chunks of chunks, then over the groups, then rows that float32 does not serve, which come
// at the end.
#include <cooperative_groups.h>

#include <limits>
#include <string>

#include "cuda/channel_sums.cuh"
#include "cuda/device.hpp"
#include "cuda/kernels.hpp"
#include "cuda/launch.cuh"
#include "cuda/rows_across_deal.hpp"
#include "cuda/rows_across_exchange.cuh"
#include "cuda/rows_scalars.cuh"
#include "ops/operands.hpp"

namespace normgrad::cuda {
namespace {

using Deal = AcrossDeal;
constexpr int kWarps = Deal::kWarps;
constexpr int kBatch = Deal::kBatch;
constexpr int kMostRows = kWarps * kBatch;  // of a round
constexpr int kAhead = 4;                   // turns that are summed before dx of one
constexpr int kCarriers = kAhead + 1;       // warps that exchange, a round each
constexpr int kRounds = kCarriers;          // on their way in a block
constexpr int kFetchers = 3;                // warps; a bulk copy takes one about 50 ns to start
constexpr int kThreads = 32 * (kWarps + kCarriers + kFetchers);
static_assert(kBatch == 2);
constexpr int kChunkTurns = kChunkRows / kBatch, kDeepTurns = kChunkTurns * kChunkRows;

struct AcrossLaunch {
  RowsLaunch rows;  // the problem, the buffers and where rows lie
  AcrossDeal deal;
  int rounds;
  Words* parts;    // of a row by every block: kRounds x rows of a round x blocks
  Words* totals;   // for every block: blocks x kRounds x rows of a round
  Words* wide;     // of a row in float64 by every block: 2 x blocks
  uint8_t* flags;  // of each row, whether it has to be done in float64
  double* folded;  // column sums, where there are too many rows for float32
};

// In the order of the workspace.
struct AcrossWorkspace {
  AcrossWorkspace(const RowsProblem& problem, const AcrossDeal& deal) {
    const size_t places = static_cast<size_t>(kRounds) * deal.round_rows();
    rounds = divide_up(problem.rows, deal.round_rows());
    parts = sizeof(Words) * places * deal.blocks;
    totals = sizeof(Words) * places * deal.blocks;
    wide = sizeof(Words) * 2 * deal.blocks;
    flags = static_cast<size_t>(divide_up(problem.rows, 64) * 64);
    const size_t columns =
        static_cast<size_t>(deal.blocks) * 32 * deal.workers() * 16 / size_of(problem.dtype);
    folded = rounds > kDeepTurns ? sizeof(double) * 2 * columns : 0;
    offsets = problem.lead_rank > 1 ? sizeof(int64_t) * kRowTensors * problem.rows : 0;
  }
  int64_t rounds;
  size_t parts, totals, wide, flags, folded, offsets;
  size_t bytes() const { return parts + totals + wide + flags + folded + offsets; }
};

// A row whose sums are known: its RowScalars, as they are read.
struct alignas(16) KnownRow {
  float mean, scale, c1, c2;
  float factor;
  int skipped;  // there is none, or it has to be done in float64
};

// What the warps of a block share.
struct Board {
  Barrier full[kWarps][Deal::kMostSlots], empty[kWarps][Deal::kMostSlots];  // of each group
  Barrier summed[kRounds], known[kRounds];
  float means[kRounds][kMostRows];
  double sums[kRounds][kWarps][4];  // of one row and another, the first and the second sum
  KnownRow rows[kRounds][kMostRows];
  // For the end.
  bool any_wide;
  RowPart wide[kThreads / 32], wide_total;
};

// A place in a group's ring, which has one for each of some rows, and the parity of its barriers.
struct Cursor {
  int slot = 0;
  uint32_t parity = 0;

  __device__ void advance(int slots) {
    if (++slot < slots) return;
    slot = 0;
    parity ^= 1;
  }
};

// The columns of this block.
template <class T>
__device__ int columns_of(const AcrossLaunch& launch) {
  const int64_t most = static_cast<int64_t>(launch.deal.slice) * kUnit<T>;
  return static_cast<int>(min(launch.rows.problem.cols - blockIdx.x * most, most));
}

// kPlain: rows are evenly spaced, start at multiples of 16 bytes and have whole units. The others
// take longer; the bits are the same.
template <class T, bool kRms, bool kPlain>
class AcrossWorker {
 public:
  __device__ AcrossWorker(const AcrossLaunch& launch, Board& board, uint4* ring)
      : launch_(launch),
        problem_(launch.rows.problem),
        board_(board),
        warp_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0)),
        lane_(threadIdx.x % 32),
        group_(warp_ / launch.deal.warps),
        width_(launch.deal.warps * 32),
        position_(warp_ % launch.deal.warps * 32 + lane_),
        column_((static_cast<int64_t>(blockIdx.x) * launch.deal.slice + position_) * kE),
        ring_(ring + group_ * launch.deal.slots * 2 * width_ + position_) {
    const int64_t left = position_ < launch.deal.slice ? problem_.cols - column_ : 0;
    count_ = static_cast<int>(max(int64_t{0}, min(static_cast<int64_t>(kE), left)));
    stores_ = problem_.has_dx && count_ > 0;
    dx_ = static_cast<T*>(launch.rows.buffers.dx) + column_;
    if (kPlain) dx_ += index(0) * launch.rows.strides[kRowDx];
    load_gamma();
  }

  // Threads without columns look at zeros for ever.
  __device__ void start() {
    for (int i = 0; i < launch_.deal.slots; ++i) {
      if (count_ == 0) slot(i, 0) = slot(i, 1) = {0, 0, 0, 0};
      if (!kPlain) load(i, i);
    }
  }

  __device__ void work() {
    Cursor sums, writes;
    int sum_place = 0, write_place = 0;
    uint32_t known = 0;  // parity
    const auto sum_next = [&](int round) {
      if (round >= launch_.rounds) return;
      sum(sum_place, sums);
      if (++sum_place == kRounds) sum_place = 0;
    };
    for (int round = 0; round < kAhead; ++round) sum_next(round);
#pragma unroll 1
    for (int round = 0; round < launch_.rounds; ++round) {
      sum_next(round + kAhead);
      write(round, write_place, known, writes);
      if (++write_place == kRounds) {
        write_place = 0;
        known ^= 1;
      }
    }
  }

  // The column sums of all groups, in `fold`: room for a double per sum.
  __device__ void put_columns(double* fold) const {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const float last = i < kE ? dgamma_[i % kE] : dbeta_[i % kE];
      const float chunks = i < kE ? dgamma_chunks_[i % kE] : dbeta_chunks_[i % kE];
      const double deep = launch_.rounds > kDeepTurns ? *folded(i) : 0;
      fold[(i * launch_.deal.groups + group_) * width_ + position_] = deep + (chunks + last);
    }
  }

 private:
  static constexpr int kE = kUnit<T>;
  static constexpr int kSums = kRms ? kE : 2 * kE;

  __device__ int index(int b) const { return group_ * kBatch + b; }  // in a round
  __device__ int row(int round, int b) const {
    return round * launch_.deal.round_rows() + index(b);
  }
  __device__ uint4& slot(int i, int tensor) const { return ring_[(i * 2 + tensor) * width_]; }
  __device__ double* folded(int i) const {
    const int threads = launch_.deal.workers() * 32;
    return launch_.folded + (static_cast<int64_t>(blockIdx.x) * kSums + i) * threads + threadIdx.x;
  }

  __device__ void load_gamma() {
    const Vector& gamma = problem_.gamma;
    with_type(gamma.dtype, [&](auto type) {
      const auto* values =
          static_cast<const decltype(type)*>(launch_.rows.buffers.gamma) + column_ * gamma.stride;
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        gamma_[e] = e < count_ ? 1 : 0;
        if (gamma.present && e < count_) gamma_[e] = widen(values[e * gamma.stride]);
      }
    });
  }

  // This thread's part of its group's row i, where bulk copies cannot be used.
  __device__ void load(int i, int to) const {
    const int r = row(i / kBatch, i % kBatch);
    if (count_ == 0 || r >= problem_.rows) return;
    const auto fetch = [&](const void* data, RowTensor tensor) {
      const int64_t offset = row_offset<kPlain>(launch_.rows, tensor, r);
      return load_unit(static_cast<const T*>(data) + offset + column_, count_, false);
    };
    const uint4 x = fetch(launch_.rows.buffers.x, kRowX);
    slot(to, 1) = fetch(launch_.rows.buffers.dy, kRowDy);
    slot(to, 0) = x;
  }

  // The sums of two rows: half a warp adds up a row, a quarter one sum. Rows that are not there
  // give anything.
  __device__ void sum(int place, Cursor& at) const {
    double2 sums[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const float mean = kRms ? 0 : board_.means[place][index(b)];
      float x[kE], dy[kE], g[kE];
      if (kPlain) wait(&board_.full[group_][at.slot], at.parity);
      unpack<T>(slot(at.slot, 0), x);
      unpack<T>(slot(at.slot, 1), dy);
      at.advance(launch_.deal.slots);
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        g[e] = dy[e] * gamma_[e];
        if constexpr (!kRms) x[e] -= mean;
      }
      sums[b] = {kRms ? tree_sum(x, x) : tree_sum(g), tree_sum(g, x)};
    }
    const bool odd = lane_ & 16, second = lane_ & 8;
    const auto fold = [](bool upper, double a, double b, int mask) {
      return (upper ? b : a) + __shfl_xor_sync(~0u, upper ? a : b, mask);
    };
    double sum =
        fold(second, fold(odd, sums[0].x, sums[1].x, 16), fold(odd, sums[0].y, sums[1].y, 16), 8);
#pragma unroll
    for (int mask = 4; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
    if (lane_ % 8 == 0) board_.sums[place][warp_][lane_ / 8] = sum;
    __syncwarp();
    if (lane_ == 0) arrive(&board_.summed[place]);
  }

  __device__ void write(int round, int place, uint32_t parity, Cursor& at) {
    wait(&board_.known[place], parity);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const KnownRow known = board_.rows[place][index(b)];
      const RowScalars scalars = {known.mean, known.scale, known.factor, known.c1, known.c2};
      float x[kE], dy[kE];
      unpack<T>(slot(at.slot, 0), x);
      unpack<T>(slot(at.slot, 1), dy);
      if (kPlain) {  // they have been read
        __syncwarp();
        if (lane_ == 0) arrive(&board_.empty[group_][at.slot]);
      }
      if (known.skipped == 0) write_row(round, b, x, dy, scalars);
      if (!kPlain) load((round * kBatch + b) + launch_.deal.slots, at.slot);
      at.advance(launch_.deal.slots);
    }
    if (kPlain) dx_ += launch_.deal.round_rows() * launch_.rows.strides[kRowDx];
    end_turn(round + 1);
  }

  __device__ void write_row(int round, int b, const float (&x)[kE], const float (&dy)[kE],
                            const RowScalars& scalars) {
    float dx[kE];
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      const float centred = kRms ? x[e] : x[e] - scalars.mean;
      const float scaled_dy = dy[e] * scalars.scale;
      dx[e] = scalars.dx(scaled_dy, gamma_[e], centred);
      dgamma_[e] = fmaf(scaled_dy, centred, dgamma_[e]);
      if constexpr (!kRms) dbeta_[e] += dy[e];
    }
    if (!kRms && __builtin_expect(problem_.statistics == RowStatistics::kXHatStd, 0)) {
#pragma unroll
      for (int e = 0; e < kE; ++e) dx[e] *= scalars.factor;
    }
    if (!stores_) return;
    if constexpr (kPlain) {
      *reinterpret_cast<uint4*>(dx_ + b * launch_.rows.strides[kRowDx]) = pack<T>(dx);
    } else {
      store_unit(dx_ + row_offset<kPlain>(launch_.rows, kRowDx, row(round, b)), dx, count_, false);
    }
  }

  __device__ void end_turn(int turns) {
    if (turns % kChunkTurns != 0) return;
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      dgamma_chunks_[e] += dgamma_[e];
      dgamma_[e] = 0;
      if constexpr (!kRms) {
        dbeta_chunks_[e] += dbeta_[e];
        dbeta_[e] = 0;
      }
    }
    if (turns % kDeepTurns != 0 || launch_.rounds <= kDeepTurns) return;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      float& chunks = i < kE ? dgamma_chunks_[i % kE] : dbeta_chunks_[i % kE];
      *folded(i) = (turns == kDeepTurns ? 0 : *folded(i)) + chunks;
      chunks = 0;
    }
  }

  const AcrossLaunch& launch_;
  const RowsProblem& problem_;
  Board& board_;
  const int warp_, lane_, group_;
  const int width_, position_;  // in the group
  const int64_t column_;        // the first one of this thread
  uint4* const ring_;
  int count_;  // columns of this thread
  bool stores_;
  T* dx_;  // kPlain: of the first row of a turn
  float gamma_[kE];
  float dgamma_[kE] = {}, dgamma_chunks_[kE] = {};
  float dbeta_[kE] = {}, dbeta_chunks_[kE] = {};
};

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
    stats_ = stats_of(first_);
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
  __device__ RowStats stats_of(int round) const {
    return has_row(round) ? load_stats<kPlain>(launch_.rows, row(round)) : RowStats{};
  }
  __device__ void put_mean(int round, RowStats stats) const {
    if (lane_ < rows_) board_.means[round % kRounds][lane_] = stats.mean;
  }

  // What others wait for comes first.
  __device__ void carry(int round) {
    const int place = round % kRounds, blocks = launch_.deal.blocks;
    const unsigned tag = tag_of(round / kRounds);
    const RowStats later = stats_of(round + kCarriers);
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
      const bool zero = (kRms || sums.x == 0) && sums.y == 0 && is_near_1<26>(s.scale * s.factor);
      wide = !is_served<kRms>(launch_.rows, s, sums) && (total.gradient || !zero);
    }
    known = {s.mean, s.scale, s.c1, s.c2, s.factor, wide};
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

// A row in float64, from memory, by all threads of all blocks; `number` of its kind.
template <class T, bool kRms>
__device__ void write_wide_row(const AcrossLaunch& launch, Board& board, double* fold, int64_t row,
                               int number) {
  const RowsLaunch& rows = launch.rows;
  const RowsProblem& problem = rows.problem;
  constexpr int kE = kUnit<T>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * launch.deal.slice * kE;
  const int count = columns_of<T>(launch);
  const T* x = static_cast<const T*>(rows.buffers.x) + row_offset<false>(rows, kRowX, row) + first;
  const T* dy =
      static_cast<const T*>(rows.buffers.dy) + row_offset<false>(rows, kRowDy, row) + first;
  T* dx = static_cast<T*>(rows.buffers.dx) + row_offset<false>(rows, kRowDx, row) + first;
  const auto g_of = [&](int c) {
    const double g = widen(dy[c]);
    return problem.gamma.present ? g * load_value(problem.gamma, rows.buffers.gamma, first + c) : g;
  };
  const bool from_x = problem.statistics == RowStatistics::kFromX;
  const RowStats stats = load_stats<false>(rows, row);
  Normalizer n = from_x ? Normalizer{0, 1, 1} : normalizer_of(problem, stats, 0);
  RowPart part;
  for (int c = threadIdx.x; c < count; c += kThreads) {
    const double value = widen(x[c]), g = g_of(c);
    part.add({{kRms ? value * value : g, g * n.x_hat(value)}});
  }
  part = warp_sum(part);
  if (lane == 0) board.wide[warp] = part;
  __syncthreads();
  if (warp == 0) {
    part = {};
    for (const RowPart& each : board.wide) part.add(each);
    Words* places = launch.wide + number % 2 * launch.deal.blocks;
    if (lane == 0) send_part(&places[blockIdx.x], part, tag_of(number / 2));
    part = gather_parts<Deal::kBlocks>(places, launch.deal.blocks, tag_of(number / 2));
    if (lane == 0) board.wide_total = part;
  }
  __syncthreads();
  const double2 sums = board.wide_total.sums;
  if (from_x) n = normalizer_of(problem, stats, sums.x * rows.per_col);
  const double c1 = kRms ? 0 : sums.x * rows.per_col;
  const double c2 = sums.y * (from_x ? n.scale : 1) * rows.per_col;
  const int pitch = launch.deal.groups * launch.deal.warps * 32;
  for (int c = threadIdx.x; c < count; c += kThreads) {
    const double x_hat = n.x_hat(widen(x[c])), dy_value = widen(dy[c]), g = g_of(c);
    fold[c % kE * pitch + c / kE] += dy_value * x_hat;
    if (!kRms) fold[(kE + c % kE) * pitch + c / kE] += dy_value;
    if (problem.has_dx) {
      dx[c] = narrow<T>(static_cast<float>(n.r * (g - c1 - x_hat * c2)));
    }
  }
}

// All of them, in order: the same ones in every block.
template <class T, bool kRms>
__device__ void write_wide_rows(const AcrossLaunch& launch, Board& board, double* fold) {
  int number = 0;
  for (int64_t first = 0; first < launch.rows.problem.rows; first += 32) {
    const int64_t row = first + threadIdx.x % 32;
    const bool wide = row < launch.rows.problem.rows && launch.flags[row] != 0;
    if (!__any_sync(~0u, wide)) continue;
    for (int i = 0; i < 32; ++i) {
      if (__shfl_sync(~0u, wide ? 1 : 0, i) != 0) {
        write_wide_row<T, kRms>(launch, board, fold, first + i, number++);
      }
    }
  }
  __syncthreads();
}

// The groups' sums in order, to dgamma and dbeta.
template <class T, bool kRms>
__device__ void write_columns(const AcrossLaunch& launch, const double* fold) {
  const RowsProblem& problem = launch.rows.problem;
  constexpr int kE = kUnit<T>;
  const int width = launch.deal.warps * 32, groups = launch.deal.groups;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * launch.deal.slice * kE;
  const int count =
      static_cast<int>(min(problem.cols - first, static_cast<int64_t>(launch.deal.slice) * kE));
  for (int which = 0; which < 2; ++which) {
    const Vector& vector = which == 0 ? problem.dgamma : problem.dbeta;
    void* out = which == 0 ? launch.rows.buffers.dgamma : launch.rows.buffers.dbeta;
    if (!vector.present) continue;
    for (int c = threadIdx.x; c < count; c += kThreads) {
      const double* terms = fold + (which * kE + c % kE) * groups * width + c / kE;
      double sum = 0;
      for (int group = 0; group < groups; ++group) sum += terms[group * width];
      store_value(vector, out, first + c, sum);
    }
  }
}

template <class T, bool kRms, bool kPlain>
__global__ void __launch_bounds__(kThreads, 1)
    across_kernel(const __grid_constant__ AcrossLaunch launch) {
#if NORMGRAD_HOPPER
  auto* ring = dynamic_shared<uint4>();
  auto& board = in_shared<Board>();
  if (threadIdx.x < kWarps * Deal::kMostSlots) {
    init_barrier(&board.full[0][threadIdx.x], 1);
    init_barrier(&board.empty[0][threadIdx.x], launch.deal.warps);
  }
  if (threadIdx.x < kRounds) {
    init_barrier(&board.summed[threadIdx.x], launch.deal.workers());
    init_barrier(&board.known[threadIdx.x], 1);
  }
  if (threadIdx.x == 0) board.any_wide = false;
  fence_barrier_init();
  __syncthreads();
  const int warp = threadIdx.x / 32;
  const auto grid_sync = [] {
    __syncthreads();
    cooperative_groups::this_grid().sync();
  };
  if (warp < kWarps) {
    const bool works = warp < launch.deal.workers();
    AcrossWorker<T, kRms, kPlain> worker(launch, board, ring);
    if (works) worker.start();
    grid_sync();
    if (works) worker.work();
    __syncthreads();
    if (works) worker.put_columns(reinterpret_cast<double*>(ring));
  } else if (warp < kWarps + kCarriers) {
    AcrossCarrier<T, kRms, kPlain> carrier(launch, board, ring);
    carrier.start();
    grid_sync();
    carrier.work();
    __syncthreads();
  } else {
    AcrossFetcher<T> fetcher(launch, board, ring);
    if (kPlain) fetcher.start();
    __syncwarp();
    grid_sync();
    if (kPlain) fetcher.work();
    __syncwarp();
    __syncthreads();
  }
  __syncthreads();
  auto* fold = reinterpret_cast<double*>(ring);
  if (board.any_wide) write_wide_rows<T, kRms>(launch, board, fold);
  write_columns<T, kRms>(launch, fold);
#endif
}

Status launch_across(const RowsProblem& problem, const Buffers& buffers, void* workspace,
                     void* stream) {
  const AcrossDeal deal = across_deal_of(problem.cols, problem.dtype);
  const AcrossWorkspace layout(problem, deal);
  char* memory = static_cast<char*>(workspace);
  AcrossLaunch launch = {};
  launch.rows.problem = problem;
  launch.rows.buffers = buffers;
  launch.rows.per_col = 1 / static_cast<double>(problem.cols);
  launch.deal = deal;
  launch.rounds = static_cast<int>(layout.rounds);
  const auto take = [&](size_t bytes) {
    memory += bytes;
    return memory - bytes;
  };
  launch.parts = reinterpret_cast<Words*>(take(layout.parts));
  launch.totals = reinterpret_cast<Words*>(take(layout.totals));
  launch.wide = reinterpret_cast<Words*>(take(layout.wide));
  launch.flags = reinterpret_cast<uint8_t*>(take(layout.flags));
  launch.folded = reinterpret_cast<double*>(take(layout.folded));
  auto* offsets = reinterpret_cast<int64_t*>(take(layout.offsets));
  NORMGRAD_RETURN_IF_ERROR(locate_rows(launch.rows, offsets, stream));

  const int64_t unit = 16 / static_cast<int64_t>(size_of(problem.dtype));
  const auto aligned = [&](const void* data, const RowsProblem::LeadStrides& lead) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && lead[0] % unit == 0;
  };
  const bool plain = problem.cols % unit == 0 && problem.lead_rank <= 1 &&
                     aligned(buffers.x, problem.x) && aligned(buffers.dy, problem.dy) &&
                     (!problem.has_dx || aligned(buffers.dx, problem.dx));
  Launch shape = {static_cast<unsigned>(deal.blocks), kThreads};
  // The ring, or a double per column sum when it is done.
  shape.shared = static_cast<size_t>(deal.workers()) * 32 *
                 std::max<int64_t>(deal.slots * 32, 2 * sizeof(double) * unit);
  shape.cooperative = true;
  return with_type(problem.dtype, [&](auto type) {
    using T = decltype(type);
    const auto kernel =
        is_rms(problem.statistics)
            ? (plain ? &across_kernel<T, true, true> : &across_kernel<T, true, false>)
            : (plain ? &across_kernel<T, false, true> : &across_kernel<T, false, false>);
    return launch_kernel(kernel, shape, stream, launch);
  });
}

}  // namespace

Status choose_rows_across(const RowsProblem& problem, Kernel<RowsProblem>& kernel) {
  NORMGRAD_RETURN_IF_ERROR(check_hopper("rows_across"));
  const AcrossDeal deal = across_deal_of(problem.cols, problem.dtype);
  if (deal.blocks == 0) {
    return {Code::kUnsupportedDevice, "rows_across: expected shorter rows"};
  }
  if (multiprocessors() < deal.blocks) {
    return {Code::kUnsupportedDevice,
            "rows_across: expected a GPU of " + std::to_string(deal.blocks) + " multiprocessors"};
  }
  if (problem.rows > std::numeric_limits<int>::max() / 2) {
    return {Code::kUnsupportedDevice, "rows_across: expected fewer rows"};
  }
  kernel = {"rows_across", AcrossWorkspace(problem, deal).bytes(), &launch_across};
  return {};
}

}  // namespace normgrad::cuda
