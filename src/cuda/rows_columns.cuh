// The column sums of a block: dgamma and dbeta over its rows.
#pragma once

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
      : first(static_cast<int64_t>(team.rank) * launch.geometry.block_units * kE),
        count(static_cast<int>(min(launch.problem.cols - first,
                                   static_cast<int64_t>(launch.geometry.block_units) * kE))),
        launch_(launch),
        chunks_(reinterpret_cast<float*>(memory + launch.chunks_at) + threadIdx.x),
        position_(team.position),
        width_(team.threads()) {}

  const int64_t first;  // column of this block
  const int count;

  __device__ void clear() const {
    if (!launch_.geometry.chunked) return;
#pragma unroll 1
    for (int i = 0; i < (kRms ? 1 : 2) * kColumns; ++i) *chunk(i) = 0;
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

  __device__ void end_row() {
    if (!launch_.geometry.chunked || ++rows_ < kChunkRows) return;
    rows_ = 0;
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

  // To the outputs if there is but one part, else to `partials`. `fold`: room for a double per sum,
  // which nobody needs for anything else any more.
  __device__ void finish(int part, double* fold) {
    if (!launch_.problem.dgamma.present && !launch_.problem.dbeta.present) return;
    const int threads = launch_.geometry.threads();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      fold[i * threads + threadIdx.x] = with_chunks(i, dgamma_[i]);
      if constexpr (!kRms) {
        fold[(kColumns + i) * threads + threadIdx.x] = with_chunks(kColumns + i, dbeta_[i]);
      }
    }
    __syncthreads();
    add_teams(part, fold);
  }

 private:
  static constexpr int kSums = kRms ? kColumns : 2 * kColumns;

  __device__ float* chunk(int i) const { return chunks_ + i * launch_.geometry.threads(); }
  __device__ float with_chunks(int i, float sum) const {
    return launch_.geometry.chunked ? sum + *chunk(i) : sum;
  }

  // Each team has some of the sums.
  __device__ void add_teams(int part, const double* fold) const {
    const int threads = launch_.geometry.threads(), teams = launch_.geometry.teams();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) / width_; i < kSums; i += teams) {
      const double* terms = fold + i * threads + position_;
      double sum = 0;
#pragma unroll 4
      for (int team = 0; team < teams; ++team) sum += terms[team * width_];
      put(part, i, sum);
    }
  }

  // Sum i of this thread: of dgamma, then of dbeta.
  __device__ void put(int part, int i, double sum) const {
    const int which = i / kColumns, k = i % kColumns;
    const int c = (k / kE * width_ + position_) * kE + k % kE;
    if (c >= count) return;
    if (launch_.geometry.parts == 1) {
      const Vector& vector = which == 0 ? launch_.problem.dgamma : launch_.problem.dbeta;
      void* out = which == 0 ? launch_.buffers.dgamma : launch_.buffers.dbeta;
      if (vector.present) store_value(vector, out, first + c, sum);
    } else {
      float* partial = launch_.partials + (2l * part + which) * launch_.padded_cols;
      partial[first + c] = static_cast<float>(sum);
    }
  }

  const RowsLaunch& launch_;
  float* const chunks_;
  const int position_, width_;
  int rows_ = 0;
  float dgamma_[kColumns] = {};
  float dbeta_[kRms ? 1 : kColumns] = {};
};

}  // namespace normgrad::cuda
