// The column sums of a block: dgamma and dbeta over its rows.
#pragma once

#include "cuda/ptx.cuh"
#include "cuda/rows_launch.cuh"
#include "cuda/rows_team.cuh"
#include "cuda/types.cuh"

namespace normgrad::cuda {

// Each thread has some columns of its team, in fp32 over kChunkRows rows in registers, over
// kMostChunks such chunks in shared memory and over the crews: 31 additions at most. From there on
// float64.
template <class T, bool kRms, int kUnits, bool kShort>
class RowsColumns {
 public:
  static constexpr int kE = kUnit<T>;
  static constexpr int kColumns = kUnits * kE;

  __device__ RowsColumns(const RowsLaunch& launch, char* memory, const Team<kShort>& team)
      : first(static_cast<int>(team.rank) * launch.geometry.block_units * kE),
        count(min(static_cast<int>(launch.problem.cols) - first, launch.geometry.block_units * kE)),
        launch_(launch),
        chunks_(reinterpret_cast<float*>(memory + launch.chunks_at) +
                (kShort ? threadIdx.x : team.crew * team.threads() + team.position)) {}

  const int first, count;  // columns of this block

  __device__ void clear() const {
    if (!launch_.geometry.chunked) return;
#pragma unroll 8
    for (int i = 0; i < kKinds * kColumns; ++i) *chunk(i) = 0;
  }

  // A term of this thread's column i: for dgamma a product.
  __device__ void add(int i, float dy, float scaled_dy, float centred) {
    dgamma_[i] = fmaf(scaled_dy, centred, dgamma_[i]);
    if constexpr (!kRms) dbeta_[i] += dy;
  }
  __device__ void add_product(int i, float dy, float dy_x_hat) {
    dgamma_[i] += dy_x_hat;
    if constexpr (!kRms) dbeta_[i] += dy;
  }

  // n: how many rows there were before this one, but for multiples of kChunkRows.
  __device__ void end_row(uint32_t n) {
    if (!launch_.geometry.chunked || n % kChunkRows != kChunkRows - 1) return;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      *chunk(i) += dgamma_[i];
      dgamma_[i] = 0;
      if constexpr (!kRms) {
        *chunk(kColumns + i) += dbeta_[i];
        dbeta_[i] = 0;
      }
    }
  }

  // The sums of this part go to the outputs if there is no other, else to `partials`. Nobody needs
  // the ring any more, where the sums lie if there were too few rows for chunks. Little code: it
  // comes from memory, at the worst time.
  __device__ void finish(int part, const Team<kShort>& team) const {
    if (!launch_.problem.dgamma.present && !launch_.problem.dbeta.present) return;
    __syncthreads();
    put_down(0, dgamma_);
    if constexpr (!kRms) put_down(kColumns, dbeta_);
    __syncthreads();
    add_crews(part, team);
    if constexpr (kShort) {
      __syncthreads();
      add_teams(part);
    }
  }

 private:
  static constexpr int kKinds = kRms ? 1 : 2;

  __device__ int pitch() const { return launch_.geometry.threads(); }
  __device__ float* chunk(int i) const { return chunks_ + i * pitch(); }

  // Eight are read before the first is written: one wait for all.
  __device__ void put_down(int first, const float (&sums)[kColumns]) const {
    static_assert(kColumns % 4 == 0);
    constexpr int kStep = kColumns % 8 == 0 ? 8 : 4;
#pragma unroll
    for (int i = 0; i < kColumns; i += kStep) {
      float before[kStep] = {};
      if (launch_.geometry.chunked) {
#pragma unroll
        for (int k = 0; k < kStep; ++k) before[k] = *chunk(first + i + k);
      }
#pragma unroll
      for (int k = 0; k < kStep; ++k) *chunk(first + i + k) = before[k] + sums[i + k];
    }
  }

  // Four columns of a thread over all crews: a crew has every n-th four. In fp32 too, four by four,
  // since a conversion takes as long as eight additions.
  __device__ void add_crews(int part, const Team<kShort>& team) const {
    const int crews = launch_.geometry.crews, threads = team.warps * 32, crew = team.crew;
#pragma unroll 1
    for (int i = 4 * crew; i < kKinds * kColumns; i += 4 * crews) {
      float* terms = chunk(i) - crew * threads;
      float sums[4] = {};
#pragma unroll 1
      for (int first = 0; first < crews; first += 4) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          float four[4];
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            four[n] = first + n < crews ? terms[k * pitch() + (first + n) * threads] : 0;
          }
          sums[k] += tree_sum(four);
        }
      }
      if constexpr (kShort) {  // where only this thread reads
#pragma unroll
        for (int k = 0; k < 4; ++k) terms[k * pitch()] = sums[k];
      } else {
        const int kind = i / kColumns, own = i % kColumns;
        put(part, kind, (own / kE * threads + team.position) * kE + own % kE, sums);
      }
    }
  }
  // Then over the teams of a warp.
  __device__ void add_teams(int part) const {
    const int lanes = launch_.geometry.lanes, base = static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int n = threadIdx.x; n < kKinds * count; n += launch_.geometry.threads()) {
      const int kind = n >= count ? 1 : 0, c = n - kind * count;
      const int unit = c / kE, j = unit / lanes;
      const float* terms = chunk(kind * kColumns + j * kE + c % kE) - base + (unit - j * lanes);
      double sum = 0;
#pragma unroll 4
      for (int i = 0; i < 32; i += lanes) sum += terms[i];
      put(part, kind, c, sum);
    }
  }

  // Where a sum of dgamma (kind 0) or dbeta goes; c: its column in this block.
  __device__ void put(int part, int kind, int c, double sum) const {
    if (launch_.geometry.parts == 1) {
      const Vector& vector = kind == 0 ? launch_.problem.dgamma : launch_.problem.dbeta;
      void* out = kind == 0 ? launch_.buffers.dgamma : launch_.buffers.dbeta;
      if (vector.present) store_value(vector, out, first + c, sum);
    } else {
      partials(part, kind)[c] = static_cast<float>(sum);
    }
  }
  __device__ void put(int part, int kind, int c, const float (&sums)[4]) const {
    if (c >= count) return;
    if (launch_.geometry.parts > 1) {  // where there is room for whole fours
      *reinterpret_cast<float4*>(partials(part, kind) + c) = {sums[0], sums[1], sums[2], sums[3]};
      return;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (c + k < count) put(part, kind, c + k, sums[k]);
    }
  }
  __device__ float* partials(int part, int kind) const {
    return launch_.partials + (2l * part + kind) * launch_.padded_cols + first;
  }

  const RowsLaunch& launch_;
  float* const chunks_;  // from this thread's first on
  float dgamma_[kColumns] = {};
  float dbeta_[kRms ? 1 : kColumns] = {};
};

}  // namespace normgrad::cuda
