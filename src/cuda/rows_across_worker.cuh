// The warps of rows_across.cu that sum rows and write dx.
#pragma once

#include "cuda/rows_across_board.cuh"
#include "cuda/rows_units.cuh"

namespace normgrad::cuda::across {

// kPlain: rows are evenly spaced, start at multiples of 16 bytes and have whole units. The others
// take longer; the bits are the same.
template <class T, RowForm kForm, bool kPlain>
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
  static constexpr bool kRms = kForm == RowForm::kRms;
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
      const float mean = kForm == RowForm::kLayer ? board_.means[place][index(b)] : 0;
      float x[kE], dy[kE], g[kE];
      if (kPlain) wait(&board_.full[group_][at.slot], at.parity);
      unpack<T>(slot(at.slot, 0), x);
      unpack<T>(slot(at.slot, 1), dy);
      at.advance(launch_.deal.slots);
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        g[e] = dy[e] * gamma_[e];
        if constexpr (kForm == RowForm::kLayer) x[e] -= mean;
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
      const RowScalars scalars = {.mean = known.mean, .r = known.r, .c1 = known.c1, .c2 = known.c2};
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
      const float centred = kForm == RowForm::kLayer ? x[e] - scalars.mean : x[e];
      const float scaled_dy = kForm == RowForm::kXHat ? dy[e] : dy[e] * scalars.r;
      dx[e] = scalars.dx(dy[e], gamma_[e], centred);
      dgamma_[e] = fmaf(scaled_dy, centred, dgamma_[e]);
      if constexpr (!kRms) dbeta_[e] += dy[e];
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

}  // namespace normgrad::cuda::across
