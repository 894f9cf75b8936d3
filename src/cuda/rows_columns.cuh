// The column sums of a block: dgamma and dbeta over its rows.
#pragma once

#include "cuda/ptx.cuh"
#include "cuda/rows_launch.cuh"
#include "cuda/types.cuh"

namespace normgrad::cuda {

// Each thread has some columns of its team, in fp32 over kChunkRows rows in registers, then over as
// many chunks in shared memory: no more than 32 roundings. From there on float64.
template <class T, bool kRms, int kUnits>
class RowsColumns {
 public:
  static constexpr int kE = kUnit<T>;
  static constexpr int kColumns = kUnits * kE;

  template <class Team>
  __device__ RowsColumns(const RowsLaunch& launch, char* memory, const Team& team)
      : first(static_cast<int>(team.rank) * launch.geometry.block_units * kE),
        count(min(static_cast<int>(launch.problem.cols) - first, launch.geometry.block_units * kE)),
        launch_(launch),
        chunks_(reinterpret_cast<float*>(memory + launch.chunks_at) + threadIdx.x),
        position_(team.position),
        width_(team.threads()) {}

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

  // The sums of this part go to the outputs if there is no other, else to `partials`. `memory` has
  // room for them and for 4 doubles per thread and kind, and nobody needs it any more.
  __device__ void finish(int part, float* memory) const {
    if (!launch_.problem.dgamma.present && !launch_.problem.dbeta.present) return;
    const int teams = launch_.geometry.teams(), team = threadIdx.x / width_;
    const int pitch = kColumns * width_;  // columns that a team has room for
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kColumns; i += 4) {
      const int c = (i / kE * width_ + position_) * kE + i % kE;
      store_four(memory + team * pitch + c, 0, dgamma_, i);
      if constexpr (!kRms) store_four(memory + (teams + team) * pitch + c, kColumns, dbeta_, i);
    }
    __syncthreads();
    add_teams(part, memory, teams, pitch);
  }

 private:
  static constexpr int kKinds = kRms ? 1 : 2;

  struct Four {
    double sums[4] = {};
    __device__ void add(const float4& terms) {
      sums[0] += terms.x;
      sums[1] += terms.y;
      sums[2] += terms.z;
      sums[3] += terms.w;
    }
  };

  __device__ float* chunk(int i) const { return chunks_ + i * launch_.geometry.threads(); }
  __device__ float with_chunks(int i, float sum) const {
    return launch_.geometry.chunked ? sum + *chunk(i) : sum;
  }
  __device__ void store_four(float* to, int chunk, const float* sums, int i) const {
    *reinterpret_cast<float4*>(to) = {
        with_chunks(chunk + i, sums[i]), with_chunks(chunk + i + 1, sums[i + 1]),
        with_chunks(chunk + i + 2, sums[i + 2]), with_chunks(chunk + i + 3, sums[i + 3])};
  }

  // Four neighbouring columns per thread, over all teams. Where that leaves threads without work,
  // they share the teams: slices of the block, whose sums are added in the end.
  __device__ void add_teams(int part, float* memory, int teams, int pitch) const {
    const int threads = launch_.geometry.threads(), fours = (count + 3) / 4;
    const int shift = launch_.slice_shift, slices = threads >> shift;
    const auto sum = [&](int kind, int i, int first, int step) {
      const float* terms = memory + kind * teams * pitch;
      Four four;
#pragma unroll 4
      for (int team = first; team < teams; team += step) {
        four.add(reinterpret_cast<const float4*>(terms + team * pitch)[i]);
      }
      return four;
    };
    if (slices <= 1) {
#pragma unroll
      for (int kind = 0; kind < kKinds; ++kind) {
#pragma unroll 2
        for (int i = threadIdx.x; i < fours; i += threads)
          put(part, kind, 4 * i, sum(kind, i, 0, 1));
      }
      return;
    }
    // By kind and column of a four, by slice, by four.
    double* sums = reinterpret_cast<double*>(memory + kKinds * teams * pitch);
    const int width = 1 << shift, slice = static_cast<int>(threadIdx.x) >> shift;
    const int own = static_cast<int>(threadIdx.x) & (width - 1);
    if (own < fours && slice < slices) {
#pragma unroll
      for (int kind = 0; kind < kKinds; ++kind) {
        const Four four = sum(kind, own, slice, slices);
#pragma unroll
        for (int k = 0; k < 4; ++k)
          sums[(kind * 4 + k) * slices * width + threadIdx.x] = four.sums[k];
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < kKinds * 4 * width; i += threads) {
      const int which = i >> shift, four = i & (width - 1);
      if (four >= fours) continue;
      double total = 0;
#pragma unroll 4
      for (int n = 0; n < slices; ++n) total += sums[(which * slices + n) * width + four];
      put(part, which / 4, 4 * four + which % 4, total);
    }
  }

  // Where a sum of dgamma (kind 0) or dbeta goes; c: its column in this block.
  __device__ void put(int part, int kind, int c, double sum) const {
    if (c >= count) return;
    if (launch_.geometry.parts == 1) {
      const Vector& vector = kind == 0 ? launch_.problem.dgamma : launch_.problem.dbeta;
      void* out = kind == 0 ? launch_.buffers.dgamma : launch_.buffers.dbeta;
      if (vector.present) store_value(vector, out, first + c, sum);
    } else {
      partials(part, kind)[c] = static_cast<float>(sum);
    }
  }
  __device__ void put(int part, int kind, int c, const Four& four) const {
    if (launch_.geometry.parts > 1) {  // where there is room for whole fours
      *reinterpret_cast<float4*>(partials(part, kind) + c) = {
          static_cast<float>(four.sums[0]), static_cast<float>(four.sums[1]),
          static_cast<float>(four.sums[2]), static_cast<float>(four.sums[3])};
      return;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) put(part, kind, c + k, four.sums[k]);
  }
  __device__ float* partials(int part, int kind) const {
    return launch_.partials + (2l * part + kind) * launch_.padded_cols + first;
  }

  const RowsLaunch& launch_;
  float* const chunks_;
  const int position_, width_;
  float dgamma_[kColumns] = {};
  float dbeta_[kRms ? 1 : kColumns] = {};
};

}  // namespace normgrad::cuda
